"""Prints how long a record store of a million records takes to open and to look things up in: `bench_records.py`.

The records are spread over workloads, configurations and two machines as those of a collection are. They are written
in bulk, then the store is opened and asked as the search asks it. The file is removed afterwards unless `--keep`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from autofuse.records import Identity, Record, RecordedHardware, SqliteStore, Workload

FAMILIES = ("conv2d", "depthwise", "elementwise", "matmul", "rows")
CONFIGURATIONS = 25
MACHINES = 2
SAMPLES = 20
OPENING = """
import sys, time
from autofuse.records import open_store
begin = time.perf_counter()
import sqlite_utils, autofuse.records.sqlite
loaded = time.perf_counter()
store = open_store(sys.argv[1])
print(time.perf_counter() - loaded, loaded - begin)
"""


def identity(n: int) -> Identity:
    """The n-th kernel."""
    place, config = divmod(n, CONFIGURATIONS)
    workload, machine = divmod(place, MACHINES)
    name = FAMILIES[workload % len(FAMILIES)]
    return Identity(f"{workload:032x}", f"hw{machine}", name, 1, f"mt={config},nt=2,parallel=1", "NCHW8c,->NCHW8c")


def record(n: int) -> Record:
    """The record of the n-th kernel; one of fifty has failed."""
    i = identity(n)
    base = 1e-5 * (1 + n % 97)
    samples = tuple(base * (1 + k / 100) for k in range(SAMPLES))
    references = {"product": (1e-4,) * SAMPLES, "memory": (1e-3,) * SAMPLES}
    created = f"2025-01-{1 + n % 28:02d}T00:00:00.{n % 1000000:06d}Z"
    if n % 50 == 0:
        return Record(i.workload, i.hardware, i.family, 1, i.config, i.layouts, "crashed", "SIGSEGV", created=created)
    return Record(
        i.workload, i.hardware, i.family, 1, i.config, i.layouts, "ok", "", samples, references, "product",
        tvm_version="0.27", autofuse_version="0.1", tir_digest=f"{n:016x}", created=created,
    )  # fmt: skip


def fill(path: Path, count: int, batch: int = 20_000) -> None:
    """A store of `count` records."""
    with SqliteStore(path) as store:
        machines = [RecordedHardware(f"hw{m}", f"machine {m}") for m in range(MACHINES)]
        for first in range(0, count, batch):
            numbers = range(first, min(count, first + batch))
            keys = dict.fromkeys(identity(n).workload for n in numbers)
            workloads = [(Workload(key, f"relu float32[{key}]"), ("a network",)) for key in keys]
            store.add_all(machines, workloads, [], [record(n) for n in numbers])
            print(f"\r{numbers[-1] + 1} records", end="", file=sys.stderr, flush=True)
        print(file=sys.stderr)
        for machine in machines:
            store.refresh_baseline(machine.digest)


def timed(calls: list[Callable[[], Any]]) -> dict[str, float]:
    """Microseconds a call, each made once."""
    times = []
    for call in calls:
        begin = time.perf_counter()
        call()
        times.append((time.perf_counter() - begin) * 1e6)
    return {"median": statistics.median(times), "p99": statistics.quantiles(times, n=100)[98]}


def opening(path: Path) -> tuple[float, float]:
    """Milliseconds to open the store in a process of its own, and to load modules before that; the least of five."""
    runs = [
        subprocess.run([sys.executable, "-c", OPENING, str(path)], capture_output=True, text=True) for _ in range(5)
    ]
    times = [tuple(map(float, run.stdout.split())) for run in runs]
    return min(t[0] for t in times) * 1e3, min(t[1] for t in times) * 1e3


def main() -> None:
    """Fill, ask, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--keep", metavar="FILE", help="use this store, fill it if it is not there, and keep it")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    chooser = random.Random(7)
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        path = Path(given.keep) if given.keep else Path(folder) / "records.db"
        begin = time.perf_counter()
        if not path.exists():
            fill(path, given.records)
        filled = time.perf_counter() - begin
        opened, loaded = opening(path)
        result: dict[str, Any] = {
            "records": given.records,
            "megabytes": os.path.getsize(path) / 1e6,
            "fill_seconds": filled,
            "open_ms": opened,
            "load_modules_ms": loaded,
        }
        with SqliteStore(path) as store:
            known = [identity(chooser.randrange(given.records)) for _ in range(2000)]
            absent = [Identity(i.workload, i.hardware, i.family, 1, "mt=99", i.layouts) for i in known]
            result["lookup_one_us"] = timed([lambda i=i: store.lookup([i]) for i in known])
            result["lookup_absent_us"] = timed([lambda i=i: store.lookup([i]) for i in absent])
            result["lookup_each_of_2000_us"] = timed([lambda: store.lookup(known)] * 3)["median"] / len(known)
            result["find_us"] = timed([lambda i=i: store.find(i) for i in known])
            result["best_us"] = timed([lambda i=i: store.best(i.workload, i.hardware) for i in known[:300]])
            extra = [record(given.records + n) for n in range(200)]
            store.add_all([], [(Workload(r.workload, "relu"), ()) for r in extra], [], [])
            result["add_us"] = timed([lambda r=r: store.add(r) for r in extra])
            store.drop(r.digest for r in extra)
    if given.json:
        print(json.dumps(result, indent=2))
        return
    for name, value in result.items():
        shown = f"{value['median']:.1f} (99 %: {value['p99']:.1f})" if isinstance(value, dict) else f"{value:.4g}"
        print(f"{name:26s}{shown}")


if __name__ == "__main__":
    main()
