"""The kernels that calibration times: from a target and its cache sizes to `Probe`s, built with TVM.

Every kernel is TIR scheduled here the way the schedule families do (vectorised, register tile), so that the rates are
those that their code can reach, not the data sheet's. As a program it is `calibrate`'s child: it prints progress and
the result as JSON, one object a line.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import tvm
from tvm import relax, s_tir, te, tirx

from autofuse.codegen.stack import pipeline
from autofuse.codegen.threads import stay_at_home
from autofuse.measure.calibrate import BUDGET_SECONDS, Probe, Progress, describe, measure
from autofuse.target import Hardware, Target, default_hardware, resolve
from autofuse.target.host import read_host

SLICE_SECONDS = 4e-4  # one timing repeats a short kernel for about this long: well under a scheduler's time slice
TIMINGS = 5  # the best of this many counts
MEMORY_CEILING = 1 << 30  # bytes of the largest buffers together

_CHAINS = 10  # accumulators of the FMA kernel: more than latency × units, fewer than the registers
_STEPS = 4096  # iterations of the kernels that work in registers or L1
_ROWS = 4  # rows that the L1 kernels walk through, so that no iteration repeats the one before


def _random(shape: Sequence[int], dtype: str = "float32") -> Any:
    """A tensor of values in [0.5, 1.5) (or small integers), 64-byte aligned by TVM's allocator."""
    values = np.random.default_rng(0).random(tuple(shape)) + 0.5
    return tvm.runtime.tensor((values * 64 if dtype.startswith("int") else values).astype(dtype))


def _f32(value: float) -> Any:
    return tirx.const(value, "float32")


def _five(x: Any) -> Any:
    """Four simple operations; the addition to the sum is the fifth."""
    return tirx.max(tirx.min(x + _f32(0.25), _f32(1.25)), _f32(0.75)) + _f32(0.5)


class _Kernel:
    """A compiled PrimFunc with its arguments, that times itself."""

    def __init__(self, schedule: s_tir.Schedule, target: tvm.target.Target) -> None:
        self._module = tvm.compile(schedule.mod, target, tir_pipeline=pipeline()).mod
        params = schedule.mod["main"].params
        self._arguments = [_random([int(d) for d in p.shape], str(p.dtype)) for p in params]
        self._number = 1
        self._number = max(1, min(100_000, int(SLICE_SECONDS / max(self(), 1e-8))))

    def __call__(self) -> float:
        """Seconds per execution: the best of TIMINGS timings of SLICE_SECONDS, or of one execution, each."""
        evaluate = self._module.time_evaluator("main", tvm.cpu(), number=self._number, repeat=TIMINGS)
        return float(min(evaluate(*self._arguments).results))


def _schedule(tensors: Sequence[te.Tensor]) -> s_tir.Schedule:
    return s_tir.Schedule(te.create_prim_func(list(tensors)))


def _fma(lanes: int) -> s_tir.Schedule:
    """_CHAINS vector accumulators, one vector load and _CHAINS broadcasts an iteration: a matmul's inner loop."""
    a, b = te.placeholder((_STEPS, lanes), name="a"), te.placeholder((_CHAINS,), name="b")
    k = te.reduce_axis((0, _STEPS), name="k")
    # 64 rows of `a` stay in L1.
    out = te.compute((_CHAINS, lanes), lambda c, v: te.sum(a[k % 64, v] * b[c], axis=k), name="out")
    s = _schedule([a, b, out])
    block = s.get_sblock("out")
    c, v, steps = s.get_loops(block)
    s.reorder(steps, c, v)
    s.vectorize(v)
    s.unroll(c)
    write = s.cache_write(block, 0, "local")
    s.vectorize(s.get_loops(write)[-1])
    start = s.decompose_reduction(block, steps)
    s.vectorize(s.get_loops(start)[-1])
    s.unroll(s.get_loops(start)[-2])
    return s


