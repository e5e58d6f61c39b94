"""What scripts/bench_kernels.py and scripts/bench_defaults.py measured, and docs/kernels-notes.md → docs/kernels.md."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(Path(__file__).resolve().parent))
from raw_results import Place, one_machine  # noqa: E402

#: Raw results of scripts/bench_kernels.py, in the folder of their machine.
FILE = "kernels.json"
NOTES = ROOT / "docs" / "kernels-notes.md"
OURS, PEERS = "autofuse", ("onnxruntime", "torch")
#: Operations of an operator from which on its share of sgemm's rate is a goal of its own: 85 %.
LARGE = 2e8
GOAL = 0.85
Raw = Mapping[str, Any]


def write_page(place: Place) -> Path:
    """Write the page from all results that are there of a machine; its path."""
    import bench_defaults

    from autofuse.report.results import write_text

    raw = place.raw / FILE
    stored: dict[str, Any] = json.loads(raw.read_text(encoding="utf-8")) if raw.exists() else {}
    defaults = list(bench_defaults.results(place).values())
    one_machine([*([stored] if stored else []), *defaults])
    notes = NOTES.read_text(encoding="utf-8").rstrip("\n") if NOTES.exists() else ""
    write_text(place.page("kernels"), page(stored, bench_defaults.section(defaults), notes))
    return place.page("kernels")


def page(stored: Raw, defaults: str = "", notes: str = "") -> str:
    """The whole page: what the rows say together, the rows, the section on defaults, and the notes."""
    from autofuse.report.results import machine_text

    rows: Mapping[str, Raw] = stored.get("rows", {})
    if not rows:
        parts = ["# Kernels", "Nothing was measured yet: run `python scripts/bench_kernels.py`.", defaults, notes]
        return "\n\n".join(part.rstrip("\n") for part in parts if part) + "\n"
    parts = [
        "# Kernels",
        "Written by `scripts/bench_kernels.py`; not to be edited. Every distinct convolution, product, pool, reduction,"
        " normalisation, softmax, resize and lookup of the zoo's networks at batch 1, each a model of its own with no"
        " more than its bias; then some with what follows them in the networks, and attention."
        + (f" {len(rows)} of {stored['listed']} are measured so far." if len(rows) < stored["listed"] else ""),
        machine_text(stored["machine"]),
        f"{stored['threads']} threads. autofuse, ONNX Runtime and PyTorch's operators take turns round by round, each"
        " in a process of its own, their threads free to spin between the calls of a turn. Times are medians of whole"
        " calls, ± half the distance between the quartiles; ratios are medians over the rounds, ± the same: above 1"
        " we are faster. Calls are part of the time: the kind 'call' is one with nothing in it. Inputs and outputs are"
        " NCHW for everybody, so that changing the layout is part too;"
        " convolutions whose result has their data's shape stand several times in a row, and the time is that of one."
        " Operations are those of the definition, so that Winograd can exceed sgemm, which is measured in the same"
        " rounds (numpy's BLAS, a product a thread) and moves as much as everything on this machine: see its spread"
        " below. Shares are medians over the rounds that both were in; 'of best' is our least time against sgemm's"
        " least in the same rounds. The roofline is the larger of two times: the operations at sgemm's rate, and"
        " inputs, weights and outputs at the rate of copying 64 MB; what stays in a cache can beat it.",
        "## By kind\n\n" + _kinds(rows),
        "## Large operators\n\n" + _large(rows),
        "## Every operator\n\n" + _listing([(n, r) for n, r in rows.items() if not r["followed"]]),
    ]
    if followed := [(n, r) for n, r in rows.items() if r["followed"]]:
        parts.append("## With what follows them\n\n" + _listing(followed))
    return "\n\n".join(part.rstrip("\n") for part in (*parts, defaults, notes) if part) + "\n"


def rates(row: Raw, threads: int) -> tuple[float, float]:
    """sgemm's operations and copied bytes a second, by the probes of the same rounds."""
    from autofuse.bench.peers.probe import ARITHMETIC_SIZE, MEMORY_BYTES

    probes = row["probes"]
    sgemm = threads * 2 * ARITHMETIC_SIZE**3 / (1e-3 * probes["arithmetic"])
    return sgemm, 2 * MEMORY_BYTES / (1e-3 * probes["memory"])


def shares(row: Raw) -> tuple[float, float, float]:
    """Our operations a second, and our shares of sgemm's rate and of the roofline."""
    sgemm, memory = rates(row, row["threads"])
    seconds, probes = 1e-6 * row["engines"][OURS]["median_us"], row["probes"]
    computing, moving = row["flops"] / sgemm / seconds, row["bytes"] / memory / seconds
    # Round by round where that is known: what slows a whole round is in both.
    if "arithmetic_over_ours" in probes:
        computing *= probes["arithmetic_over_ours"] * 1e3 * seconds / probes["arithmetic"]
        moving *= probes["memory_over_ours"] * 1e3 * seconds / probes["memory"]
    return row["flops"] / seconds, computing, max(computing, moving)


def least_share(row: Raw) -> float | None:
    """Our operations a second in our least time, of sgemm's in its least; None where the leasts are not known."""
    ours, sgemm = row["engines"][OURS].get("least_us"), row["probes"].get("arithmetic_least")
    if ours is None or sgemm is None:
        return None
    return (
        shares(row)[0]
        * row["engines"][OURS]["median_us"]
        / ours
        / (rates(row, row["threads"])[0] * row["probes"]["arithmetic"] / sgemm)
    )


