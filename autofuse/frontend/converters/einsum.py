"""Einsum of one or two operands as transposes, sums and one matmul, so that it becomes kernels that are known."""

from __future__ import annotations

import math
from typing import Any

from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import Einsum as _TvmEinsum

from autofuse.frontend.converters.base import Attributes, OnnxOpConverter, Params, shape_of, text


class Einsum(OnnxOpConverter):  # type: ignore[misc]
    """What matmul can express; other equations (diagonals, ellipses, three operands) take TVM's own conversion."""

    @classmethod
    def _impl_v12(cls, bb: Any, inputs: Any, attr: Attributes, params: Params) -> Any:
        equation = text(attr, "equation", "").replace(" ", "")
        terms = _parse(equation, len(inputs))
        if terms is None:
            return _TvmEinsum._impl_v12(bb, inputs, attr, params)
        operands, output = terms
        if len(operands) == 1:
            return _arrange(bb, *_sum_away(bb, inputs[0], operands[0], set(output)), output)
        left, left_labels = _sum_away(bb, inputs[0], operands[0], set(output) | set(operands[1]))
        right, right_labels = _sum_away(bb, inputs[1], operands[1], set(output) | set(operands[0]))
        return _matmul(bb, left, left_labels, right, right_labels, output)


def _parse(equation: str, count: int) -> tuple[list[str], str] | None:
    if "." in equation or count > 2:
        return None
    left, arrow, output = equation.partition("->")
    operands = left.split(",")
    if len(operands) != count or any(len(set(term)) != len(term) for term in operands):
        return None
    if not arrow:
        # Without an arrow the output has the labels that occur once, in alphabetical order.
        output = "".join(sorted(label for label in set(left) - {","} if left.count(label) == 1))
    return operands, output


def _sum_away(bb: Any, data: Any, labels: str, kept: set[str]) -> tuple[Any, str]:
    axes = [axis for axis, label in enumerate(labels) if label not in kept]
    if axes:
        data = bb.normalize(relax.op.sum(data, axis=axes))
    return data, "".join(label for label in labels if label in kept)


def _arrange(bb: Any, data: Any, labels: str, wanted: str) -> Any:
    if labels == wanted:
        return data
    return bb.normalize(relax.op.permute_dims(data, [labels.index(label) for label in wanted]))


def _matmul(bb: Any, left: Any, left_labels: str, right: Any, right_labels: str, output: str) -> Any:
    sizes = dict(zip(left_labels, shape_of(left), strict=True)) | dict(zip(right_labels, shape_of(right), strict=True))
    batch = "".join(label for label in output if label in left_labels and label in right_labels)
    rows = "".join(label for label in output if label in left_labels and label not in right_labels)
    columns = "".join(label for label in output if label in right_labels and label not in left_labels)
    inner = "".join(label for label in left_labels if label in right_labels and label not in output)

    def extent(labels: str) -> int:
        return math.prod(sizes[label] for label in labels)

    left = _arrange(bb, left, left_labels, batch + rows + inner)
    right = _arrange(bb, right, right_labels, batch + inner + columns)
    lead = [sizes[label] for label in batch]
    left = relax.op.reshape(left, [*lead, extent(rows), extent(inner)])
    right = relax.op.reshape(right, [*lead, extent(inner), extent(columns)])
    product = bb.normalize(relax.op.matmul(left, right))
    product = bb.normalize(relax.op.reshape(product, [sizes[label] for label in batch + rows + columns]))
    return _arrange(bb, product, batch + rows + columns, output)


CONVERTERS: dict[str, Any] = {"Einsum": Einsum}
