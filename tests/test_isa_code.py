"""Kernels cross-compiled for each instruction set, judged by the assembly: whole vectors, no scalar loops.

Needs neither a linker nor an emulator.
"""

from __future__ import annotations

import os

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")

import isa_assembly as A
import isa_harness as H
import pytest

WIDE = {"sse4": "xmm", "avx2": "ymm", "avx512": "zmm", "neon": ".4s"}
LIBRARY = ("exp", "tanh", "erf", "log", "floor", "pow", "fma")
MOVES = {"transpose odd", "concat odd", "nearest odd"}
"""Cases that only move elements."""
SCALAR = {
    # Rows of 21 columns: those after the last whole tile are done one by one.
    ("neon", "pool plain odd"),
}  # fmt: skip
"""What is known not to reach whole vectors yet (docs/targets.md): a case that gets better must leave this list."""


@pytest.mark.parametrize("isa", ["sse4", "avx512", "neon"])  # AVX2's numbers and times are measured elsewhere
@pytest.mark.parametrize("case", H.CASES, ids=lambda c: f"{c.family} {c.label}")
def test_arithmetic_is_in_vectors_of_the_target(case: H.IsaCase, isa: str) -> None:
    text = H.assembly(H.build(case, isa, H.configurations(case, isa)[0], "kernel"), isa)
    called = {c.partition("@")[0] for c in A.calls(text)}
    assert not [c for c in called if c.rstrip("f") in LIBRARY], called
    if case.label in MOVES:
        return
    loops = A.loops(text)
    vector, scalar = sum(loop.vector for loop in loops), sum(loop.scalar for loop in loops)
    wide = any(WIDE[isa] in line for line in A.main_loop(text).lines)
    says = f"{vector} vector and {scalar} scalar instructions in inner loops, whole vectors in the main one: {wide}"
    assert (vector > scalar and wide) != ((isa, f"{case.family} {case.label}") in SCALAR), says


@pytest.mark.parametrize("isa", sorted(H.TARGETS))
@pytest.mark.parametrize("label", ["3x3", "3x3 odd", "groups"])
def test_the_main_loop_of_a_convolution_keeps_its_tile_in_registers(label: str, isa: str) -> None:
    case = next(c for c in H.CASES if c.family == "conv2d" and c.label == label)
    loop = A.main_loop(H.assembly(H.build(case, isa, H.configurations(case, isa)[0], "kernel"), isa))
    assert loop.multiply >= 8 and loop.scalar == 0
    assert loop.stack == 0, "registers are spilled"


def test_the_reader_of_assembly_sees_what_it_should() -> None:
    text = "\n".join(
        [
            "\t.type\tkernel,@function", "kernel:", "\tvmulss\t%xmm1, %xmm0, %xmm2", ".LBB0_1:",
            "\tvmovups\t%ymm3, 32(%rsp)", "\tvfmadd231ps\t(%rax), %ymm0, %ymm1", "\tvaddss\t%xmm1, %xmm0, %xmm2",
            "\tcallq\texpf@PLT", "\tjne\t.LBB0_1", "\tretq",
        ]
    )  # fmt: skip
    (loop,) = A.loops(text)
    counts = (loop.vector, loop.scalar, loop.multiply, loop.scalar_multiply, loop.stack)
    assert counts == (1, 1, 1, 0, 1)
    assert loop.calls == ("expf@PLT",) == tuple(A.calls(text))
