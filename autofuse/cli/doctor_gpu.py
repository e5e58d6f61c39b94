"""What `autofuse doctor` says of a GPU target: the card as it is described, and what this host lacks for it."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from autofuse.target.registry import KINDS, Target

_PURPOSES = {
    "compile": "compile", "finish": "finish code", "run": "run", "run-opencl": "run (OpenCL)",
}  # fmt: skip


def gpu_report(target: Target) -> dict[str, Any]:
    """What `--json` prints beside the packages."""
    from autofuse.measure.gpu_runner import devices_here
    from autofuse.target.cards import cards
    from autofuse.target.needs import needs

    card = cards().get(target.card)
    return {
        "target": target.description,
        "isa": target.isa,
        "card": None if card is None else {**asdict(card), "facts": {n: asdict(f) for n, f in card.facts.items()}},
        "hardware": asdict(target.gpu_hardware),
        "needs": [asdict(need) for need in needs(target)],
        "devices": [{"device": text, "title": title} for text, title in devices_here(target.kind)],
        "runs": KINDS[target.kind].runs,
    }


def print_gpu(target: Target) -> None:
    """The same for people."""
    from autofuse.measure.gpu_runner import devices_here
    from autofuse.target.cards import cards
    from autofuse.target.needs import needs

    gpu, card = target.gpu_hardware, cards().get(target.card)
    click.echo(f"target        {target.text}")
    click.echo(f"GPU           {gpu.name}: code for {target.mcpu}{f', calls itself {card.gfx}' if card else ''}")
    if card is not None and card.note:
        click.echo(f"              {card.note}")
    click.echo(
        f"units         {gpu.cores} at {gpu.frequency_hz / 1e9:.3f} GHz, waves of {gpu.wave}, {gpu.simds} SIMDs of"
        f" {gpu.waves_per_simd} waves and {gpu.vector_registers} registers; images in NCHW{gpu.lanes}c"
    )
    click.echo(
        f"memory        LDS {gpu.lds_bytes >> 10} KiB and L1 {gpu.l1_bytes >> 10} KiB a unit, L2"
        f" {gpu.l2_bytes / (1 << 20):.3g} MiB; {gpu.memory_bandwidth / 1e9:.0f} GB/s;"
        f" {2 * gpu.fma_per_second * gpu.cores / 1e12:.1f} TFLOP/s; a launch {gpu.call_overhead * 1e6:.0f} µs"
    )
    if card is None:
        click.echo("figures       of gfx906 with 60 units: no card of this name is described")
    else:
        doubtful: dict[tuple[str, str], list[str]] = {}
        for name, fact in card.facts.items():
            if fact.certainty != "good":
                doubtful.setdefault((fact.certainty, fact.source), []).append(f"{name} {fact.value:g}")
        for (certainty, source), figures in doubtful.items():
            click.echo(f"{certainty:13s} {', '.join(figures)}: {source}")
    for need in needs(target):
        purpose = _PURPOSES[need.purpose]
        if need.found:
            click.echo(f"{purpose:13s} {need.what}: {need.found}")
        else:
            click.echo(f"{purpose:13s} {need.what}: missing. {need.step[0].upper()}{need.step[1:]}")
    for text, title in devices_here(target.kind):
        click.echo(f"device        {title}: --device '{text}'")
    click.echo(f"runs          {KINDS[target.kind].runs}")
