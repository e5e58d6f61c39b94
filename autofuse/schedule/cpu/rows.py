"""Schedule family of reductions along rows and what stands around them: softmax, normalisations, means, sums, maxima.

A task takes whole rows: it computes every stage of a row, one after another, with what the next stages need in buffers
of one row. Where the reduced axes are not the last ones, a task takes some of the lanes that follow them instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, MappingType, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu.rowspace import INJECTIVE, Rows, view
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from autofuse.schedule.cpu.row_nests import RowNests
    from autofuse.schedule.stages import Program, Stage

# Scalar operations below which a second thread costs more than it brings.
_SERIAL_OPERATIONS = 16_384


@dataclass(frozen=True)
class RowsConfiguration(Configuration):
    """block: rows of a task (a divisor of their number); width: lanes of a task where rows have lanes, else 1;
    vectors: registers of partial results that a reduction keeps; parallel: 0 runs on the calling thread."""

    block: int
    width: int
    vectors: int
    parallel: int


class RowsFamily(ScheduleFamily):
    """Groups whose reductions share their rows, with elementwise work before, between and after them."""

    name: ClassVar[str] = "rows"
    version: ClassVar[int] = 3
    configuration: ClassVar[type[Configuration]] = RowsConfiguration

    def anchors(self, op: Operator) -> bool:
        """Reductions."""
        return op.mapping not in INJECTIVE or bool(op.reduction)

    def admits(self, op: Operator) -> bool:
        """No contractions."""
        return op.mapping in INJECTIVE or op.mapping is MappingType.MANY_TO_ONE

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Reductions over the same axes; whatever depends on them reads only its own row."""
        found = view(group)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[RowsConfiguration]:
        """Tasks of several sizes, with few and many partial results; serial ones where there is little work."""
        rows = self._rows(group)
        work = group.work
        operations = work.flops + 7 * work.special
        widths = _widths(rows, hardware)
        found: dict[RowsConfiguration, None] = {}
        registers = [4, 2, 1] if rows.lanes == 1 and rows.elements >= 8 * hardware.lanes else [4, 1]
        blocks = _blocks(rows, hardware)
        order: tuple[int, ...] = (1, 0) if operations > _SERIAL_OPERATIONS else (0, 1)
        if operations > 64 * _SERIAL_OPERATIONS:
            order = (1,)
        elif operations < _SERIAL_OPERATIONS // 8:
            order = (0,)
        if hardware.cores == 1:
            order = (0,)
        for parallel in order:
            for vectors in registers:
                for block in blocks[: 2 if parallel else 1]:
                    for width in widths[: 2 if parallel else 1]:
                        tasks = rows.rows // block * -(-rows.lanes // width)
                        found[RowsConfiguration(block, width, vectors, int(parallel and tasks > 1))] = None
        return list(found)[:10]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Operands pass once from memory; every further pass over a row finds it in the nearest cache that holds it."""
        assert isinstance(config, RowsConfiguration)
        rows = self._rows(group)
        tensors = group.graph.tensors
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        tasks = rows.rows // config.block * -(-rows.lanes // config.width)
        row = 4 * rows.elements * config.width
        wide = rows.rows * rows.lanes * rows.elements * 4
        # Every nest of every operator reads and writes the row once more; a sum alone reads it once, from where it is.
        passes = sum(op.blocks for op in group.operators if op.reduction) + 1
        if all(tensors[t].bytes < wide for t in group.outputs):
            passes = max(0, passes - 2)
        lanes = hardware.lanes
        line = config.width if rows.lanes > 1 else rows.elements
        fill = line / (-(-line // lanes) * lanes)
        if rows.lanes == 1 and any(a.stride not in (0, 1) and op.mapping in INJECTIVE
                                   for op in group.operators for a in op.accesses):  # fmt: skip
            fill = min(fill, 2 / lanes)
        chains = config.vectors if rows.lanes == 1 else max(1, config.width // lanes, config.vectors)
        return KernelShape(
            tasks=tasks if config.parallel else 1,
            vector_fill=max(fill, 1 / lanes),
            accumulators=chains,
            independent_chains=min(chains, max(1, line // lanes)),
            loads_per_fma=1.0,
            l1_bytes=memory + passes * wide,
            l2_bytes=memory + (passes * wide if row > hardware.l1_bytes // 2 else 0),
            l3_bytes=memory + (passes * wide if row > hardware.l2_bytes // 2 else 0),
            memory_bytes=memory,
            footprint=2 * row * config.block,
            loops=1,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks

        rows = self._rows(group)
        return blocks.guarded(f"rows {config.text}", lambda: _apply(func, rows, config, hardware.lanes))

    def _rows(self, group: Group) -> Rows:
        return matched(view(group))


def _blocks(rows: Rows, hardware: Hardware) -> list[int]:
    """Rows of a task, best first: enough tasks for every core, rows that stay in L1 between two stages."""
    from autofuse.schedule.cpu.window import divisor_near

    most = max(1, rows.rows // (4 * hardware.cores))
    fitting = max(1, hardware.l1_bytes // 4 // max(1, 4 * rows.elements * min(rows.lanes, 4 * hardware.lanes)))
    first = divisor_near(rows.rows, min(most, max(fitting, 1), 64))
    found = [first]
    for other in (divisor_near(rows.rows, min(most, 8 * first)), 1):
        if other not in found:
            found.append(other)
    return found


def _widths(rows: Rows, hardware: Hardware) -> list[int]:
    """Lanes of a task, best first, where rows have lanes."""
    if rows.lanes == 1:
        return [1]
    lanes = hardware.lanes
    if rows.lanes <= 2 * lanes:
        return [rows.lanes]
    found = []
    # Wide strips read longer pieces of memory, as long as there are enough of them for every core.
    wide = rows.lanes >= 8 * lanes * 2 * hardware.cores
    for vectors in (8, 4, 2) if wide else (4, 8, 2):
        width = min(rows.lanes, vectors * lanes)
        if width not in found:
            found.append(width)
    return found


def _apply(func: PrimFunc, rows: Rows, config: RowsConfiguration, lanes: int) -> PrimFunc:
    from autofuse.schedule.cpu.loops import Nest, sequence
    from autofuse.schedule.cpu.row_nests import RowNests, Strip, whole_stages
    from autofuse.schedule.stages import finish, index, lift

    program = lift(func)
    nest = Nest(program)
    stages = program.kept(program.stages)
    nests = RowNests(nest, stages, rows.rows, rows.lanes, config.width, lanes, config.vectors)
    first, outside = whole_stages(nest, nests.shared, lanes)
    late = [] if rows.lanes > 1 else _late(program, nests)
    early = [s for s in nests.stages if s not in late]
    strips, rest = divmod(rows.lanes, config.width)
    count = strips + (1 if rest else 0)

    def some(row: Any, lane0: Any, width: int) -> Any:
        nests.width = width
        made = nests.row(Strip(row, lane0, width), early, outside)
        nests.width = config.width
        return made

    def task(t: Any) -> Any:
        block = t if count == 1 else nest.alias("block", t // index(count), rows.rows // config.block)
        strip = index(0) if count == 1 else nest.alias("strip", t % index(count), count)
        base = block * index(config.block)
        kept = nests.allocations(early) if not late else nests.block_allocations(early, late, config.block)

        def one(i: Any) -> Any:
            row = nest.alias("row", base + i, rows.rows)
            nests.position = i
            if not rest:
                return some(row, strip * index(config.width), config.width)
            return nest.either(
                strip, strips, count,
                lambda: some(row, strip * index(config.width), config.width),
                lambda: some(row, index(strips * config.width), rest),
            )  # fmt: skip

        body = nest.loop("r", config.block, one)
        after = nests.block(base, config.block, late, early, outside) if late else None
        return sequence(kept, body, after)

    body = nest.parallel("task", rows.rows // config.block * count, task, config.parallel)
    return finish(program, nest.resolve(sequence(first, body)))


def _late(program: Program, nests: RowNests) -> list[Stage]:
    """Elementwise stages of one value a row that nothing but such stages reads: done for many rows at once."""
    late: list[Stage] = []
    for stage in reversed(nests.stages):
        readers = [s for s in program.readers.get(stage.buffer, ()) if s is not stage]
        single = nests.spaces[stage.buffer].elements == 1 and not stage.how
        if single and all(r in late for r in readers):
            late.append(stage)
    return late[::-1]
