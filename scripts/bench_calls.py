"""What a call costs beside the work of its kernels: writes docs/calls.md.

Usage: python scripts/bench_calls.py [--rounds N]

Chains of small elementwise operators, every operator a kernel of its own, on one thread's worth of work: the time of a
call against the number of kernels. autofuse and ONNX Runtime (its optimiser off, so that it runs as many) take turns
in one process; the parallel region's price is the calibration's.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "calls.md"
LENGTHS = (1, 10, 100)
ELEMENTS = 64
CALLS = 200


def chain(links: int) -> Any:
    """x → |x|, -|x|, … over `ELEMENTS` numbers."""
    import onnx

    helper = onnx.helper
    kinds = ("Abs", "Neg")
    names = ["x", *(f"v{i}" for i in range(links - 1)), "y"]
    nodes = [helper.make_node(kinds[i % 2], [names[i]], [names[i + 1]]) for i in range(links)]
    value = [helper.make_tensor_value_info(n, onnx.TensorProto.FLOAT, [ELEMENTS]) for n in ("x", "y")]
    graph = helper.make_graph(nodes, f"chain{links}", value[:1], value[1:])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def microseconds(run: Callable[[], object]) -> float:
    """Of one call, over `CALLS` of them."""
    start = time.perf_counter()
    for _ in range(CALLS):
        run()
    return (time.perf_counter() - start) / CALLS * 1e6


def engines(links: int) -> dict[str, Callable[[], object]]:
    """The ways to run a chain: a call from Python, the compiled function alone, ONNX Runtime."""
    import numpy as np
    import onnxruntime as ort

    import autofuse

    model = chain(links)
    made = autofuse.compile(model, strategy="none")
    if made.kernels != links:
        raise RuntimeError(f"{made.kernels} kernels for {links} operators")
    x = np.linspace(-1, 1, ELEMENTS, dtype=np.float32)
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    np.testing.assert_array_equal(made(x)[0], session.run(None, {"x": x})[0])
    return {"call": lambda: made(x), "function": made.timer(x), "onnxruntime": lambda: session.run(None, {"x": x})}


def main() -> int:
    """Measures, then writes the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--rounds", type=int, default=40, help="turns of every engine (default: %(default)s)")
    rounds = parser.parse_args().rounds
    from autofuse.target.host import processors
    from autofuse.target.pool import pool_environment

    os.environ.update(pool_environment(processors()))
    from autofuse.report.results import machine, machine_text, table, write_text
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import resolve

    ways = {(links, name): run for links in LENGTHS for name, run in engines(links).items()}
    taken: dict[tuple[int, str], list[float]] = {way: [] for way in ways}
    for run in ways.values():
        microseconds(run)
    for _ in range(rounds):
        for way, run in ways.items():
            taken[way].append(microseconds(run))

    def cell(way: tuple[int, str]) -> str:
        low, middle, high = statistics.quantiles(taken[way], n=4)
        return f"{middle:.1f} ±{(high - low) / 2:.1f}"

    names = ("call", "function", "onnxruntime")
    middle = {way: statistics.median(values) for way, values in taken.items()}
    more = [(middle[LENGTHS[-1], n] - middle[LENGTHS[0], n]) / (LENGTHS[-1] - LENGTHS[0]) for n in names]
    rows = [[str(links), *(cell((links, name)) for name in names)] for links in LENGTHS]
    rows.append(["each further kernel", *(f"{value:.2f}" for value in more)])
    hardware = load_hardware(resolve("llvm"))
    text = [
        "# What a call costs",
        "Written by `scripts/bench_calls.py`; not to be edited.",
        machine_text(machine()),
        f"Chains of elementwise operators over {ELEMENTS} numbers, every operator a kernel of its own, on the calling"
        f" thread; µs a call, medians of {rounds} turns of {CALLS} calls ± half the distance between the quartiles; all"
        " take turns in one process. `call` is `exe(x)` from Python, `function` the compiled model without its checks"
        " and conversions, `onnxruntime` a session with its optimiser off.",
        table(["kernels", *(f"{name}, µs" for name in names)], rows),
        f"A parallel region takes {hardware.parallel_overhead * 1e6:.1f} µs while the pool is awake"
        " (`autofuse doctor --calibrate`); whether a kernel has one is part of its configuration. Memory between"
        " kernels is planned when a model is compiled (`peak_memory_mb`), and kept by TVM's pool from call to call.",
    ]
    write_text(PAGE, "\n\n".join(part.rstrip("\n") for part in text) + "\n")
    print(f"wrote {PAGE}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
