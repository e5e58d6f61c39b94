"""The loop nests of staged kernels: takes the fused function and a configuration, gives the scheduled function.

A reduction runs over [lines, tiles of its innermost axes, reduced elements], the tile's vectors and several partial
results in registers. An elementwise nest runs over its tasks' axes, then the others, the innermost in vectors.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any

from tvm import tirx

from autofuse.schedule import ScheduleError
from autofuse.schedule.cpu.loops import Cut, Nest, allocate, pieces, sequence, store
from autofuse.schedule.cpu.plain import inner_axes
from autofuse.schedule.cpu.staged import _ACCUMULATORS, StagedConfiguration, _in_parallel, outer_axes, slice_axes
from autofuse.schedule.stages import Home, Program, Stage, combine, finish, index, lift, ravel, unravel

if TYPE_CHECKING:
    from collections.abc import Callable

# Elements up to which a buffer may live in registers.
_FEW = 64


def build(func: Any, config: StagedConfiguration, lanes: int) -> Any:
    """Schedule the function. ScheduleError when its stages are not what the family's `match` promised."""
    program = lift(func)
    nest = Nest(program)
    kept = _kept(program)
    final = kept[-1]
    if not final.output or any(s.output for s in kept[:-1]):
        raise ScheduleError("a staged kernel has one result, its last stage's")
    inside = _inside(program, kept) if config.inside and not final.how else []
    parts: list[Any] = []
    homes: dict[Any, Home] = {}
    for stage in kept[:-1]:
        if stage not in inside:
            buffer = nest.buffer(stage.name, (stage.elements,), str(stage.buffer.dtype))
            parts += [allocate(buffer), _whole(nest, stage, _flat(program, stage, buffer), config, lanes, homes)]
            homes[stage.buffer] = _reader(program, stage, buffer)
    if final.how:
        parts.append(_whole(nest, final, _result(program, final), config, lanes, homes))
    else:
        parts.append(_spread(nest, final, inside, config, lanes, homes))
    return finish(program, nest.resolve(sequence(parts)))


def _kept(program: Program) -> list[Stage]:
    """The stages with a nest: results, reductions, what reductions read again and again, what is dear and repeated."""
    usual = program.kept(program.stages)
    found = []
    for stage in program.stages:
        feeds = any(reader.how and reader.elements * reader.reads > stage.elements
                    for reader in program.readers.get(stage.buffer, ()))  # fmt: skip
        if stage in usual or (feeds and _computes(program, stage)):
            found.append(stage)
    return found


def _computes(program: Program, stage: Stage) -> bool:
    """Whether a stage, or what it is inlined with, does more than read a kept value."""
    if stage.how:
        return False
    return stage.cost > 0 or any(
        _computes(program, program.by_buffer[load.source]) for load in stage.loads if load.source in program.by_buffer
    )


def _inside(program: Program, kept: Sequence[Stage]) -> list[Stage]:
    """The stages that only the last nest reads, in slices along its leading axes."""
    final = kept[-1]
    chosen: list[Stage] = []
    for stage in reversed(kept[:-1]):
        readers = _kept_readers(program, stage, kept)
        if slice_axes(stage.shape, final.shape) and all(r is final or (r in chosen and not r.how) for r in readers):
            chosen.insert(0, stage)
    axes = {slice_axes(s.shape, final.shape) for s in chosen}
    # A mean reads a whole plane, which the last nest then finds in its cache; but it needs no slice of a contraction.
    return chosen if len(axes) == 1 else []


def _kept_readers(program: Program, stage: Stage, kept: Sequence[Stage]) -> list[Stage]:
    """The kept stages that read this one, directly or through what is computed in place."""
    found: list[Stage] = []
    todo = [stage.buffer]
    while todo:
        for reader in program.readers.get(todo.pop(), ()):
            if reader in kept:
                found.append(reader)
            else:
                todo.append(reader.buffer)
    return found


def _flat(program: Program, stage: Stage, buffer: Any) -> Callable[[Sequence[Any], Any], Any]:
    """Stores an element of a stage in a flat buffer."""
    return lambda at, value: store(buffer, value, [program.simplify(ravel(at, stage.shape))])


def _result(program: Program, stage: Stage) -> Callable[[Sequence[Any], Any], Any]:
    """Stores an element of the kernel's result."""
    return lambda at, value: store(stage.buffer, value, program.address(stage.buffer, at))


def _reader(program: Program, stage: Stage, buffer: Any) -> Home:
    return lambda at: tirx.BufferLoad(buffer, [program.simplify(ravel(at, stage.shape))])


