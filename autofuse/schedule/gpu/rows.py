"""Reductions along rows on a GPU, with what stands around them: softmax, normalisations, means, sums, maxima.

Threads of a workgroup share a row as the row's length asks for, several rows a workgroup where rows are short. A thread
takes every so many-th vector of its row, keeps what later stages read of it in registers (or computes it again), and
partial results meet in LDS. Where the reduced axes are not the last ones, threads stand along the lanes that follow.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, MappingType, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu.rowspace import INJECTIVE, Rows, rows_of, view
from autofuse.schedule.family import Configuration, ScheduleFamily, remembered
from autofuse.schedule.gpu.roof import terms
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape, ceil_div, whole_lines
from autofuse.target import GpuHardware, Hardware
from autofuse.target.gpu import MOST_THREADS

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

#: Elements of a row that a thread keeps in registers at most, of each stage.
MOST_KEPT = 16
_CONFIGURATIONS = 16


@dataclass(frozen=True)
class GpuRowsConfig(Configuration):
    """rows: of a workgroup; across: threads along a row's elements; along: threads along its lanes (1 where it has
    none); vector: elements that a thread takes in a row (1 with lanes); keep: 1 keeps a thread's elements in registers
    between stages, 0 computes them again.
    """

    rows: int
    across: int
    along: int
    vector: int
    keep: int

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return self.rows * self.across * self.along

    def steps(self, count: int) -> int:
        """Vectors of a row of `count` elements that a thread takes."""
        return ceil_div(count, self.across * self.vector)


@remembered
def _view(group: Group) -> Rows | Refusal:
    """The rows that all reductions share, one result of each a row."""
    found = view(group)
    if isinstance(found, Refusal):
        return found
    for op in group.operators:
        if op.mapping in INJECTIVE and not op.reduction:
            continue
        own = rows_of(op, group.graph)
        if isinstance(own, Refusal) or own.rows != found.rows:
            return Refusal("rows", f"{op.name} ({op.kind}) has several results a row", (op.index,))
        # A window keeps a part of the axes that it looks along: neither one result a row nor as many as it reads.
        results = group.graph.tensors[op.outputs[0]].elements
        if results not in (own.rows * own.lanes, own.rows * own.elements * own.lanes):
            return Refusal("rows", f"{op.name} ({op.kind}) reduces parts of its rows", (op.index,))
    return found


class GpuRowsFamily(ScheduleFamily):
    """Groups whose reductions share their rows, with elementwise work before, between and after them."""

    name: ClassVar[str] = "gpu_rows"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = GpuRowsConfig

    def anchors(self, op: Operator) -> bool:
        """Reductions."""
        return op.mapping not in INJECTIVE or bool(op.reduction)

    def admits(self, op: Operator) -> bool:
        """No contractions."""
        return op.mapping in INJECTIVE or op.mapping is MappingType.MANY_TO_ONE

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Reductions over the same axes, one result a row; whatever depends on them reads only its own row."""
        found = _view(group)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuRowsConfig]:
        """A wave or less a row first where rows are short, all threads of a workgroup where they are long."""
        assert isinstance(hardware, GpuHardware)
        rows = _rows(group)
        found: dict[GpuRowsConfig, float] = {}
        for threads in (64, 128, MOST_THREADS):
            for along in _widths(rows, hardware):
                across = 1
                while across * along <= threads and across <= _next_power(rows.elements):
                    count = min(threads // (across * along), _next_power(rows.rows))
                    for vector in (4, 2, 1):
                        if vector == 1 or (rows.lanes == 1 and rows.elements % vector == 0):
                            config = GpuRowsConfig(count, across, along, vector, 0)
                            for keep in (1, 0) if config.steps(rows.elements) * vector <= MOST_KEPT else (0,):
                                made = GpuRowsConfig(count, across, along, vector, keep)
                                found[made] = terms(group.work, self.shape(group, made, hardware), hardware)["total"]
                    across *= 2
        return sorted(found, key=lambda c: (found[c], c.steps(rows.elements), c.threads, c.text))[:_CONFIGURATIONS]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> GpuShape:
        """Operands pass once from memory where a thread keeps them, else once for each pass over the rows.

        L1 gives whole lines, however few threads stand along a row.
        """
        assert isinstance(config, GpuRowsConfig) and isinstance(hardware, GpuHardware)
        rows = _rows(group)
        tensors = group.graph.tensors
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        groups = ceil_div(rows.rows, config.rows) * ceil_div(rows.lanes, config.along)
        reductions = sum(op.blocks for op in group.operators if op.reduction)
        wide = 4 * rows.rows * rows.elements * rows.lanes
        again = 0 if config.keep else reductions * wide
        kept = config.steps(rows.elements) * config.vector if config.keep else 2 * config.vector
        levels = 0 if config.across == 1 else 1 if config.across <= FEW else 2
        threads = config.threads
        together, all_of = (
            (config.along, rows.lanes) if rows.lanes > 1 else (config.across * config.vector, rows.elements)
        )
        lines = whole_lines(4 * together, hardware.line_bytes) if together < all_of else 1.0
        used = rows.rows * rows.lanes * rows.elements
        slots = groups * threads * config.steps(rows.elements) * config.vector
        return GpuShape(
            tasks=groups,
            vector_fill=used / slots,
            accumulators=config.vector,
            independent_chains=config.vector,
            l1_bytes=int((memory + again) * lines),
            l2_bytes=memory + (again if wide // groups > hardware.l1_bytes else 0),
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=ceil_div(memory, groups),
            threads=threads,
            registers=BASE_REGISTERS + 2 * kept + 2 * reductions,
            lds_bytes=4 * threads * 2 if levels else 0,
            lds_traffic=groups * threads * reductions * 4 * (FEW + 2) * levels,
            barriers=reductions * levels,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.row_nests import build

        return build(func, _rows(group), config)


#: Partial results that a thread adds up at most, one after another, before another exchange through LDS pays.
FEW = 16


def _rows(group: Group) -> Rows:
    found = _view(group)
    assert isinstance(found, Rows)
    return found


def _next_power(value: int) -> int:
    return 1 << max(0, value - 1).bit_length()


def _widths(rows: Rows, hardware: GpuHardware) -> list[int]:
    """Threads along lanes: few where there are few, else enough for whole lines up to a wave."""
    if rows.lanes == 1:
        return [1]
    most = min(_next_power(rows.lanes), hardware.wave)
    return [w for w in (64, 32, 16, 8, 4, 2) if w <= most][:2] or [most]
