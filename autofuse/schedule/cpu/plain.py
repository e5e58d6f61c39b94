"""Schedule family of last resort: any single operator that no other family takes, one loop nest a stage.

Outer axes run in parallel, inner ones in vectors; a reduction keeps several vectors of results in registers. Operators
whose TIR is not a list of element expressions keep their loops, the outermost ones in parallel where that is safe.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group
from autofuse.graph.reasons import Refusal
from autofuse.schedule import ScheduleError
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

    from autofuse.schedule.cpu.loops import Nest
    from autofuse.schedule.stages import Home, Stage

_SERIAL_OPERATIONS = 16_384


@dataclass(frozen=True)
class PlainConfiguration(Configuration):
    """vectors: registers of results that a reduction keeps; parallel: 0 runs on the calling thread."""

    vectors: int
    parallel: int


class PlainFamily(ScheduleFamily):
    """One operator of any kind."""

    name: ClassVar[str] = "plain"
    version: ClassVar[int] = 3
    configuration: ClassVar[type[Configuration]] = PlainConfiguration
    most_operators: ClassVar[int] = 1

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """A single operator that is a tensor program with one result."""
        if len(group.members) != 1:
            return Refusal("family", f"{len(group.members)} operators: the plain schedule takes one", group.members)
        op = group.operators[0]
        if not op.fusable:
            return Refusal("opaque", f"{op.name} ({op.kind}) is no tensor program with one result", (op.index,))
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[PlainConfiguration]:
        """Parallel where there is work for it; few and many registers."""
        work = group.work
        operations = work.flops + 7 * work.special + sum(group.graph.tensors[t].elements for t in group.outputs)
        order: tuple[int, ...] = (1, 0) if operations > _SERIAL_OPERATIONS else (0, 1)
        if hardware.cores == 1 or operations < _SERIAL_OPERATIONS // 8:
            order = (0,)
        elif operations > 64 * _SERIAL_OPERATIONS:
            order = (1,)
        vectors = (4, 8) if group.operators[0].reduction else (1,)
        return [PlainConfiguration(v, parallel) for parallel in order for v in vectors]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Every load of a reduction goes to L1; operands come once from further away."""
        assert isinstance(config, PlainConfiguration)
        op = group.operators[0]
        tensors = group.graph.tensors
        out = tensors[op.outputs[0]].shape
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        cut = inner_axes(out, hardware.lanes)
        inner = prod(out[cut:])
        steps = -(-inner // hardware.lanes)
        fill = inner / (steps * hardware.lanes)
        if any(a.stride not in (0, 1) for a in op.accesses):
            fill = min(fill, 2 / hardware.lanes)
        chains = max(1, min(config.vectors, steps))
        reads = 4 * prod(out) * prod(op.reduction) * max(1, len(op.inputs)) if op.reduction else 0
        return KernelShape(
            tasks=max(1, prod(out[:cut])) if config.parallel else 1,
            vector_fill=max(fill, 1 / hardware.lanes),
            accumulators=chains,
            independent_chains=chains,
            loads_per_fma=float(len(op.inputs)) if op.reduction else 0.0,
            l1_bytes=memory + reads,
            l2_bytes=memory,
            l3_bytes=memory,
            memory_bytes=memory,
            footprint=memory,
            loops=op.blocks,
        )

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.stages import lift

        try:
            lift(func)
        except ScheduleError:
            return blocks.guarded(f"plain {config.text}", lambda: _outermost(func, config))
        return blocks.guarded(f"plain {config.text}", lambda: _apply(func, config, hardware.lanes))


def inner_axes(shape: Sequence[int], lanes: int) -> int:
    """The first of the trailing axes that together fill a vector; 0 if all do not."""
    cut = max(0, len(shape) - 1)
    while cut > 0 and prod(shape[cut:]) < lanes:
        cut -= 1
    return cut


def _apply(func: PrimFunc, config: PlainConfiguration, lanes: int) -> PrimFunc:
    from autofuse.schedule.cpu.loops import Nest, allocate, sequence
    from autofuse.schedule.cpu.row_nests import reader
    from autofuse.schedule.stages import finish, lift

    program = lift(func)
    nest = Nest(program)
    parts: list[Any] = []
    homes: dict[Any, Home] = {}
    for stage in program.stages:
        readers = program.readers.get(stage.buffer, ())
        # A value that a reduction reads again and again is kept, unless it is the mere copy of an operand's.
        repeated = any(r.elements * r.reads > stage.elements for r in readers) or len(readers) > 1
        if not stage.output and not stage.how and not (repeated and stage.cost):
            continue
        buffer = stage.buffer
        if not stage.output:
            buffer = nest.buffer(stage.name, stage.shape, str(stage.buffer.dtype))
            parts.append(allocate(buffer))
        parts.append(_nest(nest, stage, buffer, config, lanes, dict(homes)))
        homes[stage.buffer] = reader(program, buffer)
    return finish(program, nest.resolve(sequence(parts)))


def _nest(nest: Nest, stage: Stage, buffer: Any, config: PlainConfiguration, lanes: int, homes: dict[Any, Home]) -> Any:
    """One stage: outer axes in parallel, inner ones in vectors."""
    from autofuse.schedule.cpu.loops import store
    from autofuse.schedule.stages import unravel

    program = nest.program
    cut = inner_axes(stage.shape, lanes)
    outer, inner = stage.shape[:cut], stage.shape[cut:]

    def line(t: Any) -> Any:
        lead = [program.simplify(i) for i in unravel(t, outer)]

        def at(i: Any) -> list[Any]:
            return [program.simplify(x) for x in (*lead, *unravel(i, inner))]

        if stage.how:
            return _reduce(nest, stage, buffer, config.vectors, lanes, prod(inner), at, homes)
        return nest.lanes_over(
            prod(inner),
            lanes,
            lambda i: store(buffer, program.value(stage, at(i), [], homes), at(i)),
            again=True,
            looped=True,
        )

    return nest.parallel("outer", prod(outer), line, config.parallel)


def _reduce(
    nest: Nest, stage: Stage, buffer: Any, vectors: int, lanes: int, extent: int, at: Any, homes: dict[Any, Home]
) -> Any:
    """A line of results, several vectors of them at a time."""
    from tvm import tirx

    from autofuse.schedule.cpu.loops import Cut, Piece, allocate, sequence, spans, store
    from autofuse.schedule.stages import combine, index

    program = nest.program
    cut = Cut(extent, vectors * lanes)

    def tile(number: Any, width: int) -> Any:
        # Elements that two vectors share are computed in both.
        parts = spans(width, lanes)
        acc = nest.registers("acc", (len(parts), parts[0].lanes), str(stage.buffer.dtype))
        start = number * index(cut.size)

        def each(body: Any) -> Any:
            def one(u: int, piece: Piece) -> Any:
                return nest.vector(
                    piece.lanes, lambda lane: body([index(u), lane], at(start + index(piece.start) + lane))
                )

            return sequence(*[one(u, piece) for u, piece in enumerate(parts)])

        def step(over: list[Any]) -> Any:
            def add(place: Any, where: Any) -> Any:
                term = program.value(stage, where, over, homes)
                return store(acc, combine(stage.how, tirx.BufferLoad(acc, place), term), place)

            return each(add)

        def loops(over: list[Any]) -> Any:
            if len(over) == len(stage.reduced):
                return step(over)
            return nest.loop("k", stage.reduced[len(over)], lambda k: loops([*over, k]))

        return sequence(
            allocate(acc),
            each(lambda place, where: store(acc, stage.identity, place)),
            loops([]),
            each(lambda place, where: store(buffer, tirx.BufferLoad(acc, place), where)),
        )

    return nest.tiles(index(0), cut.tiles, cut, tile)


def _outermost(func: PrimFunc, config: PlainConfiguration) -> PrimFunc:
    """The function's own loops, the outermost of each block in parallel where TVM finds that safe."""
    from tvm.s_tir.schedule import ScheduleError as Unsafe

    from autofuse.schedule import blocks as B

    sch = B.open_schedule(func)
    if config.parallel:
        for block in B.blocks(sch):
            loops = sch.get_loops(block)
            if not loops:
                continue
            try:
                sch.parallel(loops[0])
            except Unsafe:
                continue
    return B.close_schedule(sch, func)
