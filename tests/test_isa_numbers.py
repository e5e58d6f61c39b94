"""Numbers of kernels made for SSE4, AVX2, AVX-512 and NEON: run here where the machine can, else in an emulator."""

from __future__ import annotations

import os
from pathlib import Path

os.environ.setdefault("TVM_NUM_THREADS", "2")
os.environ.setdefault("TVM_BIND_THREADS", "0")

import isa_harness as H
import numpy as np
import pytest
from small_network import expected, small_network

import autofuse
from autofuse.schedule.cpu.winograd import ERROR
from autofuse.schedule.family import Configuration

TOLERANCE = {"winograd": ERROR[4]}


def some_configurations(case: H.IsaCase, isa: str, number: int) -> list[Configuration]:
    """The first configuration and one of the others: another in each case and on each instruction set.

    All of them run on this machine's own instruction set elsewhere.
    """
    first, *others = H.configurations(case, isa)
    if isa == "avx2" or not others:
        return [first]
    return [first, others[(5 * number + 7 * sorted(H.TARGETS).index(isa)) % len(others)]]


@pytest.mark.parametrize("isa", sorted(H.TARGETS))
def test_every_family_gives_numpys_results(isa: str, tmp_path: Path) -> None:
    missing = H.emulator(isa)
    if isinstance(missing, str):
        pytest.skip(f"{isa} code cannot run here: {missing}")
    kernels, names = [], {}
    for number, case in enumerate(H.CASES):
        for config in some_configurations(case, isa, number):
            name = f"k{len(kernels)}"
            names[name] = f"{case.family} {case.label} [{config.text}]"
            kernels.append(H.build(case, isa, config, name))
    found = H.errors(kernels, isa, tmp_path)
    wrong = {names[n]: e for n, e in found.items() if not e < TOLERANCE.get(names[n].split()[0], 1e-5)}
    assert not wrong and len(found) == len(names)


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
