"""Kernels that are built and timed for real, right, wrong and bad ones; as fixtures too, which conftest.py offers."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from plain_groups import Scale

from autofuse.measure import BuildRequest, CollectItem, MeasureJob, MeasureLimits, PoolBuilder, module_request
from autofuse.measure.jobs import fill_inputs
from autofuse.target import fingerprint

QUICK = MeasureLimits(timeout=20.0, budget=0.1, min_samples=4, max_samples=6, min_sample=1e-5)
SIZE = 4096
WEIGHTS = 1 << 16  # floats: 256 kB

# Kernels that no compiler would make: one that dies and one that never ends, in TVM's calling convention.
BAD = """
#include <unistd.h>
int __tvm_ffi_crash(void* self, const void* args, int count, void* result) { *(volatile int*)0 = 1; return 0; }
int __tvm_ffi_hang(void* self, const void* args, int count, void* result) { for (;;) pause(); return 0; }
"""


def module(scale: float = 2.0, name: str = "twice"):  # type: ignore[no-untyped-def]
    """out = x * scale, over SIZE floats."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(x: T.Buffer((SIZE,), "float32"), out: T.Buffer((SIZE,), "float32")):  # type: ignore
        for i in T.parallel(SIZE // 1024):
            for j in T.vectorized(1024):
                out[i * 1024 + j] = x[i * 1024 + j] * T.float32(scale)

    return tvm.IRModule({name: kernel.with_attr("global_symbol", name)})


def weighted_module():  # type: ignore[no-untyped-def]
    """out = x * weight, over WEIGHTS floats."""
    import tvm
    from tvm.script import tirx as T

    @T.prim_func
    def kernel(  # type: ignore
        x: T.Buffer((WEIGHTS,), "float32"), weight: T.Buffer((WEIGHTS,), "float32"),
        out: T.Buffer((WEIGHTS,), "float32")
    ):  # fmt: skip
        for i in T.parallel(WEIGHTS // 1024):
            for j in T.vectorized(1024):
                out[i * 1024 + j] = x[i * 1024 + j] * weight[i * 1024 + j]

    return tvm.IRModule({"scaled": kernel.with_attr("global_symbol", "scaled")})


def request(folder: Path, **changes: object) -> BuildRequest:
    made = module_request(module(), "w", "elementwise/1 a=1 []", str(folder / "k.so"), {"kind": "llvm"}, outputs=1)
    return replace(made, **changes)  # type: ignore[arg-type]


def ask(item: CollectItem, text: str, library: Path) -> BuildRequest:
    """What is built of an item: `module` with the configuration's number as its factor, none where that is 0."""
    config = item.candidate.config
    assert isinstance(config, Scale)
    if not config.scale:
        raise ValueError("cannot be scheduled")
    return module_request(module(config.scale), item.key, text, str(library), {"kind": "llvm"}, outputs=1)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


@pytest.fixture(scope="module")
def builder() -> Iterator[PoolBuilder]:
    with PoolBuilder(workers=1) as made:
        yield made


@pytest.fixture(scope="module")
def job(folder: Path, builder: PoolBuilder) -> MeasureJob:
    (built,) = builder.build([request(folder)])
    assert built.status == "ok", built.message
    assert Path(built.library).exists() and built.tir_digest and built.seconds > 0
    (x,) = fill_inputs(built.arguments, 0)
    np.savez(folder / "right.npz", x * 2)
    np.savez(folder / "wrong.npz", np.where(np.arange(SIZE) == 7, 9, x * 2).astype(np.float32))
    return MeasureJob(
        "w", built.candidate, built.library, built.function, built.arguments, str(folder / "right.npz"), limits=QUICK
    )


@pytest.fixture(scope="module")
def weighted(folder: Path, builder: PoolBuilder) -> MeasureJob:
    """A kernel with weights, on a machine with the last cache of this one."""
    (built,) = builder.build(
        [module_request(weighted_module(), "w", "b=1", str(folder / "w.so"), {"kind": "llvm"}, 1, constants=[1])]
    )
    assert built.status == "ok" and [a.constant for a in built.arguments] == [False, True, False], built.message
    np.savez(folder / "scaled.npz", np.multiply(*fill_inputs(built.arguments, 0)))
    return MeasureJob(
        "w", built.candidate, built.library, built.function, built.arguments, str(folder / "scaled.npz"),
        reference="memory", limits=QUICK, last_cache=fingerprint(2).l3_bytes or 32 << 20,
    )  # fmt: skip


@pytest.fixture(scope="module")
def bad(folder: Path) -> str:
    (folder / "bad.c").write_text(BAD)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", str(folder / "bad.so"), str(folder / "bad.c")], check=True)
    return str(folder / "bad.so")