def _functions(tiles: int, lanes: int) -> s_tir.Schedule:
    """Sigmoids behind the register tile of `_fma`, whose sums are of two products: what a fused function costs.

    In loops of their own functions take two thirds to three quarters of that: their constants stay in registers then.
    """
    a, b = te.placeholder((2, lanes), name="a"), te.placeholder((tiles, 2, _CHAINS), name="b")
    k = te.reduce_axis((0, 2), name="k")
    sums = te.compute((tiles, _CHAINS, lanes), lambda t, c, v: te.sum(a[k, v] * b[t, k, c], axis=k), name="sums")
    out = te.compute(sums.shape, lambda t, c, v: tirx.sigmoid(sums[t, c, v]), name="out")
    s = _schedule([a, b, out])
    block, functions = s.get_sblock("sums"), s.get_sblock("out")
    s.set_scope(block, 0, "local")
    tile, c, v = s.get_loops(functions)
    s.vectorize(v)
    s.unroll(c)
    s.compute_at(block, tile)
    c, v, steps = s.get_loops(block)[-3:]
    s.reorder(steps, c, v)
    s.vectorize(v)
    s.unroll(c)
    s.unroll(steps)
    start = s.decompose_reduction(block, steps)
    s.vectorize(s.get_loops(start)[-1])
    s.unroll(s.get_loops(start)[-2])
    return s


def _repeated(row: int, lanes: int, steps: int, rows: int, value: Callable[[Any], Any]) -> s_tir.Schedule:
    """out[i] += value(a[r % rows, i]) for r in steps: vectorised along i, `steps` times over the same few rows."""
    a = te.placeholder((rows, row), name="a")
    r = te.reduce_axis((0, steps), name="r")
    out = te.compute((row,), lambda i: te.sum(value(a[r % rows, i]), axis=r), name="out")
    s = _schedule([a, out])
    block = s.get_sblock("out")
    i, r_loop = s.get_loops(block)
    s.reorder(r_loop, i)
    _, vector = s.split(i, [None, lanes])
    s.vectorize(vector)
    start = s.decompose_reduction(block, r_loop)
    s.vectorize(s.get_loops(start)[-1])
    return s


def _stream(elements: int, lanes: int, tasks: int) -> s_tir.Schedule:
    """out[i] = a[i] * 1.5 in `tasks` parallel pieces (1: serial)."""
    a = te.placeholder((elements,), name="a")
    out = te.compute((elements,), lambda i: a[i] * _f32(1.5), name="out")
    s = _schedule([a, out])
    (i,) = s.get_loops(s.get_sblock("out"))
    task, _, vector = s.split(i, [tasks, None, lanes])
    s.vectorize(vector)
    if tasks > 1:
        s.parallel(task)
    return s


def _clock() -> s_tir.Schedule:
    """A chain of dependent additions and exclusive ors: two cycles an iteration on any core."""
    a = te.placeholder((64,), dtype="int32", name="a")
    chain = te.comm_reducer(lambda x, y: (x ^ y) + y, lambda dtype: tirx.const(0, dtype), name="chain")
    k = te.reduce_axis((0, _STEPS), name="k")
    return _schedule([a, te.compute((1,), lambda _: chain(a[k % 64], axis=k), name="out")])


def _trivial(threads: int, parallel: bool) -> s_tir.Schedule:
    """One store a task, a cache line apart, in or out of a parallel region."""
    a = te.placeholder((threads, 16), name="a")
    out = te.compute((threads, 16), lambda i, j: a[i, j] + _f32(1.0), name="out")
    s = _schedule([a, out])
    if parallel:
        s.parallel(s.get_loops(s.get_sblock("out"))[0])
    return s


class _Calls:
    """A chain of kernels of 8 elements each, run by the virtual machine."""

    def __init__(self, kernels: int, target: tvm.target.Target) -> None:
        builder = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((8,), "float32"))
        with builder.function("main", [x]):
            with builder.dataflow():
                value: Any = x
                for _ in range(kernels):
                    value = builder.emit_te(lambda t: te.compute((8,), lambda i: t[i] + 1.0, name="add"), value)
                result = builder.emit_output(value)
            builder.emit_func_output(result)
        pipeline = relax.get_pipeline("default_build")
        self._machine = relax.VirtualMachine(tvm.compile(builder.get(), target, relax_pipeline=pipeline), tvm.cpu())
        self._argument = _random((8,))

    def __call__(self) -> float:
        """Seconds of one run of the chain, the best of TIMINGS timings."""
        evaluate = self._machine.time_evaluator("main", tvm.cpu(), number=20, repeat=TIMINGS)
        return float(min(evaluate(self._argument).results))


