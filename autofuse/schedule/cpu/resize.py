"""Schedule family of single resizes: nearest neighbours in plain rows, linear ones in plain rows and channel blocks.

A task takes a plane. Where columns come from, and with which weights, is computed once and kept in tables. Each row of
the data that is needed is interpolated along the columns once; rows of results are made of one or two such rows, in
whole vectors. Nearest neighbours in channel blocks are whole vectors as it is: family `elementwise` fuses them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_KIND = "image.resize2d"
_SERIAL_ELEMENTS = 16_384


@dataclass(frozen=True)
class ResizeConfiguration(Configuration):
    """parallel: 0 runs on the calling thread."""

    parallel: int


class ResizeFamily(ScheduleFamily):
    """See the module's description."""

    name: ClassVar[str] = "resize"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = ResizeConfiguration
    most_operators: ClassVar[int] = 1
    most_anchors: ClassVar[int] = 1

    def anchors(self, op: Operator) -> bool:
        """Resizes of images."""
        return op.kind == _KIND

    def admits(self, op: Operator) -> bool:
        """These alone."""
        return op.kind == _KIND

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One resize, by nearest or linear interpolation."""
        if len(group.members) != 1:
            return Refusal("family", f"{len(group.members)} operators: this schedule takes one", group.members)
        op = group.operators[0]
        if op.kind != _KIND or not op.fusable:
            return Refusal("anchor", f"{op.name} ({op.kind}) is no resize", (op.index,))
        tensors = group.graph.tensors
        data, out = tensors[op.inputs[0]], tensors[op.outputs[0]]
        text = (str(op.attrs.get("resize", "")) or op.form).replace("\\", "")
        if "crop" in text or 'layout="NCHW"' not in text or (data.dtype, out.dtype) != ("float32", "float32"):
            return Refusal("resize", f"{op.name}: resizes of parts, other layouts and types are not taken", (op.index,))
        linear, nearest = 'method="linear"' in text, 'method="nearest_neighbor"' in text
        if len(data.shape) != len(out.shape) or not (
            (len(out.shape) == 4 and (linear or nearest))
            or (len(out.shape) == 5 and linear and out.shape[-1] == hardware.lanes)
        ):
            return Refusal("layout", f"{op.name}: neither plain rows nor blocks of {hardware.lanes}", (op.index,))
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[ResizeConfiguration]:
        """Parallel where there is work for it."""
        elements = sum(group.graph.tensors[t].elements for t in group.outputs)
        order: tuple[int, ...] = (1, 0) if elements > _SERIAL_ELEMENTS else (0, 1)
        if hardware.cores == 1 or prod(group.graph.tensors[group.outputs[0]].shape[:2]) == 1:
            order = (0,)
        elif elements > 16 * _SERIAL_ELEMENTS:
            order = (1,)
        return [ResizeConfiguration(parallel) for parallel in order]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Every row of the data that is read is interpolated once; two such rows stay in L1."""
        assert isinstance(config, ResizeConfiguration)
        tensors = group.graph.tensors
        op = group.operators[0]
        data, out = tensors[op.inputs[0]], tensors[op.outputs[0]]
        planes, row = prod(out.shape[:2]), prod(out.shape[3:])
        taps = 2 if op.work.simple else 1
        made = planes * min(data.shape[2], taps * out.shape[2]) * row
        repeats = taps == 1 and out.shape[3] % data.shape[3] == 0 and out.shape[3] > data.shape[3]
        memory = data.bytes + out.bytes
        return KernelShape(
            tasks=planes if config.parallel else 1,
            accumulators=4,
            independent_chains=8,
            l1_bytes=memory + 4 * made * (1 + 2 * taps),
            l2_bytes=memory,
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=memory // planes + 4 * row * (2 + 2 * taps),
            scattered=made * taps if len(out.shape) == 4 and not repeats else 0,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.resize_nests import ResizeNests

        return blocks.guarded(f"resize {config.text}", lambda: ResizeNests(func, config, hardware.lanes).build())