def is_large(row: Raw) -> bool:
    """Whether its share of sgemm's rate is a goal."""
    return _timed(row) and row["flops"] / row["repeat"] >= LARGE


def _winograd(row: Raw) -> bool:
    return any(text.startswith("winograd[") for text in row["configurations"])


def _kinds(rows: Mapping[str, Raw]) -> str:
    """What the rows say together, by kind."""
    from autofuse.report.results import geometric_mean, number, table

    kinds = list(dict.fromkeys(r["kind"] for r in rows.values() if not r["followed"]))
    lines = []
    for kind in (*kinds, "all", "with what follows"):
        some = [r for r in rows.values() if r["followed"] == (kind == "with what follows")
                and (kind in ("all", "with what follows") or r["kind"] == kind)]  # fmt: skip
        if not some:
            continue
        cells = [kind, str(len(some))]
        for peer in PEERS:
            ratios = [r["engines"][peer].get("ratio") for r in some if "error" not in r["engines"][OURS]]
            known = [ratio for ratio in ratios if ratio is not None]
            cells += [number(geometric_mean(known)), number(min(known, default=None)),
                      f"{sum(ratio < 1.0 for ratio in known)} of {len(known)}"]  # fmt: skip
        timed = [shares(r) for r in some if _timed(r)]
        for column in (1, 2):
            cells.append(number(statistics.median(s[column] for s in timed) if timed else None))
        lines.append(cells)
    headings = ["kind", "operators"]
    for peer in PEERS:
        headings += [f"{peer} / ours", "least", "slower than it"]
    return table([*headings, "of sgemm, median", "of roofline"], lines)


def _timed(row: Raw) -> bool:
    return "median_us" in row["engines"][OURS] and "error" not in row["engines"][OURS]


def _large(rows: Mapping[str, Raw]) -> str:
    """How many of the large operators reach the goal, by kind of arithmetic, and those that do not."""
    from autofuse.report.results import number

    large = {n: r for n, r in rows.items() if is_large(r)}
    lines = []
    for what, some in (
        ("Winograd convolutions, which need 2.25 to 4 times fewer multiplications than their operations say",
         [r for r in large.values() if _winograd(r)]),
        ("direct convolutions and products", [r for r in large.values() if not _winograd(r)]),
    ):  # fmt: skip
        if not some:
            continue
        best = [share for r in some if (share := least_share(r)) is not None]
        known = f", {sum(s >= GOAL for s in best)} of {len(best)} least against least" if best else ""
        lines.append(
            f"- {len(some)} {what}: {sum(shares(r)[1] >= GOAL for r in some)} reach {100 * GOAL:.0f} % of sgemm's rate"
            f" in the same rounds (median {number(statistics.median(shares(r)[1] for r in some))}){known}"
            + (f" (median {number(statistics.median(best))})." if best else ".")
        )
    sgemm = sorted(rates(r, r["threads"])[0] / 1e9 for r in large.values())
    if sgemm:
        lines.append(
            f"- sgemm meanwhile: {sgemm[0]:.0f} to {sgemm[-1]:.0f} GFLOP/s, median {statistics.median(sgemm):.0f}, by"
            " operator: the machine's neighbours, not the operators, make that difference."
        )
    far = sorted((n for n in large if shares(large[n])[1] < GOAL), key=lambda n: shares(large[n])[1])
    text = f"{len(large)} operators have {LARGE / 1e6:.0f} million operations or more.\n\n" + "\n".join(lines)
    return text + ("\n\nUnder the goal:\n\n" + _listing([(n, large[n]) for n in far]) if far else "")


def _listing(rows: Sequence[tuple[str, Raw]]) -> str:
    """One line an operator."""
    from autofuse.report.results import table

    headings = [
        "operator", "networks", "µs", *(f"{p} / ours" for p in PEERS), "GFLOP/s", "of sgemm", "of best",
        "of roofline", "kernels", "schedules",
    ]  # fmt: skip
    return table(headings, [_cells(name, row) for name, row in rows])


def _cells(name: str, row: Raw) -> list[str]:
    from autofuse.report.results import number

    ours = row["engines"][OURS]
    networks = ", ".join(row["networks"]) or "–"
    if not _timed(row):
        return [name, networks, f"failed: {ours.get('error', 'not timed')}", *["–"] * 8]
    peers = []
    for peer in PEERS:
        entry = row["engines"][peer]
        spread = f" ±{number(0.5 * entry['ratio_iqr'])}" if "ratio" in entry else ""
        peers.append(f"{number(entry['ratio'])}{spread}" if spread else f"failed: {entry.get('error', 'not timed')}")
    rate, sgemm, roof = shares(row)
    repeat = row["repeat"]
    return [
        name, networks, f"{ours['median_us'] / repeat:.1f} ±{0.5 * ours['iqr_us'] / repeat:.1f}", *peers,
        number(rate / 1e9, "{:.1f}"), number(sgemm), number(least_share(row)), number(roof), str(row["kernels"]),
        "; ".join(f"`{text}`" for text in row["configurations"]) or "–",
    ]  # fmt: skip
