"""Kernels whose weights are cold: takes a kernel's arguments, gives as many sets of them as it has to be called with.

In a network whose weights do not stay in the last cache a kernel's activations are there, its constants are not. So it
is called with copies of its constants in turn, so many of them that the caches have lost each one when it is due again;
its other arguments are the same ones in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.measure.jobs import ArgumentSpec, MeasureJob

#: Constants of fewer bytes are read in no time, from wherever.
LEAST_WEIGHTS = 64 << 10
#: Bytes that the copies may take together.
MOST_COPIED = 256 << 20
_LINE = 64  # bytes that constants are aligned to


def weight_bytes(arguments: Sequence[ArgumentSpec], arrays: Sequence[NDArray[Any]]) -> int:
    """Bytes of the constants among a kernel's arguments, in the form in which it takes them."""
    return sum(array.nbytes for spec, array in zip(arguments, arrays, strict=True) if spec.constant)


def copies_needed(weights: int, last_cache: int) -> int:
    """How many copies of `weights` bytes to go through in turn, so that the last cache never holds the next one.

    Together they are twice the `last_cache` bytes. 0 where cold weights make no difference: there are hardly any, or
    they are as large as that by themselves, so that a call begins with what its own last bytes have displaced. 0 too
    where the cache is larger than what may be copied.
    """
    if weights < LEAST_WEIGHTS or last_cache <= 0:
        return 0
    copies = min(-(-2 * last_cache // weights), MOST_COPIED // weights)
    return copies if copies > 1 and copies * weights > last_cache else 0


class Arena:
    """Memory for the copies of one kernel's constants after another's: taken once, and its pages with it."""

    def __init__(self) -> None:
        self._bytes: NDArray[np.uint8] = np.empty(0, np.uint8)

    def copies(self, arrays: Sequence[NDArray[Any]], count: int) -> list[list[NDArray[Any]]]:
        """`count` copies of all `arrays`, each aligned; they last until the next call."""
        starts, stride = [], 0
        for array in arrays:
            starts.append(stride)
            stride += -(-array.nbytes // _LINE) * _LINE + _LINE
        if self._bytes.nbytes < count * stride + _LINE:
            self._bytes = np.empty(count * stride + _LINE, np.uint8)
        first = -self._bytes.ctypes.data % _LINE
        rows = self._bytes[first : first + count * stride].reshape(count, stride)
        for start, array in zip(starts, arrays, strict=True):
            rows[:, start : start + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return [
            [row[s : s + a.nbytes].view(a.dtype).reshape(a.shape) for s, a in zip(starts, arrays, strict=True)]
            for row in rows
        ]


def cold_arguments(
    job: MeasureJob, arrays: Sequence[NDArray[Any]], tensors: Sequence[Any], arena: Arena | None = None
) -> list[list[Any]]:
    """The arguments for calls in turn; none for a kernel without cold samples (`copies_needed`).

    `arrays` are the kernel's arguments, `tensors` the same as TVM's; of the constants every set has copies of its own,
    in `arena` (default: one of their own), and they are good until that is used again.
    """
    import tvm

    count = copies_needed(weight_bytes(job.arguments, arrays), job.last_cache)
    if not count:
        return []
    constants = [array for spec, array in zip(job.arguments, arrays, strict=True) if spec.constant]
    sets = []
    for copied in (arena or Arena()).copies(constants, count):
        rest = iter(copied)
        sets.append([
            tvm.runtime.from_dlpack(next(rest)) if spec.constant else tensor
            for spec, tensor in zip(job.arguments, tensors, strict=True)
        ])  # fmt: skip
    return sets


def in_turn(kernel: Callable[..., object], sets: Sequence[Sequence[Any]]) -> Callable[[], object]:
    """Calls `kernel` with one set of arguments after another, from the first again after the last."""
    turn = cycle(sets)
    return lambda: kernel(*next(turn))
