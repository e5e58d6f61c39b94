"""A trained XGBoost model for prediction only: takes its JSON (or UBJ) bytes, gives predictions of float32 arrays.

XGBoost's C interface (documented in its `c_api.h`, stable across versions) is called directly: the Python package
imports scikit-learn and SciPy with it, which takes longer than most searches.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.util
import json
import sys
import weakref
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import PredictorError

_LIBRARY = {"darwin": "libxgboost.dylib", "win32": "xgboost.dll"}.get(sys.platform, "libxgboost.so")
_PREDICT = json.dumps(
    {
        "type": 0,  # the value itself
        "training": False,
        "iteration_begin": 0,
        "iteration_end": 0,  # all trees
        "strict_shape": False,
        "cache_id": 0,
        "missing": float("nan"),
    }
).encode()


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    """The C library that comes with the xgboost package. PredictorError if there is none."""
    spec = importlib.util.find_spec("xgboost")
    for folder in (spec.submodule_search_locations or []) if spec is not None else []:
        path = Path(folder) / "lib" / _LIBRARY
        if path.exists():
            library = ctypes.CDLL(str(path))
            library.XGBGetLastError.restype = ctypes.c_char_p
            return library
    raise PredictorError("xgboost is not installed, and predictors need it: pip install xgboost-cpu")


def _check(library: Any, status: int) -> None:
    if status != 0:
        text = (library.XGBGetLastError() or b"").decode(errors="replace").strip().splitlines()
        # "[time] source file:line: what is wrong"
        raise ValueError(text[0].split(": ", 1)[-1] if text else "XGBoost failed and does not say why")


class Booster:
    """One boosted ensemble of trees; predictions run on the calling thread. ValueError for bytes that are no model."""

    def __init__(self, content: bytes) -> None:
        if not content:
            raise ValueError("the model is empty")  # XGBoost would crash on it
        library = self._library = _library()
        self._handle = ctypes.c_void_p()
        _check(library, library.XGBoosterCreate(None, ctypes.c_uint64(0), ctypes.byref(self._handle)))
        self._free = weakref.finalize(self, library.XGBoosterFree, self._handle)
        buffer = (ctypes.c_char * len(content)).from_buffer_copy(content)
        _check(
            library,
            library.XGBoosterLoadModelFromBuffer(self._handle, ctypes.byref(buffer), ctypes.c_uint64(len(content))),
        )
        # The pool of a compiled model is not to be disturbed, and one thread reaches 100,000 rows a second.
        for name, value in ((b"nthread", b"1"), (b"verbosity", b"0")):
            _check(library, library.XGBoosterSetParam(self._handle, name, value))
        count = ctypes.c_uint64()
        _check(library, library.XGBoosterGetNumFeature(self._handle, ctypes.byref(count)))
        self.features = int(count.value)

    def predict(self, rows: NDArray[np.float32]) -> NDArray[np.float64]:
        """The predictions (n,) for `rows` (n, features); a row's does not depend on the others."""
        rows = np.ascontiguousarray(rows, np.float32)
        if rows.ndim != 2 or rows.shape[1] != self.features:
            raise ValueError(f"rows of shape {rows.shape}, expected (n, {self.features})")
        if not len(rows):
            return np.empty(0)
        array = json.dumps({"data": [rows.ctypes.data, True], "shape": rows.shape, "typestr": "<f4", "version": 3})
        shape = ctypes.POINTER(ctypes.c_uint64)()
        dimensions = ctypes.c_uint64()
        result = ctypes.POINTER(ctypes.c_float)()
        _check(
            self._library,
            self._library.XGBoosterPredictFromDense(
                self._handle,
                array.encode(),
                _PREDICT,
                ctypes.c_void_p(),
                ctypes.byref(shape),
                ctypes.byref(dimensions),
                ctypes.byref(result),
            ),
        )
        # The buffer belongs to the booster and is used again by the next call.
        return np.ctypeslib.as_array(result, (len(rows),)).astype(np.float64)
