"""Compiles random models and compares them with ONNX Runtime: wrong numbers, crashes, hangs, tracebacks are findings.

Usage: python scripts/fuzz.py [--seeds FIRST:LAST] [--seconds S] [--strategies a,b] [--layers a,b] [--json]

Models (tests/random_models.py) are compiled with each strategy in a child process, so that a crash is one finding
more; `random` is dp with costs drawn at random, which builds kernels that no cost model would choose. An error with
one clear line is a refusal, no finding. Of a finding the model is written as an ONNX file, and how to repeat it told.
Exit code 1 when there are findings.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import selectors
import subprocess
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
STRATEGIES = ("dp", "random")
#: Seconds a model may take with one strategy before it counts as hanging.
PATIENCE = 120.0
#: Models a child compiles before the next takes over.
SHARE = 20
Row = dict[str, Any]


def one(seed: int, strategy: str, layers: Sequence[str]) -> Row:
    """What became of a model: `outcome` is fine, refused, or a finding: wrong, error."""
    from random_checks import check
    from random_models import random_model

    from autofuse.errors import AutofuseError

    model = random_model(seed, layers)
    row: Row = {"seed": seed, "strategy": strategy, "nodes": len(model.model.graph.node), "outcome": "fine"}
    began = time.perf_counter()
    try:
        wrong = check(model, strategy)
        if wrong:
            row.update(outcome="wrong", why=wrong)
    except AutofuseError as error:
        row.update(outcome="refused" if "\n" not in str(error) else "error", why=str(error))
    except Exception as error:
        row.update(outcome="error", why=f"{type(error).__name__}: {str(error).strip()[-300:]}")
        row["where"] = traceback.format_exc()[-4000:]
    row["seconds"] = round(time.perf_counter() - began, 2)
    return row


def save(seed: int, layers: Sequence[str], folder: Path) -> Path:
    import onnx
    from random_models import random_model

    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"random{seed}.onnx"
    unfinished = path.with_suffix(".part")
    onnx.save(random_model(seed, layers).model, unfinished)
    return unfinished.replace(path)


def child(jobs: Sequence[tuple[int, str]], layers: Sequence[str]) -> None:
    """Do the jobs, a line of JSON for each when it begins and when it is done."""
    for seed, strategy in jobs:
        print(json.dumps({"begins": [seed, strategy]}), flush=True)
        print(json.dumps(one(seed, strategy, layers)), flush=True)


class Child:
    """A process that does jobs; `rows` ends early where it crashes or hangs, `at` is then the job."""

    def __init__(self, jobs: Sequence[tuple[int, str]], options: argparse.Namespace) -> None:
        command = [sys.executable, __file__, "--child", json.dumps(jobs)]
        command += ["--layers", ",".join(options.layers)]
        environment = {**os.environ, "TVM_NUM_THREADS": "2", "TVM_BIND_THREADS": "0"}
        self.options = options
        self.at: tuple[int, str] | None = None
        self.why = ""
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env=environment)

    def rows(self) -> Iterator[Row]:
        out = self.process.stdout
        assert out is not None
        pending = b""
        with selectors.DefaultSelector() as ready:
            ready.register(out, selectors.EVENT_READ)
            while True:
                if not ready.select(self.options.patience):
                    self.why = f"hangs: nothing after {self.options.patience:g} s"
                    self.process.kill()
                    break
                got = os.read(out.fileno(), 65536)
                if not got:
                    break
                *lines, pending = (pending + got).split(b"\n")
                for line in lines:
                    if not line.startswith(b"{"):
                        continue
                    row = json.loads(line)
                    if "begins" in row:
                        self.at = (row["begins"][0], row["begins"][1])
                    else:
                        self.at = None
                        yield row
        code = self.process.wait()
        out.close()
        self.why = self.why or f"crashes: exit code {code}"

    def stop(self) -> None:
        self.process.kill()
        self.process.wait()


def run(options: argparse.Namespace) -> Iterator[Row]:
    """Rows of all jobs until the time is over."""
    end = time.monotonic() + options.seconds
    first, last = options.seeds
    jobs = [(seed, strategy) for seed in range(first, last) for strategy in options.strategies]
    while jobs and time.monotonic() < end:
        worker = Child(jobs[: SHARE * len(options.strategies)], options)
        done = 0
        try:
            for row in worker.rows():
                done += 1
                yield row
                if time.monotonic() >= end:
                    return
        finally:
            worker.stop()
        if worker.at:
            done += 1
            yield {"seed": worker.at[0], "strategy": worker.at[1], "outcome": "crash", "why": worker.why}
        elif not done:
            raise SystemExit(f"the child process cannot start: {worker.why}; run one job with --child to see why")
        jobs = jobs[done:]


def repeat(row: Row, options: argparse.Namespace) -> str:
    layers = f" --layers {','.join(options.layers)}" if options.layers else ""
    return f"python scripts/fuzz.py --seeds {row['seed']} --strategies {row['strategy']}{layers}"


def report(options: argparse.Namespace) -> int:
    counts: Counter[str] = Counter()
    findings = 0
    for row in run(options):
        counts[row["outcome"]] += 1
        if row["outcome"] not in ("fine", "refused"):
            findings += 1
            row["repeat"] = repeat(row, options)
            row["file"] = str(save(row["seed"], options.layers, options.folder))
        if options.json:
            print(json.dumps(row), flush=True)
        elif "repeat" in row or (row["outcome"] == "refused" and options.refusals):
            print(f"\rseed {row['seed']} {row['strategy']}: {row['outcome']}: {row['why']}", flush=True)
            if "repeat" in row:
                print(f"  {row['file']}; repeat: {row['repeat']}", flush=True)
        if not options.json and sys.stderr.isatty():
            print(f"\rseed {row['seed']}: {dict(counts)} ", end="", file=sys.stderr, flush=True)
    if not options.json:
        print(f"\r{sum(counts.values())} compiled: {', '.join(f'{n} {name}' for name, n in counts.items())}")
    return 1 if findings else 0


def seeds(text: str) -> tuple[int, int]:
    first, _, last = text.partition(":")
    try:
        made = int(first), int(last) if last else int(first) + 1
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text}: give FIRST:LAST or one number") from None
    if not 0 <= made[0] < made[1]:
        raise argparse.ArgumentTypeError(f"{text}: FIRST is 0 or more and less than LAST")
    return made


def names(text: str) -> list[str]:
    return [name for name in text.split(",") if name]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=seeds, default=(0, 100), help="FIRST:LAST, or one number")
    parser.add_argument("--seconds", type=float, default=math.inf, help="begin nothing after that long")
    parser.add_argument("--strategies", type=names, default=list(STRATEGIES), help="of compile, and `random`")
    parser.add_argument("--layers", type=names, default=[], help="the layers to use (tests/random_layers.py)")
    parser.add_argument("--patience", type=float, default=PATIENCE, help="seconds until a model counts as hanging")
    parser.add_argument("--folder", type=Path, default=Path("fuzz-findings"), help="where findings are written")
    parser.add_argument("--json", action="store_true", help="a line of JSON for each model and strategy")
    parser.add_argument("--refusals", action="store_true", help="print refusals too")
    parser.add_argument("--child", type=json.loads, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child is not None:
        child(options.child, options.layers)
        return 0
    from random_layers import LAYERS

    from autofuse.search.strategies import NAMES

    unknown = [name for name in options.layers if name not in LAYERS]
    unknown += [name for name in options.strategies if name not in NAMES and name != "random"]
    if unknown:
        parser.error(f"{unknown[0]}: no such layer or strategy; layers: {', '.join(LAYERS)}")
    return report(options)


if __name__ == "__main__":
    raise SystemExit(main())
