"""Everything the graph needs to know about one PrimFunc, remembered by the function's structure.

`analyse` takes a PrimFunc and gives an `Analysis`: accesses per operand, work, extents, loop nests, canonical text.
Networks repeat few distinct functions many times, and compiling twice meets the same ones again, hence the memory.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import tvm_ffi

from autofuse.graph.access import output_access
from autofuse.graph.expression import NotNumeric
from autofuse.graph.mapping import classify
from autofuse.graph.model import Access, MappingType, Work
from autofuse.graph.text import program_text, script_text
from autofuse.graph.tir import NotAProgram, Program, read_program
from autofuse.graph.work import loop_nests, main_reduction, program_work

# Which of two mapping types an operand has when it has both: the one that constrains fusion more.
_ORDER = (
    MappingType.OPAQUE,
    MappingType.MANY_TO_MANY,
    MappingType.MANY_TO_ONE,
    MappingType.SHUFFLE,
    MappingType.REORGANIZE,
    MappingType.ONE_TO_MANY,
    MappingType.ONE_TO_ONE,
)


@dataclass(frozen=True)
class Analysis:
    """What a PrimFunc does. `accesses` has one entry an operand, whose `tensor` is the parameter's number.

    `reason` says why the function could not be followed (its accesses are Opaque then), "" if it could.
    """

    accesses: tuple[Access, ...]
    work: Work
    spatial: tuple[int, ...]
    reduction: tuple[int, ...]
    blocks: int
    text: str
    reason: str = ""


_known: dict[Any, Analysis] = {}
_MOST_KNOWN = 4096


def analyse(func: Any, outputs: int = 1) -> Analysis:
    """Analyses a PrimFunc whose last `outputs` parameters are written. Never raises on a well-formed function."""
    key = (tvm_ffi.StructuralKey(func), outputs)
    found = _known.get(key)
    if found is None:
        found = _analyse(func, outputs)
        if len(_known) >= _MOST_KNOWN:
            _known.clear()
        _known[key] = found
    return found


def _analyse(func: Any, outputs: int) -> Analysis:
    operands = len(func.params) - outputs
    try:
        program = read_program(func)
    except NotAProgram as error:
        return _opaque(operands, _shape(func.params[-1]), script_text(func), str(error), Work())
    text = program_text(program)
    written = tuple(range(operands, operands + outputs))
    shape = program.buffers[program.parameters - 1].shape
    if any(0 in buffer.shape for buffer in program.buffers):
        return _opaque(operands, shape, text, "it works on an empty tensor", Work())
    if program.outputs != written:
        return _opaque(operands, shape, text, "it does not write exactly its results", program_work(program))
    try:
        accesses = _merge([_accesses(program, output, operands) for output in written])
    except (NotAProgram, NotNumeric) as error:
        return _opaque(operands, shape, text, str(error), program_work(program))
    return Analysis(
        accesses=accesses,
        work=program_work(program),
        spatial=program.buffers[written[0]].shape,
        reduction=main_reduction(program),
        blocks=loop_nests(program),
        text=text,
    )


def _accesses(program: Program, output: int, operands: int) -> tuple[Access, ...]:
    access = output_access(program, output)
    shapes = [b.shape for b in program.buffers[: program.parameters]]
    found = [classify(access, operand, shapes, operand) for operand in range(operands)]
    # A bias [1000] added to [1, 1000] broadcasts nothing: beside another operand, axes of extent 1 are no reshape.
    if sum(bool(a.reads_per_output) for a in found) > 1:
        out = _without_units(shapes[output])
        found = [
            replace(a, mapping=MappingType.ONE_TO_ONE)
            if a.mapping is MappingType.REORGANIZE and not a.reason and _without_units(shapes[a.operand]) == out
            else a
            for a in found
        ]
    return tuple(found)


def _without_units(shape: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(extent for extent in shape if extent > 1)


def _merge(by_output: list[tuple[Access, ...]]) -> tuple[Access, ...]:
    """One access an operand: over several outputs, the one that constrains most, with the largest counts."""
    merged = []
    for accesses in zip(*by_output, strict=True):
        worst = min(accesses, key=lambda a: (not a.reads_per_output, _ORDER.index(a.mapping)))
        reads = max(a.reads_per_output for a in accesses)
        uses = max(a.uses_per_element for a in accesses)
        merged.append(replace(worst, reads_per_output=reads, uses_per_element=uses))
    return tuple(merged)


def _opaque(operands: int, shape: tuple[int, ...], text: str, reason: str, work: Work) -> Analysis:
    accesses = tuple(Access(i, i, MappingType.OPAQUE, 0, 0, -1, reason) for i in range(operands))
    return Analysis(accesses, work, shape, (), 1, text, reason)


def _shape(param: Any) -> tuple[int, ...]:
    values = getattr(param, "shape", ())
    return tuple(int(v) for v in values if str(v).isdigit() or hasattr(v, "value"))
