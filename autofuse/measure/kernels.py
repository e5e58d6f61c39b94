"""From analysed models to what collection needs: items of their groups, requests to build them, right outputs.

Everything that TVM does to a candidate before it is compiled (fusing, scheduling) happens here, in this process;
compiling and running happen in children.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.keys import canonical_text, workload_key
from autofuse.graph.model import Group, Operator, Role
from autofuse.measure.builder import BuildRequest, module_request
from autofuse.measure.oracle import NotEvaluated, evaluate
from autofuse.measure.order import CollectItem
from autofuse.schedule.family import Configuration, ScheduleFamily, beside
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.search.problem import Choice

# A family whose groups compute nothing: there is no kernel to time.
_NO_KERNEL = "view"
_BYTES = {"int8": (-128.0, 127.0), "uint8": (0.0, 255.0)}


def items_of(
    groups: Iterable[Group],
    families: Sequence[ScheduleFamily],
    hardware: Hardware,
    model: str,
    configs: int = 4,
    plans: Iterable[Choice] = (),
    explore: int = 0,
    costs: CostModel | None = None,
) -> list[CollectItem]:
    """Items for `groups` with the first `configs` configurations of each group's first family that matches.

    `plans`: the choices of present plans; their groups are planned, and the configurations that they have there come
    first. `explore` others follow: what is measured should not only be what the families believe in. Where `costs` says
    how sure it is of them, half are those that it is least sure of; the rest are drawn at random (the same ones in
    every run). Families that stand beside the first one add as many. Groups that no family matches, or that compute
    nothing, are left out.
    """
    chosen: dict[Group, list[tuple[str, str]]] = {}
    for choice in plans:
        chosen.setdefault(choice.group, []).append((choice.family, choice.config))
    spaces: list[_Space] = []
    for group in groups:
        family = next((f for f in families if f.match(group, hardware) is None), None)
        if family is None or family.name == _NO_KERNEL:
            continue
        for one in (family, *beside(families, family, group, hardware)):
            found = list(one.configs(group, hardware))
            used = [c for c in found if (one.name, c.text) in chosen.get(group, ())]
            first = list(dict.fromkeys((*used, *found[:configs])))
            spaces.append(_Space(group, one, first, [c for c in found if c not in first]))
    doubtful = _least_sure(spaces, explore - explore // 2, costs)
    items = []
    for space, unsure in zip(spaces, doubtful, strict=True):
        key, text = workload_key(space.group), canonical_text(space.group)
        rest = [c for c in space.rest if c not in unsure]
        drawn = random.Random(f"{key} {space.family.name}").sample(rest, min(explore - len(unsure), len(rest)))
        for config in (*space.first, *unsure, *drawn):
            candidate = Candidate(space.group, space.family, config)
            choices = chosen.get(space.group)
            chosen_here = choices is not None and (space.family.name, config.text) in choices
            items.append(CollectItem(candidate, key, text, model, choices is not None, chosen_here))
    return items


@dataclass(frozen=True)
class _Space:
    """The configurations of a family for a group: those that are measured anyway, and the others."""

    group: Group
    family: ScheduleFamily
    first: list[Configuration]
    rest: list[Configuration]


def _least_sure(spaces: Sequence[_Space], count: int, costs: CostModel | None) -> list[list[Configuration]]:
    """Of the rest of each space up to `count` configurations, those that `costs` is least sure of; all at once."""
    asked = [Candidate(s.group, s.family, config) for s in spaces for config in s.rest]
    errors = costs.uncertainty(asked) if costs is not None and count and asked else None
    if errors is None:
        return [[] for _ in spaces]
    found, start = [], 0
    for space in spaces:
        end = start + len(space.rest)
        order = np.argsort(-errors[start:end], kind="stable")[:count]
        found.append([space.rest[i] for i in order])
        start = end
    return found


class KernelSource:
    """Build requests, and right outputs by numpy, for candidates of the given models.

    Operators that numpy has a form of (`oracle.py`) are computed by it, others by their definitions, with numpy too
    (`oracle_definitions.py`).
    """

    def __init__(self, models: Iterable[Analysed]) -> None:
        self._models = {id(model.graph): model for model in models}

    def request(self, item: CollectItem, text: str, library: Path) -> BuildRequest:
        """The request to build an item's kernel. Raises what the schedule family or TVM raised."""
        import tvm

        from autofuse.codegen.build import PASS_CONFIG

        candidate, group = item.candidate, item.candidate.group
        model = self._models[id(group.graph)]
        func = candidate.family.apply(model.fuser.fuse(group), group, candidate.config, model.hardware)
        return module_request(
            tvm.IRModule({"kernel": func}),
            item.key,
            text,
            str(library),
            model.target.description,
            len(group.outputs),
            PASS_CONFIG,
            index_ranges(group),
            prepared_shapes(group, candidate.family.prepared(group, candidate.config)),
            constant_positions(group),
        )

    def reference(self, candidate: Candidate, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]]:
        """The right outputs for `inputs` (as the kernel stores them).

        RuntimeError, one line, where an operator is too much for numpy: there is nothing else to check with.
        """
        group = candidate.group

        def define(op: Operator, operands: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
            return by_definition(self._models[id(group.graph)], op, operands)

        try:
            return evaluate(group, inputs, define)
        except NotEvaluated as error:
            raise RuntimeError(f"numpy does not compute {error}") from error


def by_definition(model: Analysed, op: Operator, operands: Mapping[int, NDArray[Any]]) -> NDArray[Any]:
    """An operator's result, as stored, from its unscheduled function. Raises NotEvaluated, naming the operator."""
    from autofuse.graph.tir import NotAProgram, read_program
    from autofuse.measure.oracle_definitions import run_program

    alone = Group.of(model.graph, [op.index])
    try:
        (result,) = run_program(read_program(model.fuser.fuse(alone)), [operands[t] for t in alone.inputs])
    except (NotAProgram, NotEvaluated) as error:
        raise NotEvaluated(f"{op.name} ({op.kind}): {error}") from error
    return result


def index_ranges(group: Group) -> Mapping[int, tuple[float, float]]:
    """Parameter → range of its numbers, for integer inputs: indices of a gather stay within what they index.

    Bytes that are no indices take all values that there are: a sign that is lost shows in half of them.
    """
    tensors = group.graph.tensors
    gathers = any(op.kind == "take" for op in group.operators)
    ranges: dict[int, tuple[float, float]] = {}
    for position, t in enumerate(group.inputs):
        if not tensors[t].dtype.startswith(("int", "uint")):
            continue
        if tensors[t].dtype in _BYTES and not gathers:
            ranges[position] = _BYTES[tensors[t].dtype]
            continue
        high = 1.0
        for op in group.operators:
            if op.kind == "take" and len(op.inputs) > 1 and op.inputs[1] == t:
                data = tensors[op.inputs[0]]
                shape = data.logical_shape or data.shape
                axis = op.attrs.get("axis")
                high = float((shape[axis] if isinstance(axis, int) else min(shape, default=1)) - 1)
        ranges[position] = (0.0, high)
    return ranges


def prepared_shapes(group: Group, forms: Mapping[int, str]) -> dict[int, tuple[str, tuple[int, ...]]]:
    """Parameter → (preparation, shape before it), for what `ScheduleFamily.prepared` names."""
    return {i: (form, group.graph.tensors[group.inputs[i]].shape) for i, form in forms.items()}


def constant_positions(group: Group) -> list[int]:
    """The parameters that are the network's weights."""
    return [i for i, t in enumerate(group.inputs) if group.graph.tensors[t].role is Role.CONSTANT]
