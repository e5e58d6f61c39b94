"""Times every distinct operator of the zoo's networks against ONNX Runtime and PyTorch, and writes docs/kernels.md.

Usage: python scripts/bench_kernels.py [--kinds a,b] [--names TEXT] [--large] [--budget S] [--limit S] [--again]
[--page-only] [--folder NAME]

An operator is a model of its own (`kernel_models.py`). autofuse, ONNX Runtime and PyTorch's operators take turns round
by round, each in a process of its own that stays for the whole run. Results go to docs/results/kernels.json after every
operator; operators that are there are skipped, so that a run can be taken up again. The page: `kernels_page.py`.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent))
from kernel_models import CALL, FOLLOWED, KernelModel, alone
from kernels_page import FILE, is_large, write_page
from raw_results import Place, refuse_others

if TYPE_CHECKING:
    from autofuse.bench.child import Child

PEERS = ("onnxruntime", "torch")
Raw = Mapping[str, Any]


class Contest:
    """The engines' and the probes' processes, started when first asked for and again after a failure."""

    def __init__(self, threads: int) -> None:
        from autofuse.bench.engines import PROBE, engine_specs

        self.threads = threads
        (ours,) = engine_specs(["autofuse"], compile_options={}, executables={}, extra_peers={})
        peers = engine_specs(PEERS, compile_options={}, executables={}, extra_peers={})
        self._peers = {"autofuse": ours.peer, **{s.name: s.peer for s in peers}, "arithmetic": PROBE, "memory": PROBE}
        self._children: dict[str, Child] = {}

    def child(self, name: str) -> Child:
        """The process of an engine or a probe."""
        from autofuse.bench.child import Child

        if name not in self._children:
            # One BLAS thread: the probe brings its own.
            own = {"arithmetic": {"OPENBLAS_NUM_THREADS": "1"}}
            self._children[name] = Child(name, self._peers[name], self.threads, environment=own.get(name))
        return self._children[name]

    def drop(self, name: str) -> None:
        """End a process."""
        if name in self._children:
            self._children.pop(name).close()

    def close(self) -> None:
        """End all of them."""
        for name in list(self._children):
            self.drop(name)


@contextmanager
def contest(threads: int) -> Iterator[Contest]:
    """A contest that is closed whatever happens."""
    made = Contest(threads)
    try:
        yield made
    finally:
        made.close()


def measure(row: KernelModel, among: Contest, options: argparse.Namespace) -> dict[str, Any]:
    """One row: compiled, compared with ONNX Runtime's outputs, timed in turns. Whoever fails has an "error"."""
    import onnx

    import autofuse
    from autofuse.bench.interleave import Pace, interleave
    from autofuse.bench.statistics import compare, paired_ratio, summarise
    from autofuse.errors import EngineError

    model = row.proto()
    begin = time.perf_counter()
    compiled = autofuse.compile(model, threads=among.threads)
    compile_s = time.perf_counter() - begin
    engines: dict[str, dict[str, Any]] = {name: {} for name in ("autofuse", *PEERS)}
    outputs, ready = {}, []
    with tempfile.TemporaryDirectory(prefix="autofuse-kernels-") as name:
        folder = Path(name)
        onnx.save(model, str(folder / "model.onnx"))
        compiled.save(str(folder / "model.so"))
        given = inputs_of(model)
        with open(folder / "inputs.npz", "wb") as file:
            np.savez(file, **given)  # type: ignore[arg-type]  # its stub allows a bool among the keywords
        for engine in (*engines, "arithmetic", "memory"):
            try:
                child = among.child(engine)
                child.prepare(_workload(engine, folder, model, among.threads), timeout=300.0)
                child.first_run(timeout=60.0)
                child.run(3)
                ready.append(child)
                if engine in engines:
                    outputs[engine] = child.outputs()[0]
            except EngineError as error:
                if engine not in engines:
                    raise
                engines[engine]["error"] = str(error).removeprefix(f"{engine}: ")
                among.drop(engine)
        pace = Pace(rounds=options.rounds, budget=options.budget, visit=0.015, most_calls=200, pause=0.01, wake=0.005)
        contestants = [c for c in ready if c.name in engines]
        taken = interleave(
            contestants, {c.name: c.call_seconds or 0.0 for c in ready},
            probes=[c for c in ready if c.name not in engines], guard=among.child("arithmetic"), pace=pace,
        )  # fmt: skip
    for engine, error in taken.errors.items():
        if engine in engines:
            engines[engine]["error"] = error
        among.drop(engine)
    for engine, found in engines.items():
        visits = taken.visits.get(engine, ())
        summary, ratio = summarise(visits), paired_ratio(visits, taken.visits.get("autofuse", ()))
        if summary is not None:
            found.update(
                median_us=round(1e3 * summary.median_ms, 3), iqr_us=round(1e3 * summary.iqr_ms, 3),
                least_us=round(1e3 * summary.min_ms, 3),
            )  # fmt: skip
        if ratio is not None:
            found.update(ratio=round(ratio[0], 4), ratio_iqr=round(ratio[1], 4))
        if engine in outputs and "onnxruntime" in outputs:
            difference = compare(outputs[engine], outputs["onnxruntime"])
            if isinstance(difference, str):
                found["error"] = difference
            else:
                found["max_rel_err"] = difference.max_rel
    probes: dict[str, float] = {}
    for probe, visits in taken.probes.items():
        summary, ratio = summarise(visits), paired_ratio(visits, taken.visits.get("autofuse", ()))
        if summary is not None:
            probes |= {probe: summary.median_ms, f"{probe}_least": summary.min_ms}
        if ratio is not None:
            probes[f"{probe}_over_ours"] = ratio[0]
    kernels = compiled.description["kernel_list"]
    return {
        "kind": row.kind, "repeat": row.repeat, "followed": row.followed, "threads": among.threads,
        "networks": list(row.networks),
        "configurations": list(dict.fromkeys(
            f"{g.family}[{g.config}]" for g in compiled.plan.groups if g.family not in ("", "view")
        )),
        "kernels": len(kernels), "flops": sum(k["flops"] for k in kernels), "bytes": bytes_of(model, given),
        "compile_s": round(compile_s, 2), "predicted_us": round(1e3 * compiled.description["predicted_ms"], 3),
        "engines": engines, "probes": probes,
    }  # fmt: skip


