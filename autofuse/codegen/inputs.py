"""What a compiled model takes: from what a caller gives, by position and by name, to arrays in the model's order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.errors import InputError

#: Kinds of numpy types that are no numbers: objects, texts, times.
_NO_NUMBERS = "OSUmM"


class Inputs:
    """The inputs of the model `model`; `entries`: each with name, shape and dtype, as a compiled model's description
    has them."""

    def __init__(self, model: str, entries: Sequence[Mapping[str, Any]]) -> None:
        self.model = model
        self.names = tuple(str(e["name"]) for e in entries)
        self._shapes = [tuple(e["shape"]) for e in entries]
        self._dtypes = [np.dtype(e["dtype"]) for e in entries]

    def arrange(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[NDArray[Any]]:
        """Contiguous arrays of the right shapes and types, in the model's order; those that are so are not copied.

        Raises InputError for one that is missing, unknown, given twice, misshapen or of another kind of number.
        """
        given = arrays if not named and len(arrays) == len(self.names) else self._matched(arrays, named)
        return [self._array(i, value) for i, value in enumerate(given)]

    def _array(self, position: int, value: Any) -> NDArray[Any]:
        shape, dtype = self._shapes[position], self._dtypes[position]
        if type(value) is np.ndarray and value.shape == shape and value.dtype == dtype and value.flags.c_contiguous:
            return value
        name = self.names[position]
        try:
            array = np.asarray(value)
        except (TypeError, ValueError, RuntimeError) as error:  # the last from tensors of PyTorch with gradients
            line = " ".join(str(error).split())
            raise InputError(f"input {name!r} is no array: {line}") from None
        of_another_kind = InputError(f"input {name!r} has dtype {array.dtype}, {self.model} takes {dtype}")
        if array.dtype.kind in _NO_NUMBERS:  # its shape says nothing: None and texts have one too
            raise of_another_kind
        if array.shape != shape:
            line = f"input {name!r} has shape {array.shape}, {self.model} was compiled for {shape}"
            if array.ndim and array.size:  # what has no elements cannot be compiled for
                line += f"; compile with --input-shape {name}={','.join(map(str, array.shape))} for the other"
            raise InputError(line)
        if array.dtype.kind != dtype.kind:
            raise of_another_kind
        return np.asarray(array, dtype, order="C")

    def _matched(self, arrays: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
        names, listed = self.names, ", ".join(self.names)
        if len(arrays) > len(names):
            raise InputError(f"{self.model} takes {len(names)} inputs ({listed}), {len(arrays)} were given")
        given = dict(zip(names, arrays, strict=False))
        for name, array in named.items():
            if name not in names:
                raise InputError(f"{self.model} has no input {name!r}; its inputs are {listed}")
            if name in given:
                raise InputError(f"input {name!r} was given twice, by position and by name")
            given[name] = array
        missing = [n for n in names if n not in given]
        if missing:
            raise InputError(f"input {missing[0]!r} is missing; {self.model} takes {listed}")
        return [given[n] for n in names]
