"""Pictures for a predictor's card: takes a dataset and what was trained on it, gives SVG files by name.

Every prediction shown is that of a member that did not see the workload.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.group_features import GROUP_COLUMN, KINDS
from autofuse.learn.dataset import Dataset
from autofuse.learn.train import Trained

Array = NDArray[np.float64]
_POINTS = 1500
_COLOURS = ("#1f6fb4", "#c8452b")
_SHOWN = 20
#: Kinds in the order in which they name a group: the first of them that it has.
_NAMING = ("conv", "depthwise", "matmul", "softmax", "norm", "pool", "resize", "reduce", "gather", "movement")
_SIZES = (0.0, 1e-5, 1e-4, 1e-3, math.inf)  # seconds


def plots(data: Dataset, trained: Trained) -> dict[str, bytes]:
    """predicted.svg, errors.svg, importance.svg."""
    error = np.abs(np.expm1(trained.outside - data.measured))
    base = np.abs(np.expm1(data.base + trained.card.trust.offset - data.measured))
    pictures = {
        "predicted.svg": scatter(data.measured, trained.outside),
        "errors.svg": bars(
            "Median error on workloads not seen, by kind and by measured time",
            error_groups(data, error, base),
            ("learned", "analytical, scaled"),
            "{:.0%}",
        ),
        "importance.svg": bars(
            "Mean absolute SHAP value (ln)",
            [(name, (value,)) for name, value in list(trained.card.importance.items())[:_SHOWN]],
            (),
            "{:.3f}",
        ),
    }
    return {name: picture.encode() for name, picture in pictures.items()}


def kinds_of_rows(data: Dataset) -> list[str]:
    """What each row's group is called after: its convolution, product and so on, "pointwise" if it has none."""
    present = np.column_stack([data.features[:, GROUP_COLUMN[f"kind_{kind}"]] > 0 for kind in _NAMING])
    assert set(_NAMING) < set(KINDS)
    return [_NAMING[int(np.argmax(row))] if row.any() else "pointwise" for row in present]


def error_groups(data: Dataset, learned: Array, analytical: Array) -> list[tuple[str, tuple[float, ...]]]:
    """Median errors (shares) of each kind of group and each range of measured times, with how many rows there are."""
    kinds = np.array(kinds_of_rows(data), object)
    seconds = np.exp(data.measured)
    parts = [(kind, kinds == kind) for kind in dict.fromkeys(sorted(kinds, key=str))]
    for low, high in pairwise(_SIZES):
        name = f"over {1e6 * low:g} µs" if math.isinf(high) else f"{1e6 * low:g} to {1e6 * high:g} µs"
        parts.append((name, (seconds >= low) & (seconds < high)))
    return [
        (f"{name} ({int(rows.sum())})", (float(np.median(learned[rows])), float(np.median(analytical[rows]))))
        for name, rows in parts
        if rows.any()
    ]


def scatter(measured: Array, predicted: Array) -> str:
    """Predicted against measured latency, both axes logarithmic; the lines are equality and 20 % beside it."""
    size, margin = 480, 56
    low = math.floor(min(measured.min(), predicted.min()) / math.log(10))
    high = math.ceil(max(measured.max(), predicted.max()) / math.log(10))
    scale = (size - 2 * margin) / max(1, high - low)

    def x(value: float) -> float:
        return float(margin + (value / math.log(10) - low) * scale)

    def y(value: float) -> float:
        return size - x(value)

    shapes = []
    for power in range(low, high + 1):
        at, name = power * math.log(10), _seconds(power)
        shapes.append(_line(x(at), margin, x(at), size - margin, "#dddddd"))
        shapes.append(_line(margin, y(at), size - margin, y(at), "#dddddd"))
        shapes.append(_text(x(at), size - margin + 16, name, "middle"))
        shapes.append(_text(margin - 6, y(at) + 4, name, "end"))
    bounds = low * math.log(10), high * math.log(10)
    for shift, colour in ((0.0, "#555555"), (math.log(1.2), "#aaaaaa"), (-math.log(1.2), "#aaaaaa")):
        start, end = (max(bounds[0], bounds[0] - shift), min(bounds[1], bounds[1] - shift))
        shapes.append(_line(x(start), y(start + shift), x(end), y(end + shift), colour))
    step = max(1, -(-len(measured) // _POINTS))
    shapes += [
        f'<circle cx="{x(m):.1f}" cy="{y(p):.1f}" r="1.6" fill="{_COLOURS[0]}" fill-opacity="0.45"/>'
        for m, p in zip(measured[::step], predicted[::step], strict=True)
    ]
    shapes.append(_text(size / 2, size - 14, "measured", "middle"))
    shapes.append(_text(margin, margin - 20, "predicted, on workloads not seen", "start"))
    return _picture(size, size, shapes)


def bars(title: str, rows: Sequence[tuple[str, Sequence[float]]], series: Sequence[str], form: str) -> str:
    """Horizontal bars; a row has one for each of the series."""
    count = max(1, len(series))
    thick, left, wide = 11, 190, 640
    height = 44 + len(rows) * (count * thick + 8) + 16 * bool(series)
    most = max((value for _, values in rows for value in values), default=1.0) or 1.0
    shapes = [_text(8, 18, title, "start")]
    top = 30
    if series:
        for number, name in enumerate(series):
            shapes.append(f'<rect x="{left + 150 * number}" y="{top}" width="10" height="10" {_fill(number)}/>')
            shapes.append(_text(left + 150 * number + 16, top + 9, name, "start"))
        top += 18
    for name, values in rows:
        shapes.append(_text(left - 6, top + count * thick / 2 + 4, name, "end"))
        for number, value in enumerate(values):
            length = (wide - left - 60) * value / most
            y = top + number * thick
            shapes.append(f'<rect x="{left}" y="{y}" width="{length:.1f}" height="{thick - 2}" {_fill(number)}/>')
            shapes.append(_text(left + length + 4, y + thick - 2, form.format(value), "start"))
        top += count * thick + 8
    return _picture(wide, height, shapes)


def _fill(number: int) -> str:
    return f'fill="{_COLOURS[number]}"'


def _seconds(power: int) -> str:
    names: Mapping[int, str] = {-9: "ns", -6: "µs", -3: "ms", 0: "s"}
    base = max(min(power // 3 * 3, 0), -9)
    return f"{10.0 ** (power - base):g} {names[base]}"


def _line(x1: float, y1: float, x2: float, y2: float, colour: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" stroke="{colour}"/>'


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'


def _picture(width: int, height: int, shapes: Sequence[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" font-family="sans-serif"'
        f' font-size="11"><rect width="{width}" height="{height}" fill="white"/>'
    )
    return "\n".join([head, *shapes, "</svg>", ""])
