"""A model and engines' names → `BenchResult`: starts the engines, checks their outputs, runs the rounds."""

from __future__ import annotations

import contextlib
import json
import os
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from autofuse.bench.case import BenchCase, make_case
from autofuse.bench.child import Child
from autofuse.bench.engines import ONNXRUNTIME, PROBE, EngineSpec, engine_specs
from autofuse.bench.interleave import Interleaved, Pace, Progress, interleave
from autofuse.bench.peer import Array, Workload
from autofuse.bench.result import BenchResult, EngineResult, ProbeResult
from autofuse.bench.statistics import compare, paired_ratio, summarise
from autofuse.errors import EngineError

DEFAULT_ENGINES = ("autofuse", "greedy", "none", ONNXRUNTIME, "openvino")
_PROBES = ("arithmetic", "memory")
# The probe that all threads take part in, and that slows down at once when a neighbour takes one of them.
_GUARD = "arithmetic"
_UNFUSED = "none"
# A first call as long as this already says how long a call takes.
_LONG_CALL = 0.2


@dataclass
class _Engine:
    """An engine on its way: what is known of it so far."""

    spec: EngineSpec
    row: EngineResult
    child: Child | None = None
    outputs: list[Array] | None = None

    def fail(self, message: str) -> None:
        # The engine's name is in the row already.
        self.row = replace(self.row, error=message.removeprefix(f"{self.spec.name}: "))
        if self.child is not None:
            self.child.close()
            self.child = None


def run(
    model: Any,
    *,
    engines: Iterable[str] = DEFAULT_ENGINES,
    threads: int | None = None,
    batch: int | None = None,
    rounds: int | None = None,
    budget: float | None = None,
    pace: Pace | None = None,
    compile_options: Mapping[str, Any] | None = None,
    executables: Mapping[str, str | os.PathLike[str]] | None = None,
    extra_peers: Mapping[str, str] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, Array] | None = None,
    seed: int = 0,
    engine_timeout: float = 900.0,
    progress: Progress | None = None,
) -> BenchResult:
    """Times a model in every engine, side by side: same threads, same inputs, taking turns round by round.

    Args:
        model: what `autofuse.compile` takes: a zoo name, a path, an ONNX model, a Relax module, an exported program.
        engines: names out of `known_engines()`, and those of `executables` and `extra_peers`; rows come in this order.
        threads: for every engine; by default the processors that this process may use.
        batch: leading dimension of every input.
        rounds, budget: override those of `pace`; `budget` is in seconds and covers the rounds alone.
        compile_options: JSON values, keyword arguments of `autofuse.compile` for the engines of its family.
        executables: engine name → a saved executable (`exe.save`), timed as that engine and not compiled again.
        extra_peers: engine name → "module:Class" of a `Peer` that the engines' processes can import.
        inputs: by name; by default the zoo's own, or seeded random ones.
        engine_timeout: seconds that one engine may take to prepare, and again for its first inference.
        progress: called with a text, the steps done and the steps in all.

    Returns:
        One row an engine. An engine that is missing, fails, crashes or hangs is a row with `error`. Outputs are
        compared with ONNX Runtime's, whether or not it was asked for, else with those of the unfused build.

    Raises:
        EngineError: an unknown engine, none at all, or a number that makes no sense.
        ModelError, InputError: the model cannot be prepared, the inputs do not fit.
    """
    threads = default_threads() if threads is None else threads
    if threads < 1:
        raise EngineError(f"threads must be 1 or more, not {threads}")
    chosen = pace or Pace()
    chosen = replace(
        chosen,
        rounds=chosen.rounds if rounds is None else rounds,
        budget=chosen.budget if budget is None else budget,
    )
    if chosen.rounds < 1:
        raise EngineError(f"rounds must be 1 or more, not {chosen.rounds}")
    saved = {name: str(Path(path).resolve()) for name, path in (executables or {}).items()}
    specs = engine_specs(
        engines, compile_options=_plain(compile_options or {}), executables=saved, extra_peers=extra_peers or {}
    )
    if not specs:
        raise EngineError("no engine to run: name at least one")
    start = time.perf_counter()
    with tempfile.TemporaryDirectory(prefix="autofuse-bench-") as folder:
        if progress is not None:
            progress("preparing the model", 0, 1)
        case = make_case(model, Path(folder), input_shapes=input_shapes, batch=batch, inputs=inputs, seed=seed)
        result = measure(case, specs, threads=threads, pace=chosen, timeout=engine_timeout, progress=progress)
    return replace(result, batch=batch, seconds=time.perf_counter() - start)


