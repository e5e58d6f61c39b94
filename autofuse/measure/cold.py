"""Kernels whose weights are cold: takes a kernel's arguments, gives as many sets of them as it has to be called with.

In a network whose weights do not stay in the last cache a kernel's activations are there, its constants are not. So it
is called with copies of its constants in turn, so many of them that the caches have lost each one when it is due again;
its other arguments are the same ones in every call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle
from typing import Any

from numpy.typing import NDArray

from autofuse.measure.jobs import ArgumentSpec, MeasureJob

#: Constants of fewer bytes are read in no time, from wherever.
LEAST_WEIGHTS = 64 << 10
#: Bytes that the copies may take together.
MOST_COPIED = 256 << 20


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


def cold_arguments(job: MeasureJob, arrays: Sequence[NDArray[Any]], tensors: Sequence[Any]) -> list[list[Any]]:
    """The arguments for calls in turn; none for a kernel without cold samples (`copies_needed`).

    `arrays` are the kernel's arguments, `tensors` the same as TVM's; of the constants every set has copies of its own.
    """
    import tvm

    copies = copies_needed(weight_bytes(job.arguments, arrays), job.last_cache)
    if not copies:
        return []
    places = list(zip(job.arguments, arrays, tensors, strict=True))
    return [[tvm.runtime.tensor(array) if spec.constant else tensor for spec, array, tensor in places]
            for _ in range(copies)]  # fmt: skip


def in_turn(kernel: Callable[..., object], sets: Sequence[Sequence[Any]]) -> Callable[[], object]:
    """Calls `kernel` with one set of arguments after another, from the first again after the last."""
    turn = cycle(sets)
    return lambda: kernel(*next(turn))