def _use_own_intrinsics() -> None:
    """Let exp and friends be lowered as in the compiler's own kernels, where the package has such a lowering."""
    try:
        module = importlib.import_module("autofuse.codegen.intrinsics")
    except ModuleNotFoundError as error:
        if error.name != "autofuse.codegen.intrinsics":
            raise
        return
    module.register()


def _available_memory() -> int:
    """Bytes of memory that may be used, as far as the system says."""
    try:
        return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError, AttributeError):
        return MEMORY_CEILING


def build_probes(target: Target, hardware: Hardware, progress: Progress | None = None) -> list[Probe]:
    """The probes of a machine: rates, bandwidth of each level, overheads. `hardware` gives cache sizes and lanes.

    Amounts: multiply-adds; scalar operations; bytes read and written (a line that is only written counts once, as in
    KernelShape); cycles. L1 and L2 are probed on one thread, L3 and memory on all: cores share them, and one alone
    draws more than its share. The working set is half of the level's capacity (L3: at most 32 MiB, at least four L2s),
    four times L3 for memory, as far as memory allows. L3's rate is a core's.
    """
    _use_own_intrinsics()
    lanes, made = hardware.lanes, target.tvm_target()
    row = hardware.l1_bytes // 16 // lanes // 4 * lanes  # rows and result: a third of L1
    tiles = hardware.l1_bytes // 8 // (_CHAINS * lanes)  # results: half of L1
    l2_row = hardware.l2_bytes // 2 // (4 * (_ROWS + 1)) // lanes * lanes
    l3_set = min(max(hardware.l3_bytes // 2, 4 * hardware.l2_bytes), 32 << 20)
    tasks = max(1, target.threads)
    l3_elements = max(1, l3_set // 8 // (tasks * lanes)) * tasks * lanes
    memory_set = min(4 * hardware.l3_bytes, MEMORY_CEILING, _available_memory() // 4)
    memory_elements = max(1, memory_set // 8 // (tasks * lanes)) * tasks * lanes
    kernels: list[tuple[str, Callable[[], s_tir.Schedule], float]] = [
        ("clock", _clock, 2.0 * _STEPS),
        ("fma", lambda: _fma(lanes), float(_STEPS * _CHAINS * lanes)),
        ("simple", lambda: _repeated(row, lanes, 64, _ROWS, _five), 5.0 * 64 * row),
        ("divide", lambda: _repeated(row, lanes, 64, _ROWS, lambda x: _f32(1.5) / x), 64.0 * row),
        ("special", lambda: _functions(tiles, lanes), float(tiles * _CHAINS * lanes)),
        ("l1", lambda: _repeated(row, lanes, 256, _ROWS, lambda x: x), 12.0 * 256 * row),
        ("l2", lambda: _repeated(l2_row, lanes, 64, _ROWS, lambda x: x), 12.0 * 64 * l2_row),
        ("l3", lambda: _stream(l3_elements, lanes, tasks), 8.0 * l3_elements / tasks),
        ("memory", lambda: _stream(memory_elements, lanes, tasks), 8.0 * memory_elements),
        ("parallel", lambda: _trivial(max(2, tasks), True), 1.0),
        ("serial", lambda: _trivial(max(2, tasks), False), 1.0),
    ]
    short, long = 8, 72
    probes = []
    for i, (name, schedule, amount) in enumerate(kernels):
        if progress:
            progress(f"build {name}", i / (len(kernels) + 2))
        probes.append(Probe(name, _Kernel(schedule(), made), amount))
    probes.append(Probe("calls_short", _Calls(short, made), 1.0))
    probes.append(Probe("calls_long", _Calls(long, made), float(long - short)))
    return probes


def main(argv: Sequence[str] | None = None) -> None:
    """Build the probes, measure, print progress and the result."""
    parser = argparse.ArgumentParser(description="times the calibration probes; started by autofuse doctor --calibrate")
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--budget", type=float, default=BUDGET_SECONDS, help="seconds of timing")
    options = parser.parse_args(argv)

    def report(step: str, share: float) -> None:
        print(json.dumps({"step": step, "share": round(share, 3)}), flush=True)

    target = resolve("llvm", options.threads)
    stay_at_home(options.threads)
    base = default_hardware(target, read_host())
    probes = build_probes(target, base, report)
    seconds = measure(probes, options.budget, report)
    hardware = describe(base, seconds, {p.name: p.amount for p in probes})
    print(json.dumps({"hardware": asdict(hardware)}), flush=True)


if __name__ == "__main__":
    main()
