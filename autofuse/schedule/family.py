"""The interface of a schedule family: which groups it can schedule, its configurations, how it is applied to TIR.

Matching, configurations and shapes work on the plain graph, without TVM; only `apply` imports it.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cache, update_wrapper
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any, ClassVar, Concatenate, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

C = TypeVar("C", bound="Configuration")
P = ParamSpec("P")
S = TypeVar("S")
T = TypeVar("T")

_MISSING: Any = object()


def remembered(find: Callable[Concatenate[S, P], T]) -> Callable[Concatenate[S, P], T]:
    """`find(subject, *arguments)` that keeps its results with the subject: what a group is does not change.

    For functions of frozen dataclasses that are asked again for every configuration. Arguments have to be hashable.
    """
    name = f"{find.__module__}.{find.__qualname__}"

    def wrapper(subject: S, /, *args: P.args, **kwargs: P.kwargs) -> T:
        kept: dict[tuple[object, ...], T] | None = subject.__dict__.get(name)
        if kept is None:
            kept = subject.__dict__[name] = {}
        key = (*args, *kwargs.items()) if kwargs else args
        found: T = kept.get(key, _MISSING)
        if found is _MISSING:
            found = kept[key] = find(subject, *args, **kwargs)
        return found

    update_wrapper(wrapper, find)
    return wrapper


@cache
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


@dataclass(frozen=True)
class Configuration:
    """Base of the families' configurations: a frozen dataclass of ints with a stable text form "a=1,b=2"."""

    @property
    def text(self) -> str:
        """Fields in declaration order, `name=value`, joined by commas."""
        kind: Any = type(self)
        return ",".join([f"{name}={int(getattr(self, name))}" for name in _field_names(kind)])

    @classmethod
    def parse(cls: type[C], text: str) -> C:
        """The inverse of `text`. ValueError if a field is missing, unknown or no integer."""
        given = dict(part.split("=", 1) for part in text.split(",") if part)
        known = {f.name for f in fields(cls)}
        if set(given) != known:
            raise ValueError(f"configuration {text!r} does not have the fields {sorted(known)}")
        return cls(**{k: int(v) for k, v in given.items()})


@dataclass(frozen=True)
class KernelShape:
    """What a configuration makes of a group, as far as a cost model must know it. Sizes in bytes, for the whole kernel.

    tasks: independent pieces handed to the thread pool (1 = runs on the calling thread).
    vector_fill: useful lanes / lanes over the main loops (0..1); 1/lanes means scalar code.
    accumulators: vector registers that the inner tile keeps live; independent_chains: how many of them are
    independent accumulations (hides the FMA latency).
    recompute: scalar operations executed / needed (>= 1): halo, producers inlined under a broadcast, padding to a tile.
    loads_per_fma: vector loads + broadcasts that the inner loop issues per vector FMA (0 if there is no reduction).
    l1_bytes, l2_bytes, l3_bytes: traffic between registers and L1 / L1 and L2 / L2 and L3 under this tiling;
    memory_bytes: compulsory traffic, every input and output once.
    footprint: working set of one task.  loops: loop nests executed one after another inside the kernel.
    scattered: elements that are moved one by one, since no vector holds them together.
    exposed: share (0..1) of the traffic whose time no computation hides: what a loop of its own copies first.
    fma_ratio: multiply-adds executed / those of the group's work (below 1 for a fast algorithm).
    extra_simple: scalar additions and multiplications that the schedule executes beyond the group's work.
    """

    tasks: int
    vector_fill: float = 1.0
    accumulators: int = 1
    independent_chains: int = 1
    recompute: float = 1.0
    loads_per_fma: float = 0.0
    l1_bytes: int = 0
    l2_bytes: int = 0
    l3_bytes: int = 0
    memory_bytes: int = 0
    footprint: int = 0
    loops: int = 1
    scattered: int = 0
    exposed: float = 0.0
    fma_ratio: float = 1.0
    extra_simple: int = 0


SHAPE_FIELDS = tuple(f.name for f in fields(KernelShape))
SHAPE_COLUMN = {name: column for column, name in enumerate(SHAPE_FIELDS)}


def shape_matrix(shapes: Sequence[KernelShape]) -> NDArray[np.float64]:
    """The kernel shapes as an array (n, len(SHAPE_FIELDS)), columns in the order of SHAPE_FIELDS."""
    rows = chain.from_iterable(map(attrgetter(*SHAPE_FIELDS), shapes))
    width = len(SHAPE_FIELDS)
    return np.fromiter(rows, np.float64, len(shapes) * width).reshape(-1, width)