def _workload(engine: str, folder: Path, model: Any, threads: int) -> Any:
    from autofuse.bench.peer import Workload

    options: dict[str, Any] = {
        "autofuse": {"executable": str(folder / "model.so")},
        "arithmetic": {"kind": "arithmetic"}, "memory": {"kind": "memory"},
    }.get(engine, {})  # fmt: skip
    names = tuple(v.name for v in model.graph.input), tuple(v.name for v in model.graph.output)
    return Workload(str(folder / "model.onnx"), str(folder / "inputs.npz"), *names, threads, options)


def inputs_of(model: Any) -> dict[str, Any]:
    """Normal numbers for the inputs of a model; places in the table for those of a gather."""
    from onnx import TensorProto

    random = np.random.default_rng(0)
    tables = {n.input[1]: n.input[0] for n in model.graph.node if n.op_type == "Gather"}
    rows = {t.name: t.dims[0] for t in model.graph.initializer if t.dims}
    found = {}
    for value in model.graph.input:
        kind = value.type.tensor_type
        shape = [d.dim_value for d in kind.shape.dim]
        if kind.elem_type == TensorProto.INT64:
            found[value.name] = random.integers(0, rows[tables[value.name]], shape)
        else:
            found[value.name] = random.standard_normal(shape, dtype=np.float32)
    return found


def bytes_of(model: Any, given: Mapping[str, Any]) -> int:
    """What no schedule avoids: inputs, weights and outputs once; of a table the rows that are looked up."""
    tables = {n.input[0] for n in model.graph.node if n.op_type == "Gather"}
    constants = sum(4 * int(np.prod(t.dims)) for t in model.graph.initializer if t.name not in tables)
    outputs = sum(4 * int(np.prod([d.dim_value for d in v.type.tensor_type.shape.dim])) for v in model.graph.output)
    return constants + sum(array.nbytes for array in given.values()) + outputs * (2 if tables else 1)


def due(rows: Sequence[KernelModel], found: Mapping[str, Any], options: argparse.Namespace) -> list[KernelModel]:
    """The rows to measure: those asked for, and of the others those that are missing."""
    kinds = set(options.kinds.split(",")) if options.kinds else {r.kind for r in rows}
    some = [r for r in rows if r.kind in kinds and (options.names or "") in r.name]
    if options.large:
        return [r for r in some if r.name in found and is_large(found[r.name])]
    return [r for r in some if options.again or options.names or r.name not in found]


def main() -> int:
    """Measures what is missing or asked for, then writes the page."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--kinds", help="only these kinds of operators, comma-separated")
    parser.add_argument("--names", help="only operators whose name contains this text; they are measured again")
    parser.add_argument("--large", action="store_true", help="measure the large ones among those that are there again")
    parser.add_argument("--threads", type=int, help="default: all processors")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds for the rounds of one operator")
    parser.add_argument("--limit", type=float, help="begin no operator after so many seconds")
    parser.add_argument("--again", action="store_true", help="measure everything, whatever is there")
    parser.add_argument("--page-only", action="store_true", help="write the page from the results that are there")
    parser.add_argument("--folder", default="", help="the folder of docs/results/ of another machine, and its page")
    options = parser.parse_args()
    place = Place(options.folder)
    failed = False if options.page_only else run(options, parser, place.raw / FILE)
    print(f"wrote {write_page(place)}")
    return int(failed)


def run(options: argparse.Namespace, parser: argparse.ArgumentParser, raw: Path) -> bool:
    """Measure into the file `raw`; whether an operator failed."""
    from rich.progress import track

    from autofuse.bench.runner import default_threads
    from autofuse.report.results import machine, write_json

    refuse_others([raw])
    begin = time.monotonic()
    rows = [CALL, *alone(), *FOLLOWED]
    known = dict.fromkeys(r.kind for r in rows)
    if options.kinds and (unknown := sorted(set(options.kinds.split(",")) - set(known))):
        parser.error(f"no kind {unknown[0]!r}: there are {', '.join(known)}")
    threads = options.threads or default_threads()
    stored: dict[str, Any] = json.loads(raw.read_text(encoding="utf-8")) if raw.exists() else {}
    found = stored.get("rows", {}) if stored.get("threads") == threads else {}
    failed = False
    with contest(threads) as among:
        for row in track(due(rows, found, options), description="operators"):
            if options.limit is not None and time.monotonic() - begin > options.limit:
                break
            try:
                found[row.name] = measure(row, among, options)
            except Exception as error:
                print(f"{row.name}: {type(error).__name__}: {error}", file=sys.stderr)
                failed = True
            else:
                write_json(raw, {"threads": threads, "machine": machine(), "listed": len(rows), "rows": found})
    return failed


if __name__ == "__main__":
    sys.exit(main())
