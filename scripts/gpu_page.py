"""Resources of GPU kernels (tests/gpu_code/resources.json) → the Markdown page docs/dcu-kernels.md. Nothing timed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from autofuse.report.results import table

Row = Mapping[str, Any]
#: What a compute unit of gfx906 holds.
_WAVES = 40
# What is said of a kernel that keeps intermediate results in memory which the host would have to give.
_PARAMETERS = "more than the function's parameters"


def page(content: Mapping[str, Any]) -> str:
    """The whole page."""
    networks = content["networks"]
    parts = [
        _HEAD.format(target=content["target"], waves=_WAVES), _summary(networks), _TVM,
        _whole(networks, content["tvm"]), _OFFERED, _estimates(content["offered"]),
    ]  # fmt: skip
    for network, rows in networks.items():
        parts.append(f"## {network}\n\n{_kernels(rows)}")
    return "\n\n".join(parts) + "\n"


_HEAD = """# Kernels for a DCU that was not at hand: ours and TVM's rules

Written by `scripts/gpu_kernels.py` for `{target}` (gfx906); how to read it: docs/dcu.md. **Nothing here was run on a
card or timed.** Every group of the plan that the search finds with the analytical cost model of GPUs, compiled as our
family schedules it and as TVM's own rules (dlight) schedule the same fused function. Registers, LDS and spills are the
compiler's; waves what a compute unit holds at once by them, of {waves}; MB what all threads load and store as the code
stands, what caches save not taken off. "Needs memory": the rules keep what lies between two operators in memory that
they expect the host to give."""


_TVM = """What TVM would run of the same lowered networks: the groups of its own fusion (FuseOps), by its rules, beside
our plans. Where its rules give no schedule that is complete in itself, the kernel is counted, its bytes are missing."""


_OFFERED = """## Estimates beside compiled code

