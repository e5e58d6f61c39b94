"""Kernels made for SSE4, AVX2, AVX-512 and NEON: whole vectors in their assembly, numpy's numbers in their results.

Looking at assembly needs neither a linker nor an emulator. What the machine cannot run by itself runs in an emulator.
"""

from __future__ import annotations

from pathlib import Path

import isa_assembly as A
import isa_harness as H
import numpy as np
import pytest
from small_network import expected, small_network

import autofuse
from autofuse.schedule.cpu.winograd import ERROR

ISAS = ("sse4", "avx512", "neon", "avx2")
WIDE = {"sse4": "xmm", "avx2": "ymm", "avx512": "zmm", "neon": ".4s"}
LIBRARY = ("exp", "tanh", "erf", "log", "floor", "pow", "fma")
MOVES = {"transpose odd", "concat odd", "nearest odd"}
"""Cases that only move elements."""
SCALAR = {
    # Rows of 21 columns: those after the last whole tile are done one by one.
    ("neon", "pool plain odd"),
}  # fmt: skip
"""What is known not to reach whole vectors yet (docs/targets.md): a case that gets better must leave this list."""
TOLERANCE = {"winograd": ERROR[4]}


@pytest.fixture(scope="module", params=ISAS)
def kernels(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> H.Kernels:
    """Those of one instruction set, which the tests below look at one after another."""
    return H.Kernels(request.param, tmp_path_factory.mktemp(request.param))


@pytest.mark.parametrize("kernels", ISAS[:3], indirect=True)  # AVX2's numbers and times are measured elsewhere
@pytest.mark.parametrize("case", H.CASES, ids=lambda c: f"{c.family} {c.label}")
def test_arithmetic_is_in_vectors_of_the_target(kernels: H.Kernels, case: H.IsaCase) -> None:
    text, isa = kernels.first(case).assembly, kernels.isa
    called = {c.partition("@")[0] for c in A.calls(text)}
    assert not [c for c in called if c.rstrip("f") in LIBRARY], called
    if case.label in MOVES:
        return
    loops = A.loops(text)
    vector, scalar = sum(loop.vector for loop in loops), sum(loop.scalar for loop in loops)
    wide = any(WIDE[isa] in line for line in A.main_loop(text).lines)
    says = f"{vector} vector and {scalar} scalar instructions in inner loops, whole vectors in the main one: {wide}"
    assert (vector > scalar and wide) != ((isa, f"{case.family} {case.label}") in SCALAR), says


@pytest.mark.parametrize("label", ["3x3", "3x3 odd", "groups"])
def test_the_main_loop_of_a_convolution_keeps_its_tile_in_registers(kernels: H.Kernels, label: str) -> None:
    case = next(c for c in H.CASES if c.family == "conv2d" and c.label == label)
    loop = A.main_loop(kernels.first(case).assembly)
    assert loop.multiply >= 8 and loop.scalar == 0
    assert loop.stack == 0, "registers are spilled"


def to_run(kernels: H.Kernels) -> list[H.Compiled]:
    """Each case in its first configuration and in one of the others: another in each case and on each instruction set.

    All of them run on this machine's own instruction set elsewhere.
    """
    found = []
    for number, case in enumerate(H.CASES):
        found.append(kernels.first(case))
        others = H.configurations(case, kernels.isa)[1:]
        if kernels.isa != "avx2" and others:
            config = others[(5 * number + 7 * sorted(H.TARGETS).index(kernels.isa)) % len(others)]
            found.append(kernels.compile(case, config))
    return found


def test_every_family_gives_numpys_results(kernels: H.Kernels, tmp_path: Path) -> None:
    missing = H.emulator(kernels.isa)
    if isinstance(missing, str):
        pytest.skip(f"{kernels.isa} code cannot run here: {missing}")
    ran = to_run(kernels)
    found = H.errors(ran, kernels.isa, tmp_path)
    assert not {n: e for n, e in found.items() if not e < TOLERANCE.get(n.split()[0], 1e-5)}
    assert set(found) == {made.label for made in ran} and len(found) == len(ran)


def test_a_network_compiled_for_sse4_agrees_with_onnx_runtime(tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    if H.emulator("sse4") != []:
        pytest.skip("this machine has no SSE4.2")
    source = small_network()
    image = np.random.default_rng(0).standard_normal((1, 3, 16, 16)).astype("float32")
    executable = autofuse.compile(source, target="llvm -mcpu=nehalem", threads=2)
    assert '"nehalem"' in executable.description["target"]
    executable.save(tmp_path / "m.so")
    for have, want in zip(autofuse.load(tmp_path / "m.so")(image), expected(source, [image]), strict=True):
        np.testing.assert_allclose(have, want, rtol=1e-4, atol=1e-6)


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