def _whole(
    nest: Nest, stage: Stage, put: Callable[[Sequence[Any], Any], Any], config: StagedConfiguration, lanes: int,
    homes: Mapping[Any, Home],
) -> Any:  # fmt: skip
    """All elements of a stage."""
    program = nest.program
    cut = inner_axes(stage.shape, lanes)
    outer, inner = stage.shape[:cut], stage.shape[cut:]
    lines, extent = prod(outer), prod(inner)
    contraction = len({load.source for load in stage.loads}) > 1
    pooled = int(_in_parallel(stage.elements * stage.reads, contraction, config))

    def at(line: Any, i: Any) -> list[Any]:
        return [program.simplify(x) for x in (*unravel(line, outer), *unravel(i, inner))]

    if not stage.how:
        return nest.parallel(
            "line", lines,
            lambda line: nest.lanes_over(
                extent, lanes, lambda i: put(at(line, i), program.value(stage, at(line, i), [], homes))
            ),
            pooled,
        )  # fmt: skip
    tiles = Cut(extent, lanes if extent <= lanes else 2 * lanes)

    def one(t: Any) -> Any:
        if lines == 1:
            line, tile = index(0), t
        elif tiles.full == 1:
            line, tile = t, index(0)
        else:
            line = nest.alias("line", t // index(tiles.full), lines)
            tile = nest.alias("tile", t % index(tiles.full), tiles.full)
        return reduce_tile(nest, stage, lambda i: at(line, tile * index(tiles.size) + i), put, tiles.size, lanes, homes)

    def ragged(line: Any) -> Any:
        start = index(tiles.full * tiles.size)
        return reduce_tile(nest, stage, lambda i: at(line, start + i), put, tiles.rest, lanes, homes)

    main = nest.parallel("step", lines * tiles.full, one, pooled) if tiles.full else None
    return sequence(main, nest.loop("line", lines, ragged) if tiles.rest else None)


def reduce_tile(
    nest: Nest, stage: Stage, at: Callable[[Any], list[Any]], put: Callable[[Sequence[Any], Any], Any], width: int,
    lanes: int, homes: Mapping[Any, Home],
) -> Any:  # fmt: skip
    """`width` results at the indices at(0) …: several partial results of each in registers, joined at the end."""
    program = nest.program
    parts = pieces(width, lanes)
    turns = 1
    while 2 * turns * len(parts) <= _ACCUMULATORS and stage.reads >= 4 * turns:
        turns *= 2
    full, rest = divmod(stage.reads, turns)
    acc = nest.registers("acc", (turns, width), str(stage.buffer.dtype))

    def each(body: Callable[[Any], Any]) -> Any:
        return sequence(nest.in_pieces(parts, body))

    def add(turn: int, q: Any) -> Any:
        over = [program.simplify(k) for k in unravel(q, stage.reduced)]

        def term(i: Any) -> Any:
            value = program.value(stage, at(i), over, homes)
            return store(acc, combine(stage.how, acc[index(turn), i], value), [index(turn), i])

        return each(term)

    def clear(turn: int) -> Any:
        return each(lambda i: store(acc, stage.identity, [index(turn), i]))

    def fold(to: int, turn: int) -> Any:
        return each(
            lambda i: store(acc, combine(stage.how, acc[index(to), i], acc[index(turn), i]), [index(to), i])
        )  # fmt: skip

    joins = []
    step = turns // 2
    while step:
        joins += [fold(t, t + step) for t in range(step)]
        step //= 2
    return sequence(
        allocate(acc),
        [clear(t) for t in range(turns)],
        nest.loop("q", full, lambda q: sequence(*[add(t, q * index(turns) + index(t)) for t in range(turns)])),
        [add(t, index(full * turns + t)) for t in range(rest)],
        joins,
        each(lambda i: put(at(i), acc[index(0), i])),
    )


def _spread(
    nest: Nest, final: Stage, inside: Sequence[Stage], config: StagedConfiguration, lanes: int,
    homes: Mapping[Any, Home],
) -> Any:  # fmt: skip
    """The last nest: tasks along the leading axes, each with the slices of `inside` that it needs."""
    program = nest.program
    axes = slice_axes(inside[0].shape, final.shape) if inside else outer_axes(final.shape, lanes)
    lead, rest = final.shape[:axes], final.shape[axes:]

    def task(t: Any) -> Any:
        first = [nest.alias("lead", program.simplify(x), e) for x, e in zip(unravel(t, lead), lead, strict=True)]
        here = dict(homes)
        parts: list[Any] = []
        for stage in inside:
            parts.extend(_slice(nest, stage, first, lanes, here))
        parts.append(_rest(nest, final, first, rest, lanes, here))
        return sequence(parts)

    return nest.parallel("task", prod(lead), task, int(_in_parallel(final.elements, False, config)))


def _slice(nest: Nest, stage: Stage, first: Sequence[Any], lanes: int, homes: dict[Any, Home]) -> list[Any]:
    """The statements that compute a stage's slice at the indices `first`; tells `homes` where it is."""
    program = nest.program
    rest = stage.shape[len(first) :]
    size = prod(rest)
    buffer = nest.buffer(stage.name, (size,), str(stage.buffer.dtype), "local" if size <= _FEW else "global")

    def at(i: Any) -> list[Any]:
        return [*first, *[program.simplify(x) for x in unravel(i, rest)]]

    def place(indices: Sequence[Any]) -> Any:
        return [program.simplify(ravel(indices[len(first) :], rest))]

    if stage.how:
        made = reduce_tile(nest, stage, at, lambda a, value: store(buffer, value, place(a)), size, lanes, homes)
    else:
        made = nest.lanes_over(
            size, lanes, lambda i: store(buffer, program.value(stage, at(i), [], homes), place(at(i)))
        )  # fmt: skip

    def read(indices: Sequence[Any]) -> Any | None:
        if not all(program.same(a, b) for a, b in zip(indices, first, strict=False)):
            return None
        return tirx.BufferLoad(buffer, place(indices))

    homes[stage.buffer] = read
    return [allocate(buffer), made]


def _rest(
    nest: Nest, final: Stage, first: Sequence[Any], rest: Sequence[int], lanes: int, homes: Mapping[Any, Home]
) -> Any:
    """The elements of a task, axis by axis, the last one in vectors."""
    program = nest.program
    put = _result(program, final)

    def loops(at: list[Any], left: Sequence[int]) -> Any:
        if len(left) > 1:
            return nest.loop("i", left[0], lambda i: loops([*at, i], left[1:]))
        return nest.lanes_over(
            left[0], lanes, lambda i: put([*at, i], program.value(final, [*at, i], [], homes))
        )  # fmt: skip

    return loops(list(first), rest)