def shape_of_row(row: NDArray[np.float64]) -> KernelShape:
    """The kernel shape of one row of `shape_matrix`."""
    values = zip(fields(KernelShape), row, strict=True)
    numbers: list[Any] = [int(value) if f.type == "int" else float(value) for f, value in values]
    return KernelShape(*numbers)


class ScheduleFamily(abc.ABC):
    """A parametrised way to schedule a kind of group. Implementations are stateless and safe to share.

    `version` goes up whenever the TIR that a configuration gives changes: records of older versions are not used.
    `most_operators`, `least_anchors`, `most_anchors`, `most_results`: `match` refuses every group with more of them, or
    fewer, as far as that is known without a look at the group; quick looks like `anchors` and `admits`, as are these:
    `results_behind`: it refuses every group with a result that does not depend on the group's last anchor.
    `keeps_shape`: what depends on the last anchor has the shape of its result, layout changes aside.
    `one_shape`: all results have the same shape.
    `beside`: whether its configurations compete with those of the first family that takes a group, instead of the
    family being that first one. Such a family takes only what a family before it in the registry takes too.
    """

    name: ClassVar[str]
    version: ClassVar[int]
    configuration: ClassVar[type[Configuration]]
    beside: ClassVar[bool] = False
    most_operators: ClassVar[int] = 1 << 30
    least_anchors: ClassVar[int] = 1
    most_anchors: ClassVar[int] = 1 << 30
    most_results: ClassVar[int] = 1 << 30
    results_behind: ClassVar[bool] = False
    keeps_shape: ClassVar[bool] = False
    one_shape: ClassVar[bool] = False

    @abc.abstractmethod
    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """None if this family can schedule the group, else the reason why not. Cheap: called on many groups."""

    @abc.abstractmethod
    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        """The configurations to consider for a group that matches, best guess first, at least one, no duplicates."""

    @abc.abstractmethod
    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """What `config` makes of the group, for the cost models."""

    def anchors(self, op: Operator) -> bool:
        """Whether `op` may be what a group is taken for: `match` refuses every group without such an operator.

        With `admits` a quick look before `match`. Both say yes where a look at the operator alone cannot tell.
        """
        return True

    def admits(self, op: Operator) -> bool:
        """Whether a group that the family takes may hold `op`: `match` refuses every group with another operator."""
        return True

    def shape_rows(self, group: Group, configs: Sequence[Configuration], hardware: Hardware) -> NDArray[np.float64]:
        """What `shape` says of each of the configurations, as `shape_matrix` does; for families that are quicker so."""
        return shape_matrix([self.shape(group, config, hardware) for config in configs])

    def shapes_of(
        self, asked: Sequence[tuple[Group, Sequence[Configuration]]], hardware: Hardware
    ) -> NDArray[np.float64]:
        """`shape_rows` of at least one group, one after another; for families that are quicker with all at once."""
        return np.concatenate([self.shape_rows(group, configs, hardware) for group, configs in asked])

    def prepared(self, group: Group, config: Any) -> Mapping[int, str]:
        """The constants that the kernel wants in another form: position among `group.inputs` → preparation.

        The texts are those of `autofuse.schedule.preparations`; the function's parameter has the prepared shape.
        """
        return {}

    @abc.abstractmethod
    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """Schedule the fused, unscheduled `func` (from FuseTIR; parameters: group.inputs then group.outputs).

        Parameters that `prepared` names get the prepared shape.

        Raises autofuse.schedule.ScheduleError when the TIR does not have the form that `match` promised.
        """


class BatchedFamily(ScheduleFamily):
    """A family that finds the shapes of many groups and configurations at once: it says what `shapes_of` gives."""

    @abc.abstractmethod
    def shapes_of(
        self, asked: Sequence[tuple[Group, Sequence[Configuration]]], hardware: Hardware
    ) -> NDArray[np.float64]:
        """The shapes of at least one group's configurations as `shape_matrix` gives them, one group after another."""

    def shape_rows(self, group: Group, configs: Sequence[Configuration], hardware: Hardware) -> NDArray[np.float64]:
        """`shapes_of` of one group."""
        return self.shapes_of([(group, configs)], hardware)

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """`shapes_of` of one configuration."""
        return shape_of_row(self.shape_rows(group, [config], hardware)[0])


def beside(
    families: Sequence[ScheduleFamily], family: ScheduleFamily, group: Group, hardware: Hardware
) -> list[ScheduleFamily]:
    """Those of `families` that compete with `family`, one of them, for a group that it takes."""
    others = [f for f in families if f.beside and f is not family]
    return [f for f in others if f.match(group, hardware) is None] if others and family in families else []