def _plain(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options as they cross to another process: paths as text, None left out; EngineError on what cannot cross."""
    plain = {key: str(value) if isinstance(value, os.PathLike) else value for key, value in options.items()}
    for key, value in plain.items():
        try:
            json.dumps(value)
        except (TypeError, ValueError):
            raise EngineError(
                f"compile option {key!r} is a {type(value).__name__}, which cannot be sent to an engine's process:"
                " compile and save the model first, and pass its path in `executables`"
            ) from None
    return {key: value for key, value in plain.items() if value is not None}


def default_threads() -> int:
    """Processors that this process may use."""
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity is not None else os.cpu_count() or 1


def measure(
    case: BenchCase,
    specs: Sequence[EngineSpec],
    *,
    threads: int,
    pace: Pace,
    timeout: float = 900.0,
    progress: Progress | None = None,
) -> BenchResult:
    """`run` for a model whose files are there."""
    with contextlib.ExitStack() as stack:
        running: list[_Engine] = []
        for index, spec in enumerate(specs):
            if progress is not None:
                progress(f"starting {spec.name}", index, len(specs))
            running.append(_start(spec, case, threads, timeout, stack))
        reference, outputs = _reference(running, case, threads, timeout)
        for engine in running:
            _judge(engine, outputs)
        taken = _take_turns(running, case, threads, pace, timeout, progress, stack)
    return BenchResult(
        model=case.name,
        threads=threads,
        results=_rows(running, taken),
        probe=_probe_results(taken),
        reference=reference,
    )


def _start(spec: EngineSpec, case: BenchCase, threads: int, timeout: float, stack: contextlib.ExitStack) -> _Engine:
    """Starts an engine, compiles the model in it and runs it once or twice: its outputs and how long a call takes."""
    engine = _Engine(spec, EngineResult(spec.name))
    try:
        child = Child(spec.name, spec.peer, threads, environment=spec.environment)
        stack.callback(child.close)
        engine.child = child
        seconds = child.prepare(_workload(case, spec, threads), timeout=timeout)
        engine.row = replace(engine.row, compile_s=seconds)
        if child.first_run(timeout=timeout) < _LONG_CALL:
            child.run(3)
        engine.outputs, kernels = child.outputs()
        engine.row = replace(engine.row, kernels=kernels)
    except EngineError as error:
        engine.fail(str(error))
    return engine


def _workload(case: BenchCase, spec: EngineSpec, threads: int) -> Workload:
    return Workload(
        model_path=str(case.model_path),
        inputs_path=str(case.inputs_path),
        input_names=case.input_names,
        output_names=case.output_names,
        threads=threads,
        options=spec.options,
    )


def _reference(
    running: Sequence[_Engine], case: BenchCase, threads: int, timeout: float
) -> tuple[str | None, list[Array] | None]:
    """Whose outputs are right: ONNX Runtime's, else the unfused build's, started for this alone where not asked for."""
    for name in (ONNXRUNTIME, _UNFUSED):
        asked = next((engine for engine in running if engine.spec.name == name), None)
        if asked is None:
            (spec,) = engine_specs([name], compile_options={}, executables={}, extra_peers={})
            with contextlib.ExitStack() as stack:
                asked = _start(spec, case, threads, timeout, stack)
        if asked.outputs is not None:
            return name, asked.outputs
    return None, None


def _judge(engine: _Engine, reference: list[Array] | None) -> None:
    if engine.outputs is None or reference is None:
        return
    found = compare(engine.outputs, reference)
    if isinstance(found, str):
        engine.row = replace(engine.row, error=found)
    else:
        engine.row = replace(engine.row, max_abs_err=found.max_abs, max_rel_err=found.max_rel)


def _take_turns(
    running: Sequence[_Engine],
    case: BenchCase,
    threads: int,
    pace: Pace,
    timeout: float,
    progress: Progress | None,
    stack: contextlib.ExitStack,
) -> Interleaved:
    contestants = [engine.child for engine in running if engine.child is not None]
    if not contestants:
        return Interleaved({}, {}, {})
    probes = []
    for kind in _PROBES:
        # One BLAS thread: the probe brings its own.
        spec = EngineSpec(kind, PROBE, {"kind": kind}, {"OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"})
        started = _start(spec, case, threads, timeout, stack)
        if started.child is not None:
            probes.append(started.child)
    estimates = {child.name: child.call_seconds or 0.0 for child in (*contestants, *probes)}
    guard = next((child for child in probes if child.name == _GUARD), None)
    return interleave(contestants, estimates, probes=probes, guard=guard, pace=pace, progress=progress)


def _rows(running: Sequence[_Engine], taken: Interleaved) -> tuple[EngineResult, ...]:
    base = next((taken.visits[e.spec.name] for e in running if taken.visits.get(e.spec.name)), ())
    rows = []
    for engine in running:
        visits = taken.visits.get(engine.spec.name, ())
        row = engine.row
        summary = summarise(visits)
        if summary is not None:
            row = replace(
                row,
                median_ms=summary.median_ms,
                iqr_ms=summary.iqr_ms,
                min_ms=summary.min_ms,
                calls=summary.calls,
                rounds=len(visits),
                disturbed=sum(not visit.quiet for visit in visits),
            )
        ratio = paired_ratio(visits, base)
        if ratio is not None:
            row = replace(row, ratio=ratio[0], ratio_iqr=ratio[1])
        if row.error is None and engine.spec.name in taken.errors:
            row = replace(row, error=taken.errors[engine.spec.name].removeprefix(f"{engine.spec.name}: "))
        rows.append(row)
    return tuple(rows)


def _probe_results(taken: Interleaved) -> dict[str, ProbeResult]:
    results = {}
    for kind, visits in taken.probes.items():
        summary = summarise(visits)
        if summary is not None:
            rounds = tuple(1e3 * sorted(visit.seconds)[len(visit.seconds) // 2] for visit in visits)
            results[kind] = ProbeResult(summary.median_ms, summary.iqr_ms, summary.min_ms, rounds)
    return results
