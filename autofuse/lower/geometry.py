"""Which data the results of grouped and transposed convolutions read: plain arithmetic, for operators and schedules."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.lower.values import ceil_div

# Input channels of a group over its output channels up to which the lanes of a block are put together from vectors.
_MOST_SOURCES = 2


def shuffled(inputs: int, outputs: int, groups: int, lanes: int) -> bool:
    """Whether the lanes of an output block find their r-th input channel by one fixed rearrangement of whole vectors.

    inputs, outputs: channels of one group.
    """
    if lanes % outputs or inputs > _MOST_SOURCES * outputs:
        return False
    together = lanes // outputs
    span = together * inputs
    return lanes % span == 0 or (span % lanes == 0 and groups % together == 0)


def channel_ranges(inputs: int, outputs: int, groups: int, lanes: int) -> list[tuple[int, int]]:
    """Which input channels [first, last) the groups of each output block read."""
    total = groups * outputs
    found = []
    for first in range(0, total, lanes):
        last = min(first + lanes, total) - 1
        found.append((first // outputs * inputs, (last // outputs + 1) * inputs))
    return found


class Phases:
    """One axis of a transposed convolution: results at phase + stride · i see the same taps, at places that follow i.

    taps: of the phase with most of them, what the others lack being zeros before theirs; before, after: zeros that the
    data need on both sides.
    """

    def __init__(self, extent: int, kernel: int, stride: int, padding: int, out: int) -> None:
        self.stride, self.out = stride, out
        self.taps = ceil_div(kernel, stride)
        #: Of each phase: the kernel's element of its first tap, and the data's element that it meets for i = 0.
        self.first = [((p + padding) % stride, (p + padding) // stride) for p in range(stride)]
        #: How many taps and results each phase has.
        self.lengths = [len(range(k, kernel, stride)) for k, _ in self.first]
        self.counts = [len(range(p, out, stride)) for p in range(stride)]
        used = [p for p in range(stride) if self.counts[p]]
        lowest = min(self.first[p][1] - (self.taps - 1) for p in used)
        highest = max(self.first[p][1] + self.counts[p] - 1 for p in used)
        #: Where the data of a phase's first tap (a zero, perhaps) lie for i = 0.
        self.low = [first - (self.taps - 1) for _, first in self.first]
        self.before, self.after = max(0, -lowest), max(0, highest - (extent - 1))


def transposed_phases(
    data: Sequence[int], kernel: Sequence[int], strides: Sequence[int], padding: Sequence[int], out: Sequence[int]
) -> tuple[Phases, Phases]:
    """Phases of rows and columns. data, out: (rows, columns); padding: (top, left, bottom, right) as ONNX counts it."""
    rows, columns = (Phases(data[i], kernel[i], strides[i], padding[i], out[i]) for i in range(2))
    return rows, columns
