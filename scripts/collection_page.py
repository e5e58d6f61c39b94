"""What the stores of data/ hold and how long it took (scripts/collect_data.py) → docs/collection.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofuse.report.results import machine_text, number, table


def page(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page, from the log of the runs and what each store holds."""
    others = other_names(log, stores)
    parts = [
        "# The collection\n",
        "Written by `scripts/collect_data.py`; not to be edited.\n",
        machine_text(log["machine"]) + "\n" if "machine" in log else "",
        "`data/records.db` has candidates of eight zoo networks, `data/unseen.db` those of the other four: it is marked"
        " as kept for evaluation, training and tuning refuse it, and its records cannot be merged into another store."
        " `python scripts/collect_data.py --fresh` makes both again from nothing; without `--fresh` it goes on where it"
        " was stopped.\n",
        others_text(log, others) if others else "",
        "## What is there\n",
        ", ".join(f"`data/{name}`: {number(s['megabytes'], '{:.1f}')} MB" for name, s in stores.items()) + ".\n",
        contents_table(log, stores),
        networks_table(log, stores),
        families_table(stores),
        "## How the timing of its kernels ended\n",
        "A kernel is timed in up to five passes, seconds and minutes apart, until one has found the same time within"
        " 3 % and the interval is that narrow too (`docs/records.md`): settled. Beside that, for how many the 95 %"
        " confidence interval of the ratio to the reference, over all samples, hot and cold, is within ±3 %. Passes"
        " that a run was too short for are"
        " made when it is started again; records from before this was kept do not say how their timing ended.\n",
        timing_table(log, stores),
        "## How long it took\n",
        runs_table(log["runs"]),
        "## Noise\n",
        "Kernels that were measured twice, the second time after all others: differences of the two, relative to their"
        " mean. Normalised: over the reference kernel's time in the same moment. Wanted: normalised latency under 3 %"
        " (median) and 10 % (95th percentile).\n",
        *(
            f"`data/{name}`, {row['name']}\n\n{noise_table(row['noise'])}"
            for name, row in rows_of(log, stores)
            if row["noise"]["pairs"]
        ),
        "How well the times of a plan's kernels tell the plan's own time is what `scripts/bench_plans.py` measures,"
        " into docs/plans.md.\n",
    ]
    return "\n".join(part for part in parts if part)


def digests(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Hardware row → name: the log's machine first, then by how much there is of a row."""
    own = log.get("hardware") or ()
    count: dict[str, int] = {}
    names: dict[str, str] = {}
    for store in stores.values():
        for digest, row in store["rows"].items():
            count[digest] = count.get(digest, 0) + row["ok"]
            names[digest] = row["name"]
    return {digest: names[digest] for digest in sorted(names, key=lambda d: (d not in own, -count[d], d))}


def rows_of(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, Mapping[str, Any]]]:
    """A store's name with what it holds of a hardware row, for all stores and rows."""
    order = digests(log, stores)
    return [(name, store["rows"][d]) for name, store in stores.items() for d in order if d in store["rows"]]


def other_names(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """The names of hardware rows that are not the log's machine; none where the log does not say which it is."""
    own = log.get("hardware")
    return [] if own is None else [name for digest, name in digests(log, stores).items() if digest not in own]


def others_text(log: Mapping[str, Any], others: Sequence[str]) -> str:
    """What records of other machines are there, and why."""
    most = log.get("also_per_model")
    part = f" In `data/records.db` at most {most} of each network and row are theirs." if most else ""
    return (
        f"Records of {', '.join(others)} were measured by the same script on another machine and taken over"
        f" (`--also`): a predictor learns from them too, and is tested on them.{part} How long it took, and what is"
        " wanted of the stores, is about the machine above alone.\n"
    )


def contents_table(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a store and hardware row."""
    rows = [
        [
            f"`data/{name}`, {row['name']}",
            str(row["ok"]),
            ", ".join(f"{count} {status}" for status, count in row["failures"].items()) or "0",
            str(row["workloads"]),
            str(row["cold"]),
            str(row["unchecked"]),
            str(row["samples"]),
        ]
        for name, row in rows_of(log, stores)
    ]
    headings = ["store", "records", "failures", "workloads", "with cold samples", "unchecked", "samples, median"]
    return table(headings, rows)


def timing_table(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a store and hardware row: records by how their timing ended, and those whose interval is narrow."""
    keys = ("settled", "capped", "unfinished", "unsaid", "narrow")
    rows = [
        [f"`data/{name}`, {row['name']}", *(f"{row['timing'][key]} of {row['ok']}" for key in keys)]
        for name, row in rows_of(log, stores)
    ]
    headings = ["store", "settled", "not settled in five passes", "passes left", "not said", "interval within 3 %"]
    return table(headings, rows)


def networks_table(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a network: records and workloads by hardware row; what several networks share counts for each."""
    order = digests(log, stores)

    def cell(row: Mapping[str, Any] | None, model: str) -> str:
        records = row["records_of"].get(model, 0) if row else 0
        return f"{records} of {row['workloads_of'].get(model, 0)} workloads" if row and records else "0"

    rows = [
        [model, f"`{name}`", *(cell(store["rows"].get(digest), model) for digest in order)]
        for name, store in stores.items()
        for model in store["models"]
    ]
    return table(["network", "store", *(f"records, {name}" for name in order.values())], rows)


def families_table(stores: Mapping[str, Mapping[str, Any]]) -> str:
    """Records of each family and version, failures too, whatever the hardware."""
    names = sorted({family for store in stores.values() for family in store["families"]})
    rows = [[name, *(str(store["families"].get(name, 0)) for store in stores.values())] for name in names]
    return table(["family, version", *(f"`{name}`" for name in stores)], rows)


def runs_table(runs: Sequence[Mapping[str, Any]]) -> str:
    """One row a run of `autofuse collect`, and all together."""

    def row(name: str, run: Mapping[str, Any]) -> list[str]:
        done = run["measured"] + run["failed"]
        return [
            name,
            str(run["measured"]),
            str(run["failed"]),
            number(run["seconds"] / 60, "{:.1f}"),
            number(done / run["seconds"] if run["seconds"] else None),
            number((run["wall_seconds"] - run["seconds"]) / 60, "{:.1f}"),
            number(run["wall_seconds"] / 60, "{:.1f}"),
        ]

    keys = ("measured", "failed", "seconds", "wall_seconds")
    whole = {key: sum(run[key] for run in runs) for key in keys}
    named = [
        row(
            f"`{r['store']}`, {r['configs']} first and {r['explore']} others a group, {r['per_model']} a network"
            + (f", {r['threads']} thread" if r.get("threads") else ""),
            r,
        )
        for r in runs
    ]
    return table(
        ["run", "measured", "failed", "measuring, min", "kernels a second", "analysing, min", "all, min"],
        [*named, row("all", whole)],
    )


def noise_table(report: Mapping[str, Any]) -> str:
    """By family and over all."""

    def share(value: float | None) -> str:
        return number(None if value is None else 100 * value, "{:.2f} %")

    rows = [
        [name, str(spread["kernels"]), *(share(spread[kind][key]) for kind in kinds for key in ("median", "p95"))]
        for kinds in (("normalised", "latency", "cold"),)
        for name, spread in [*sorted(report["families"].items()), ("all", report)]
    ]
    headings = ["family", "kernels", "median", "95 %", "plain, median", "plain, 95 %", "cold, median", "cold, 95 %"]
    return table(headings, rows)
