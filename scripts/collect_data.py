"""Makes data/records.db and data/unseen.db from nothing, and docs/collection.md: what they hold and how noisy it is.

Usage: python scripts/collect_data.py [--per-model N] [--again N] [--budget TIME] [--fresh] [--page-only]
                                       [--also FILE,FILE [--also-per-model N] [--merge-only]]

The first store has the candidates of eight zoo networks, the other those of the four that nothing is ever learned
from. Some kernels are measured twice: that is how the noise is known. Stopped at any moment (Ctrl-C keeps the log of
the run too) and run again, it goes on where it was; `--fresh` begins anew. What is collected does not depend on a
predictor that is there already: plans are those of the analytical model and of the records so far. `--also` names
stores that this script made on other machines: a part of their records comes along after the runs
(scripts/other_machines.py), so that a predictor learns from several machines. Exit code 1 if the stores are not what
they should be: what was measured on this machine, and how large the first one is. Nothing else should run on the
machine meanwhile. By default 5,550 kernels and 940 of them again, all of the second store among them, and 240 with a
pool of one thread: at 2.5 to 3.8 a second that took 43 minutes (two cores of a Zen 4).
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from autofuse.records import Record, RecordStore

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
RECORDS = ROOT / "data" / "records.db"
UNSEEN = ROOT / "data" / "unseen.db"
#: What each run took: the page tells it.
LOG = ROOT / "docs" / "results" / "collection.json"
PAGE = ROOT / "docs" / "collection.md"
KEPT_BACK = ("efficientnet_b0", "yolov4_tiny", "vit_tiny", "shufflenet_v2")
#: Networks some of whose kernels are measured with a pool of one thread too: a convolutional one and a transformer.
ONE_THREAD = ("mobilenet_v1", "minilm_l6")
LEAST_RECORDS, MOST_MEGABYTES = 5000, 25.0
#: Of normalised latency between two measurements of one kernel: median and 95th percentile.
NOISE = (0.03, 0.10)
LEAST_RATE = 1.5


def collect(store: Path, networks: Sequence[str], options: argparse.Namespace, evaluation: bool) -> dict[str, Any]:
    """One run of `autofuse collect`: its counts, with the seconds that all of it took."""
    most = options.per_unseen if evaluation else options.per_model
    again = options.again_unseen if evaluation else options.again
    command = [
        sys.executable, "-m", "autofuse", "collect", *networks, "--db", str(store), "--json",
        "--configs", str(options.configs), "--explore", str(options.explore), "--again", str(again),
        "--per-model", str(most), "--lines", "30s", "--cost-model", "analytical",
    ]  # fmt: skip
    if options.threads:
        command += ["--threads", str(options.threads)]
    if options.budget:
        command += ["--budget", options.budget]
    if evaluation:
        command.append("--evaluation")
    begin = time.monotonic()
    run: subprocess.Popen[str] | None = None

    def end(*_: object) -> None:
        if run is not None:
            run.send_signal(signal.SIGINT)

    # What ends this script ends the collection, which keeps what it has and gives its counts. The handlers come first:
    # a signal that is ignored here (a shell's background job ignores interrupts) would be ignored there too.
    before = {number: signal.signal(number, end) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        run = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT, start_new_session=True)
        said, _ = run.communicate()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if run.returncode:
        raise SystemExit(run.returncode)
    counts = json.loads(said)
    failures = Counter(line.split("): ", 1)[-1].split(":", 1)[0] for line in counts.pop("failures"))
    keys = ("measured", "failed", "cached", "skipped", "left", "seconds", "interrupted")
    return {
        "store": store.name,
        **{key: counts[key] for key in keys},
        "failures": dict(sorted(failures.items())),
        "wall_seconds": time.monotonic() - begin,
        "configs": options.configs,
        "explore": options.explore,
        "per_model": most,
        "again": again,
        "threads": options.threads,
    }


def say(what: str) -> None:
    """A line of progress with the time of day."""
    print(f"{time.strftime('%H:%M:%S')} {what}", file=sys.stderr, flush=True)


def finish(store: Path) -> None:
    """Give unused space back and leave one file."""
    from autofuse.records import open_store

    with open_store(store) as opened:
        opened.compact()


def contents(path: Path) -> dict[str, Any]:
    """What a store holds, for the page; `rows`: the same for each hardware row that has records, by digest."""
    from autofuse.records import open_store
    from autofuse.records.machines import row_names
    from autofuse.records.verify import verify

    with open_store(path, readonly=True) as store:
        models = {w.key: store.models(w.key) for w in store.workloads()}
        rows = {}
        for digest, name in row_names(store.hardware()).items():
            records = list(store.records(digest))
            if records:
                rows[digest] = {"name": name, **row_contents(store, digest, records, models)}
        return {
            **store.stats().as_dict(),
            "megabytes": path.stat().st_size / 1e6,
            "rows": rows,
            "problems": list(verify(store)),
        }


def row_contents(
    store: RecordStore, digest: str, records: Sequence[Record], models: Mapping[str, Sequence[str]]
) -> dict[str, Any]:
    """What a store holds of one hardware row. models: workload → networks that contain it."""
    from autofuse.measure.jobs import MeasureLimits
    from autofuse.measure.passes import CAPPED, SETTLED, UNFINISHED, narrow
    from autofuse.records.noise import noise

    good = [r for r in records if r.ok]
    samples = sorted(len(r.samples) for r in good)
    ends = Counter(r.message if r.message in (SETTLED, CAPPED, UNFINISHED) else "" for r in good)
    workloads = {r.workload for r in records}
    return {
        "ok": len(good),
        "failures": dict(sorted(Counter(r.status for r in records if not r.ok).items())),
        "workloads": len(workloads),
        "records_of": dict(Counter(model for r in good for model in models[r.workload])),
        "workloads_of": dict(Counter(model for key in workloads for model in models[key])),
        "samples": samples[len(samples) // 2] if samples else 0,
        "timing": {
            "narrow": sum(narrow(r, MeasureLimits.confidence) for r in good),
            "settled": ends[SETTLED],
            "capped": ends[CAPPED],
            "unfinished": ends[UNFINISHED],
            "unsaid": ends[""],
        },
        "unchecked": sum(r.message.startswith("not checked") for r in good),
        "cold": sum(bool(r.cold_samples) for r in good),
        "noise": noise(store, digest).as_dict(),
    }


def main() -> int:
    """Collect into both stores, write the page, say what is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--configs", type=int, default=4, help="first configurations a group (default: %(default)s)")
    parser.add_argument("--explore", type=int, default=2, help="others a group (default: %(default)s)")
    parser.add_argument(
        "--per-model", type=int, default=620, help="most useful ones a network, no more (default: %(default)s)"
    )
    parser.add_argument("--per-unseen", type=int, default=160, help="the same for the second store (%(default)s)")
    parser.add_argument("--again", type=int, default=300, help="kernels measured twice (default: %(default)s)")
    parser.add_argument(
        "--again-unseen", type=int, default=10_000, help="the same of the second store, where plans are judged by the"
        " second time (default: all)",
    )  # fmt: skip
    parser.add_argument(
        "--one-thread", type=int, default=120,
        help="kernels of each of two networks measured with a pool of 1 too: other hardware (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=0, help="default: all processors")
    parser.add_argument("--budget", help="stop each store's run after this long, e.g. 2h")
    parser.add_argument("--networks", help="those of the first store, comma-separated (default: eight of the zoo)")
    parser.add_argument("--unseen", help="those of the second one (default: the other four)")
    parser.add_argument("--fresh", action="store_true", help="throw away what is there and begin anew")
    parser.add_argument(
        "--also", metavar="FILE[,FILE]", default="",
        help="stores that this script made on other machines: records of them go into the first store, those that are"
        " kept for evaluation into the second",
    )  # fmt: skip
    parser.add_argument(
        "--also-per-model", type=int, default=200,
        help="at most so many records of a network and a pool of threads there go into the first (%(default)s)",
    )  # fmt: skip
    parser.add_argument("--merge-only", action="store_true", help="measure nothing, only take over what --also names")
    parser.add_argument("--page-only", action="store_true", help="write the page from what is there")
    options = parser.parse_args()
    from collection_page import page
    from other_machines import fault_of, take_over

    from autofuse.frontend.zoo import names
    from autofuse.report.results import machine, write_json, write_text

    seen = options.networks.split(",") if options.networks else [n for n in names() if n not in KEPT_BACK]
    unseen = options.unseen.split(",") if options.unseen else list(KEPT_BACK)
    if set(seen) & set(unseen):
        parser.error("a network cannot be in both stores")
    others = [Path(name) for name in options.also.split(",") if name]
    if options.merge_only and (not others or options.fresh or options.page_only):
        parser.error("--merge-only is about --also, and neither about --fresh nor --page-only")
    for file in others:
        if file.resolve() in (RECORDS, UNSEEN):
            parser.error(f"--also is about stores of other machines, not about {file}")
        if fault := fault_of(file, seen, unseen):
            parser.error(fault)
    if options.fresh and not options.page_only:
        for path in (RECORDS, UNSEEN):
            for suffix in ("", "-wal", "-shm"):
                path.with_name(path.name + suffix).unlink(missing_ok=True)
        LOG.unlink(missing_ok=True)
    log: dict[str, Any] = json.loads(LOG.read_text(encoding="utf-8")) if LOG.exists() else {"runs": []}
    if not (options.page_only or options.merge_only):
        own = own_rows(options.threads)
        if log.get("hardware", own) != own:
            log["runs"] = []  # another machine's: its records stay, as another machine's
        log |= {"machine": machine(), "hardware": own}
        alone = argparse.Namespace(**{**vars(options), "threads": 1, "per_model": options.one_thread, "again": 0})
        runs = [(RECORDS, seen, options), (UNSEEN, unseen, options)]
        if options.one_thread:
            runs.append((RECORDS, [n for n in ONE_THREAD if n in seen] or seen[:2], alone))
        for path, networks, chosen in runs:
            path.parent.mkdir(exist_ok=True)
            say(f"{path.name}: {', '.join(networks)}: analysing, then measuring with {chosen.threads or 'all'} threads")
            run = collect(path, networks, chosen, evaluation=path == UNSEEN)
            finish(path)
            log["runs"].append(run)
            write_json(LOG, log)
            say(
                f"{path.name}: {run['measured']} measured, {run['failed']} failed, {run['cached']} already there,"
                f" {run['left']} left; took {run['wall_seconds'] / 60:.1f} min, {run['seconds'] / 60:.1f} of it timing"
            )
            if run["interrupted"]:
                return 130
    if others and not options.page_only:
        log.setdefault("hardware", own_rows(options.threads))
        log["also_per_model"] = options.also_per_model
        for name, added in take_over(others, RECORDS, UNSEEN, options.also_per_model).items():
            say(f"{name}: {added} records were new")
        write_json(LOG, log)
    stores = {path.name: contents(path) for path in (RECORDS, UNSEEN)}
    write_text(PAGE, page(log, stores))
    print(f"wrote {PAGE}")
    missed = faults(log, stores)
    for line in missed:
        print(line, file=sys.stderr)
    return int(bool(missed))


def own_rows(threads: int) -> list[str]:
    """The digests of this machine's hardware rows: with the pool that most is measured with, and with one of 1."""
    from autofuse.target import hardware_row, resolve

    return list(dict.fromkeys(hardware_row(resolve("llvm", count)).digest for count in (threads or None, 1)))


def faults(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """What is not as it should be, one line each: the log's machine is meant, of the stores all."""
    records, unseen = stores[RECORDS.name], stores[UNSEEN.name]
    found = []
    ok = sum(row["ok"] for row in own_of(log, records).values())
    if ok < LEAST_RECORDS:
        found.append(f"{RECORDS.name}: {ok} records of this machine, at least {LEAST_RECORDS} were wanted")
    if records["megabytes"] > MOST_MEGABYTES:
        found.append(f"{RECORDS.name}: {records['megabytes']:.1f} MB, at most {MOST_MEGABYTES:g} were wanted")
    if not unseen["evaluation_only"] or records["evaluation_only"]:
        found.append("the mark of the store that is kept for evaluation is missing, or in the wrong store")
    for name, store in stores.items():
        found += [f"{name}: {problem}" for problem in store["problems"][:5]]
        spreads = [row["noise"]["normalised"] for row in own_of(log, store).values() if row["noise"]["pairs"]]
        if not spreads or any(s["median"] > NOISE[0] or s["p95"] > NOISE[1] for s in spreads):
            found.append(f"{name}: the noise is not within {100 * NOISE[0]:g} % and {100 * NOISE[1]:g} %")
    done = sum(run["measured"] + run["failed"] for run in log["runs"])
    seconds = sum(run["seconds"] for run in log["runs"])
    if seconds and done / seconds < LEAST_RATE:
        found.append(f"{done / seconds:.2f} kernels a second, at least {LEAST_RATE:g} were wanted")
    return found


def own_of(log: Mapping[str, Any], store: Mapping[str, Any]) -> dict[str, Any]:
    """The rows of a store's `contents` that are the log's machine; all where the log does not say which."""
    own = log.get("hardware")
    return {digest: row for digest, row in store["rows"].items() if own is None or digest in own}


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    sys.exit(main())
