"""`Profile` and the compiled model's description → one HTML page that needs nothing else: no script, no other file."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from autofuse.errors import ModelError
from autofuse.files import write_whole
from autofuse.profile.result import KernelProfile, Profile

# Colours that stay apart for colour-blind eyes (Okabe and Ito, Color universal design, 2008).
_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999", "#F0E442")

_STYLE = """
body { font: 14px/1.45 system-ui, sans-serif; margin: 2em auto; max-width: 78em; padding: 0 1em; color: #222; }
h1 { font-size: 1.5em; margin-bottom: 0; } h2 { font-size: 1.15em; margin-top: 2em; }
table { border-collapse: collapse; width: 100%; } th { text-align: right; font-weight: 600; }
th, td { padding: .25em .6em; border-bottom: 1px solid #ddd; vertical-align: top; }
td { text-align: right; font-variant-numeric: tabular-nums; } th.text, td.text { text-align: left; }
code { font-size: .9em; color: #555; overflow-wrap: anywhere; }
.facts { display: flex; flex-wrap: wrap; gap: 2em; margin: 1em 0; } .facts b { display: block; font-size: 1.4em; }
.bar { display: flex; height: 1.6em; border-radius: 4px; overflow: hidden; } .bar span { display: block; }
.legend span { margin-right: 1.2em; white-space: nowrap; }
.dot { display: inline-block; width: .8em; height: .8em; border-radius: 50%; margin-right: .35em; }
.part { background: #0072B233; height: .5em; border-radius: 2px; margin-top: .2em; }
svg text { font-size: 11px; fill: #444; }
"""


def write_page(path: Path, profile: Profile, description: Mapping[str, Any]) -> None:
    """Write the page; it appears whole or not at all. Raises ModelError when it cannot be written."""
    text = page(profile, description)
    try:
        write_whole(path, text)
    except OSError as error:
        raise ModelError(f"cannot write {path}: {error.strerror}; choose another --html") from None


def page(profile: Profile, description: Mapping[str, Any]) -> str:
    """The page's text."""
    colours = _colours(profile.kernels)
    title = f"{escape(profile.model)}: where the time goes"
    return "\n".join(
        [
            f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{title}</title>',
            f"<style>{_STYLE}</style></head><body><h1>{title}</h1>",
            f"<p>{profile.threads} threads on {escape(profile.hardware)}, {profile.runs} runs,"
            f" strategy {escape(profile.strategy)}, costs {escape(profile.cost_model)}</p>",
            _facts(profile, description),
            "<h2>By schedule</h2>",
            _shares(profile.kernels, colours),
            "<h2>Against the roofline</h2>",
            _roofline(profile, colours),
            "<h2>Kernels, the longest first</h2>",
            _kernels(profile.kernels),
            "<h2>The plan, in the order of the program</h2>",
            _plan(description["kernel_list"]),
            "</body></html>\n",
        ]
    )


def _colours(kernels: Iterable[KernelProfile]) -> dict[str, str]:
    families = dict.fromkeys(k.family for k in kernels)
    return {family: _COLOURS[i % len(_COLOURS)] for i, family in enumerate(families)}


def _facts(profile: Profile, description: Mapping[str, Any]) -> str:
    facts = {
        "whole run": f"{profile.latency_ms:.3f} ms",
        "sum of the kernels": f"{profile.kernels_ms:.3f} ms",
        "predicted": f"{profile.predicted_ms:.3f} ms",
        "operators": str(description["operators"]),
        "kernels": str(description["kernels"]),
        "fusion ratio": f"{description['fusion_ratio']:.2f}",
        "peak of intermediates": f"{description['peak_memory_mb']:.1f} MB",
    }
    return '<div class="facts">' + "".join(f"<div>{n}<b>{v}</b></div>" for n, v in facts.items()) + "</div>"


def _shares(kernels: Sequence[KernelProfile], colours: Mapping[str, str]) -> str:
    shares = {family: sum(k.share for k in kernels if k.family == family) for family in colours}
    spans = "".join(
        f'<span style="width:{share:.2%};background:{colours[f]}" title="{_family(f)}"></span>'
        for f, share in shares.items()
    )
    legend = "".join(
        f'<span><i class="dot" style="background:{colours[f]}"></i>{_family(f)} {share:.1%}</span>'
        for f, share in shares.items()
    )
    return f'<div class="bar">{spans}</div><p class="legend">{legend}</p>'


def _family(name: str) -> str:
    return escape(name) or "outside every group"


def _roofline(profile: Profile, colours: Mapping[str, str]) -> str:
    """Operations per byte against operations per second, both logarithmic; a circle's area is the kernel's time."""
    shown = [k for k in profile.kernels if k.gflops > 0 and k.gbytes > 0]
    if not shown:
        return "<p>No kernel with arithmetic was timed.</p>"
    width, height, left, bottom = 760, 360, 60, 40
    ridge = profile.peak_gflops / profile.memory_gbytes
    intensities = [k.gflops / k.gbytes for k in shown]
    low_x, high_x = min([*intensities, ridge]) / 2, max([*intensities, ridge]) * 2
    low_y, high_y = min(k.gflops for k in shown) / 2, max([profile.peak_gflops, *(k.gflops for k in shown)]) * 2

    def x(value: float) -> float:
        return left + (width - left) * math.log(value / low_x) / math.log(high_x / low_x)

    def y(value: float) -> float:
        return (height - bottom) * (1 - math.log(value / low_y) / math.log(high_y / low_y))

    parts = [f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="roofline" style="max-width:{width}px">']
    for power in range(math.ceil(math.log10(low_y)), math.floor(math.log10(high_y)) + 1):
        at = y(10.0**power)
        parts.append(f'<line x1="{left}" x2="{width}" y1="{at:.1f}" y2="{at:.1f}" stroke="#eee"/>')
        parts.append(f'<text x="{left - 6}" y="{at + 4:.1f}" text-anchor="end">{10.0**power:g}</text>')
    for power in range(math.ceil(math.log10(low_x)), math.floor(math.log10(high_x)) + 1):
        at = x(10.0**power)
        parts.append(f'<line x1="{at:.1f}" x2="{at:.1f}" y1="0" y2="{height - bottom}" stroke="#eee"/>')
        parts.append(f'<text x="{at:.1f}" y="{height - bottom + 16}" text-anchor="middle">{10.0**power:g}</text>')
    for name, bandwidth in (("memory", profile.memory_gbytes), ("L3", profile.l3_gbytes)):
        start = max(low_x, low_y / bandwidth)
        turn = min(max(profile.peak_gflops / bandwidth, start), high_x)
        points = [(start, start * bandwidth), (turn, min(turn * bandwidth, profile.peak_gflops))]
        points.append((high_x, points[-1][1]))
        line = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        parts.append(f'<polyline points="{line}" fill="none" stroke="#888"><title>{name}</title></polyline>')
    for kernel, intensity in zip(shown, intensities, strict=True):
        radius = 3 + 22 * math.sqrt(kernel.share)
        parts.append(
            f'<circle cx="{x(intensity):.1f}" cy="{y(kernel.gflops):.1f}" r="{radius:.1f}"'
            f' fill="{colours[kernel.family]}" fill-opacity=".55"><title>{escape(_label(kernel))}:'
            f" {kernel.total_ms:.3f} ms, {kernel.roofline:.0%} of the roofline</title></circle>"
        )
    parts.append(f'<text x="{width}" y="{height - 6}" text-anchor="end">operations per byte</text>')
    parts.append('<text x="4" y="12">GFLOP/s</text></svg>')
    return "".join(parts)


def _label(kernel: KernelProfile) -> str:
    return ", ".join(kernel.labels) or kernel.name


def _kernels(kernels: Sequence[KernelProfile]) -> str:
    heads = ("calls", "ms", "share", "GFLOP/s", "GB/s", "roofline", "predicted ms", "from")
    rows = []
    for k in kernels:
        known = bool(k.labels)
        figures = [
            str(k.calls),
            f"{k.total_ms:.3f}",
            f'{k.share:.1%}<div class="part" style="width:{k.share:.1%}"></div>',
            f"{k.gflops:.1f}" if known else "",
            f"{k.gbytes:.1f}" if known else "",
            f"{k.roofline:.0%}" if known else "",
            "" if k.predicted_ms is None else f"{k.predicted_ms:.3f}",
            escape(k.source),
        ]
        rows.append([f"{escape(_label(k))}<br><code>{escape(k.family)} {escape(k.config)}</code>", *figures])
    return _table("kernel", heads, rows)


def _plan(entries: Iterable[Mapping[str, Any]]) -> str:
    rows = [
        [
            f"{escape(str(e['label']))}<br><code>{escape(', '.join(e['operators']))}</code>",
            escape(str(e["family"])),
            f"{e['flops'] / 1e6:.2f}",
            f"{e['bytes'] / 1e6:.2f}",
            "" if e["predicted_ms"] is None else f"{e['predicted_ms']:.3f}",
        ]
        for e in entries
    ]
    return _table("group and its operators", ("schedule", "MFLOP", "MB", "predicted ms"), rows)


def _table(first: str, heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    head = f'<th class="text">{first}</th>' + "".join(f"<th>{h}</th>" for h in heads)
    body = "".join(
        f'<tr><td class="text">{row[0]}</td>' + "".join(f"<td>{cell}</td>" for cell in row[1:]) + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