What searches, thresholds and predictors are told before anything is compiled, beside the compiler's, for up to five of
the configurations that families offer for every group of these plans and every case of the tests, chosen or not.
VGPR: compiled over estimated (least, median, 95th percentile, most). Waves: how many kernels have fewer than estimated,
as many, more. LDS: how many have more than estimated. Loads: vector loads (of memory or LDS) for each multiply-add, as
they stand in the deepest loops over as estimated, where both have some (least, median, most)."""


def _estimates(rows: Sequence[Row]) -> str:
    """A line for each family, and one for all."""
    head = ("family", "kernels", "no code", "spill", "VGPR", "waves: fewer", "equal", "more", "LDS: more", "loads")
    names = sorted({row["family"] for row in rows})
    made = [[name.removeprefix("gpu_"), *_apart([r for r in rows if r["family"] == name])] for name in names]
    return table(head, [*made, ["all", *_apart(rows)]])


def _apart(rows: Sequence[Row]) -> list[str]:
    coded = [row for row in rows if "status" not in row["own"]]
    registers = [row["own"]["vgprs"] / row["estimated"]["vgprs"] for row in coded]
    waves = [row["own"]["waves"] - row["estimated"]["waves"] for row in coded]
    loads = [
        row["own"]["inner_loads"] / row["own"]["fma"] / row["estimated"]["loads_per_fma"]
        for row in coded
        if row["own"]["fma"] and row["estimated"]["loads_per_fma"]
    ]
    return [
        str(len(rows)),
        str(len(rows) - len(coded)),
        str(sum(bool(row["own"]["spills"] or row["own"]["scratch"]) for row in coded)),
        _spread(registers, (0.0, 0.5, 0.95, 1.0)),
        *(str(sum(apart < 0 for apart in waves)), str(waves.count(0)), str(sum(apart > 0 for apart in waves))),
        str(sum(row["own"]["lds"] > row["estimated"]["lds"] for row in coded)),
        _spread(loads, (0.0, 0.5, 1.0)),
    ]


def _spread(values: Sequence[float], parts: Sequence[float]) -> str:
    ordered = sorted(values)
    return ", ".join(f"{ordered[round(part * (len(ordered) - 1))]:.2f}" for part in parts) if ordered else ""


def _whole(networks: Mapping[str, Sequence[Row]], tvm: Mapping[str, Sequence[Row]]) -> str:
    head = (
        "network", "launches: ours", "TVM's", "MB: ours", "TVM's", "workgroups: ours", "TVM's",
        "TVM's without a schedule",
    )  # fmt: skip
    made = []
    for network, rows in networks.items():
        failed = sum(row["times"] for row in tvm[network] if "status" in row["rules"])
        ours, theirs = _totals(rows, "own"), _totals(tvm[network], "rules")
        made.append([
            network, str(ours[0]), str(theirs[0] + failed), f"{ours[1] / 1e6:.0f}", f"{theirs[1] / 1e6:.0f}",
            str(ours[2]), str(theirs[2]), str(failed),
        ])  # fmt: skip
    return table(head, made)


def _totals(rows: Sequence[Row], side: str) -> tuple[int, int, int]:
    """(kernels, bytes, workgroups) of a whole run, of what has code."""
    coded = [(row[side], row["times"]) for row in rows if "status" not in row[side]]
    return (
        sum(found["kernels"] * times for found, times in coded),
        sum(_moved(found) * times for found, times in coded),
        sum(found["workgroups"] * times for found, times in coded),
    )


def _summary(networks: Mapping[str, Sequence[Row]]) -> str:
    head = (
        "network", "kernels (different)", "families", "spills", "estimate of VGPRs holds",
        "rules: no schedule", "kernels ours / rules", "MB ours / rules, where both have code", "fewer waves than rules",
    )  # fmt: skip
    return table(head, [[network, *_sums(rows)] for network, rows in networks.items()])


def _sums(rows: Sequence[Row]) -> list[str]:
    families = Counter(row["family"].removeprefix("gpu_") for row in rows)
    coded = [row for row in rows if "status" not in row["own"]]
    both = [row for row in coded if "rules" in row and "status" not in row["rules"]]
    failed = sum("rules" in row and "status" in row["rules"] for row in rows)
    holds = sum(row["estimated"]["vgprs"] >= row["own"]["vgprs"] for row in coded)
    ours, theirs = (sum(_moved(row[side]) * row["times"] for row in both) for side in ("own", "rules"))
    kernels = [sum(row[side]["kernels"] * row["times"] for row in both) for side in ("own", "rules")]
    fewer = sum(row["own"]["waves"] < row["rules"]["waves"] for row in both)
    return [
        f"{sum(row['times'] for row in rows)} ({len(rows)})",
        ", ".join(f"{count} {name}" for name, count in families.most_common()),
        str(sum(row["own"]["spills"] for row in coded)),
        f"{holds} of {len(coded)}",
        str(failed),
        f"{kernels[0]} / {kernels[1]}",
        f"{ours / 1e6:.0f} / {theirs / 1e6:.0f}",
        f"{fewer} of {len(both)}",
    ]


def _moved(side: Row) -> int:
    return int(side["loads"] + side["stores"])


def _kernels(rows: Sequence[Row]) -> str:
    head = (
        "group", "result", "times", "family", "VGPR", "LDS", "waves", "workgroups", "MB",
        "rules: VGPR", "LDS", "waves", "workgroups", "MB",
    )  # fmt: skip
    made = []
    for row in rows:
        own, rules = row["own"], row.get("rules")
        made.append([
            row["group"], "×".join(map(str, row["result"])), str(row["times"]),
            f"{row['family'].removeprefix('gpu_')} {row['config'].replace(',', ' ')}".strip(),
            *_numbers(own), *(_numbers(rules) if rules else ["", "", "", "", ""]),
        ])  # fmt: skip
    return table(head, made)


def _numbers(side: Row) -> list[str]:
    if "status" in side:
        return ["needs memory" if _PARAMETERS in side["message"] else side["status"], "", "", "", ""]
    spilt = f" ({side['spills']} spilt)" if side["spills"] else ""
    launches = f" in {side['kernels']} kernels" if side["kernels"] > 1 else ""
    return [
        f"{side['vgprs']}{spilt}", str(side["lds"]), str(side["waves"]), f"{side['workgroups']}{launches}",
        f"{_moved(side) / 1e6:.2f}",
    ]  # fmt: skip
