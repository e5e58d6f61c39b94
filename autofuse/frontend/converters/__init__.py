"""Converters for ONNX operators that TVM's importer lacks or converts badly, one family a file.

`CONVERTERS` maps an operator's name to its class; an entry takes precedence over TVM's own.
"""

from __future__ import annotations

from typing import Any

from autofuse.frontend.converters import activation, einsum, elementwise, gather, normalization, recurrent, resize

CONVERTERS: dict[str, Any] = {
    **activation.CONVERTERS,
    **einsum.CONVERTERS,
    **elementwise.CONVERTERS,
    **gather.CONVERTERS,
    **normalization.CONVERTERS,
    **recurrent.CONVERTERS,
    **resize.CONVERTERS,
}
