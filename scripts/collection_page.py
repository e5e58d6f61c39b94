"""What the stores of data/ hold and how long it took (scripts/collect_data.py) → docs/collection.md."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from autofuse.report.results import machine_text, number, table


def page(log: Mapping[str, Any], stores: Mapping[str, Mapping[str, Any]]) -> str:
    """The whole page, from the log of the runs and what each store holds."""
    parts = [
        "# The collection\n",
        "Written by `scripts/collect_data.py`; not to be edited.\n",
        machine_text(log["machine"]) + "\n" if "machine" in log else "",
        "`data/records.db` has candidates of eight zoo networks, `data/unseen.db` those of the other four: it is marked"
        " as kept for evaluation, training and tuning refuse it, and its records cannot be merged into another store."
        " `python scripts/collect_data.py --fresh` makes both again from nothing; without `--fresh` it goes on where it"
        " was stopped.\n",
        "## What is there\n",
        contents_table(stores),
        networks_table(stores),
        families_table(stores),
        "## How the timing of its kernels ended\n",
        "A kernel is timed in up to five passes, seconds and minutes apart, until one has found the same time within"
        " 3 % and the interval is that narrow too (`docs/records.md`): settled. Beside that, for how many the 95 %"
        " confidence interval of the ratio to the reference, over all samples, hot and cold, is within ±3 %. Passes"
        " that a run was too short for are"
        " made when it is started again; records from before this was kept do not say how their timing ended.\n",
        timing_table(stores),
        "## How long it took\n",
        runs_table(log["runs"]),
        "## Noise\n",
        "Kernels that were measured twice, the second time after all others: differences of the two, relative to their"
        " mean. Normalised: over the reference kernel's time in the same moment. Wanted: normalised latency under 3 %"
        " (median) and 10 % (95th percentile).\n",
        *(f"`data/{name}`\n\n{noise_table(store['noise'])}" for name, store in stores.items()),
        "How well the times of a plan's kernels tell the plan's own time is what `scripts/bench_plans.py` measures,"
        " into docs/plans.md.\n",
    ]
    return "\n".join(part for part in parts if part)


def contents_table(stores: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a store."""
    rows = [
        [
            f"`data/{name}`",
            str(store["ok"]),
            ", ".join(f"{count} {status}" for status, count in store["failures"].items()) or "0",
            str(store["workloads"]),
            str(store["cold"]),
            str(store["unchecked"]),
            str(store["samples"]),
            number(store["megabytes"], "{:.1f}"),
        ]
        for name, store in stores.items()
    ]
    headings = ["store", "records", "failures", "workloads", "with cold samples", "unchecked", "samples, median", "MB"]
    return table(headings, rows)


def timing_table(stores: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a store: successful records by how their timing ended, and those whose interval is narrow."""
    keys = ("settled", "capped", "unfinished", "unsaid", "narrow")
    rows = [
        [f"`data/{name}`", *(f"{store['timing'][key]} of {store['ok']}" for key in keys)]
        for name, store in stores.items()
    ]
    headings = ["store", "settled", "not settled in five passes", "passes left", "not said", "interval within 3 %"]
    return table(headings, rows)


def networks_table(stores: Mapping[str, Mapping[str, Any]]) -> str:
    """One row a network; what several networks share counts for each."""
    rows = [
        [model, f"`{name}`", str(store["workloads_of"].get(model, 0)), str(store["records_of"].get(model, 0))]
        for name, store in stores.items()
        for model in store["models"]
    ]
    return table(["network", "store", "workloads", "records"], rows)


def families_table(stores: Mapping[str, Mapping[str, Any]]) -> str:
    """Records of each family and version, failures too."""
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
