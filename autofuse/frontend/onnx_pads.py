"""ONNX nodes that leave their padding to be worked out (auto_pad, output_shape) → the same nodes with explicit pads.

Shapes are static, so the sizes are known; the importer's own treatment pads in a kernel of its own. Formulas: the ONNX
specification of Conv, ConvTranspose and the pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from autofuse.frontend.onnx_fold import static_shapes

_WINDOWED = {"Conv", "MaxPool", "AveragePool", "LpPool"}


def bake_pads(graph: onnx.GraphProto) -> None:
    """Rewrites the nodes in place; one whose input has no static shape is left alone."""
    shapes = static_shapes(graph)
    for node in graph.node:
        if node.op_type not in _WINDOWED and node.op_type != "ConvTranspose":
            continue
        attributes = {a.name: onnx.helper.get_attribute_value(a) for a in node.attribute}
        mode = attributes.get("auto_pad", b"NOTSET").decode()
        fixed_output = attributes.get("output_shape") if node.op_type == "ConvTranspose" else None
        if (mode == "NOTSET" and not fixed_output) or node.input[0] not in shapes:
            continue
        sizes = shapes[node.input[0]][2:]
        kernel = attributes.get("kernel_shape") or shapes.get(node.input[1], ())[2:]
        if len(kernel) != len(sizes):
            continue
        needed = _needed(node.op_type, sizes, kernel, attributes, mode, fixed_output)
        totals = [max(total, 0) for total in needed]
        # The odd one goes to the end for SAME_UPPER; a transposed convolution with a given output puts it first.
        small = [total // 2 for total in totals]
        large = [total - total // 2 for total in totals]
        pads = [*small, *large] if mode == "SAME_UPPER" else [*large, *small]
        written = {"pads": pads}
        if any(lack < 0 for lack in needed):
            # Longer than the windows reach: rows that nothing contributes to.
            extra = attributes.get("output_padding") or [0] * len(sizes)
            written["output_padding"] = [e + max(-lack, 0) for e, lack in zip(extra, needed, strict=True)]
        kept = [a for a in node.attribute if a.name not in ("auto_pad", "output_shape", *written)]
        del node.attribute[:]
        node.attribute.extend([*kept, *(onnx.helper.make_attribute(name, value) for name, value in written.items())])


def _needed(
    op: str,
    sizes: Sequence[int],
    kernel: Sequence[int],
    attributes: dict[str, Any],
    mode: str,
    fixed_output: Sequence[int] | None,
) -> list[int]:
    """Padding of each axis, start and end together; negative where a given output is longer than what is computed."""
    rank = len(sizes)
    strides = attributes.get("strides") or [1] * rank
    dilations = attributes.get("dilations") or [1] * rank
    extra = attributes.get("output_padding") or [0] * rank
    totals = []
    for k in range(rank):
        reach = (kernel[k] - 1) * dilations[k] + 1
        if op == "ConvTranspose":
            # A longer list than there are axes starts with batch and channels.
            wanted = list(fixed_output)[-rank:][k] if fixed_output else sizes[k] * strides[k]
            needed = strides[k] * (sizes[k] - 1) + extra[k] + reach - wanted
        else:
            needed = (-(-sizes[k] // strides[k]) - 1) * strides[k] + reach - sizes[k]
        if op != "ConvTranspose" or not fixed_output:
            needed = max(needed, 0) if mode != "VALID" else 0
        totals.append(needed)
    return totals
