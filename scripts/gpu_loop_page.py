"""What scripts/gpu_loop.py found (its JSON object) → a page of Markdown, which says first what stood in for a card."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from autofuse.report.results import number, table

_STAND_IN = """**No GPU was at hand: {device} stood in for one.** It runs kernels on the CPU. What this page shows is
that the way from candidates through records and a predictor to a plan is whole, with right numbers at both ends. No
time below, and no error of the predictor, says anything of a card. The records are kept as a stand-in's, and never
taken for the card's: the learned plan's costs come from the predictor alone, which says that it was trained on other
hardware."""
_CARD = "It ran on {device}."


def page(report: Mapping[str, Any], machine: str) -> str:
    """The whole page; `machine`: this machine, in words."""
    ways = {name: report[name] for name in ("analytical", "learned")}
    device, stand_in = ways["learned"]["device"], ways["learned"]["stand_in"]
    said = (_STAND_IN if stand_in else _CARD).format(device=device.partition(",")[0])
    shapes = "".join(f" --input-shape {text}" for text in report["input_shapes"])
    first, again, learned = report["collected"], report["collected_again"], report["predictor"]
    steps = [[f"`autofuse {' '.join(made['command'])}`", f"{made['seconds']:.0f}"] for made in report["commands"]]
    runs = [
        [name, str(way["kernels"]), _sources(way), f"{way['error']:.1e}", number(way["predicted_ms"]),
         number(way["kernels_ms"]), number(way["call_ms"])]
        for name, way in ways.items()
    ]  # fmt: skip
    errors = [
        [name, *(number(row[key]) for key in ("mape", "within_20", "tau_within"))]
        for name, row in learned.items()
        if isinstance(row, dict)
    ]
    return f"""# The loop on a GPU target{": a stand-in" if stand_in else ""}

Written by `scripts/gpu_loop.py` for {report["network"]}{shapes}, in {report["minutes"]} minutes; not to be edited.

{said}

{machine}

## Steps

{table(["command", "seconds"], steps)}

Between them the compiled networks ran on the device, which is the rest of the time.

## Measured

{_counts(first)}; then, with a predictor, {_counts(again)}. The store holds {again["records"]} records.

## Learned

From {learned["records"]} records of {learned["workloads"]} workloads, of {", ".join(learned["hardware"])}. On workloads
that a member of the ensemble did not see:

{table(["cost model", "mape", "within 20 %", "tau within a workload"], errors)}

## Compiled and run

Errors are the largest against ONNX Runtime, as a part of the largest number of the result.

{table(["plan", "kernels", "costs from", "error", "predicted, ms", "kernels, ms", "a call, ms"], runs)}
"""


def _sources(way: Mapping[str, Any]) -> str:
    return ", ".join(f"{count} {source}" for source, count in way["cost_sources"].items())


def _counts(found: Mapping[str, Any]) -> str:
    told = [f"{found['measured']} kernels were measured", f"{found['failed']} failed"]
    if found["skipped"]:
        told.append(f"{found['skipped']} had nothing to be compared with")
    return f"{', '.join(told)}, {found['left']} were not reached ({60 * found['rate']:.0f} a minute)"
