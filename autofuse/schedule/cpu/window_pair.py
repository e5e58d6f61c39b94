"""Groups around two convolutions, the second of which reads nothing but what becomes of the first one's result.

`pair_of` splits a plain group into its two windows, or says why it is none; the rest is what the families of such
groups share when they choose configurations and say what these make of a group. A pointwise convolution here is a
blocked one with a 1×1 kernel, stride 1 and neither padding nor groups; a depthwise one may have any window that leaves
out no rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group, Operator, Tensor
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu import window as W
from autofuse.schedule.family import SHAPE_COLUMN, KernelShape, remembered, shape_matrix
from autofuse.target import Hardware

# Multiply-adds of depthwise results in one unrolled tile.
_MOST_TAPS = 256
_L3, _MEMORY, _RECOMPUTE = (SHAPE_COLUMN[name] for name in ("l3_bytes", "memory_bytes", "recompute"))
_VARIANT = {"depthwise": "depthwise", "pointwise": "blocked"}


@dataclass(frozen=True)
class Depthwise:
    """Extents of a depthwise convolution: `blocks` of `lanes` channels, data `height` × `width` before padding."""

    n: int
    blocks: int
    lanes: int
    height: int
    width: int
    oh: int
    ow: int
    kh: int
    kw: int
    top: int
    left: int
    strides: tuple[int, ...]
    dilation: tuple[int, ...]

    @property
    def reach(self) -> int:
        """Rows of data that a row of results reads, from the first to the last."""
        return (self.kh - 1) * self.dilation[0] + 1

    def rows(self, count: int) -> int:
        """Rows of data that `count` rows of results read."""
        return (count - 1) * self.strides[0] + self.reach

    @property
    def columns(self) -> int:
        """Columns of padded data that a row of results reads."""
        return (self.ow - 1) * self.strides[1] + (self.kw - 1) * self.dilation[1] + 1

    @property
    def taps(self) -> int:
        """Multiply-adds of a result."""
        return self.kh * self.kw


@dataclass(frozen=True)
class Pair:
    """The two windows of a group. inputs, outputs: channel blocks of the pointwise convolution."""

    group: Group
    first: W.Window
    second: W.Window
    depthwise: Depthwise
    inputs: int
    outputs: int

    @property
    def handed(self) -> Tensor:
        """What the second convolution reads."""
        return self.second.data

    @cached_property
    def memory_bytes(self) -> int:
        """Compulsory traffic: every operand and result of the group once."""
        tensors = self.group.graph.tensors
        return sum(tensors[t].bytes for t in (*self.group.inputs, *self.group.outputs))

    @cached_property
    def beside_bytes(self) -> int:
        """Those of them that are no operand or result of the convolutions."""
        own = (self.first.data, self.first.weight, self.second.weight, self.second.out)
        return max(0, self.memory_bytes - sum(t.bytes for t in own))

    @cached_property
    def work(self) -> tuple[int, int, int]:
        """Scalar operations of the first convolution's prologue, of both convolutions and what follows them."""
        before = sum(op.work.flops for op in self.first.prologue)
        return before, self.first.group.work.flops - before, self.second.group.work.flops


def is_depthwise(op: Operator) -> bool:
    """Whether an operator is a blocked depthwise convolution."""
    return op.kind == "nn.conv2d" and op.attrs.get("variant") == "depthwise"


def is_pointwise(op: Operator) -> bool:
    """Whether an operator may be a pointwise convolution, as far as its attributes say."""
    attrs = op.attrs
    return (
        op.kind == "nn.conv2d"
        and attrs.get("variant") == "blocked"
        and W.pair(attrs, "strides", 1) == (1, 1)
        and not any(W.pair(attrs, "padding", 0))
        and int(str(attrs.get("groups", 1))) == 1
    )


@remembered
def pair_of(group: Group, lanes: int, first: str, second: str) -> Pair | Refusal:
    """The windows of a `first` and a `second` convolution ("depthwise" or "pointwise") behind it, or why not."""
    found = [op for op in group.operators if op.kind == "nn.conv2d"]
    if len(found) != 2:
        return Refusal("anchor", f"needs two convolutions, has {len(found)}")
    a, b = found
    is_first, is_second = (is_depthwise if name == "depthwise" else is_pointwise for name in (first, second))
    if not is_first(a) or not is_second(b):
        return Refusal("anchor", f"{a.name} and {b.name} are no {first} and {second} convolution", (a.index, b.index))
    graph = group.graph
    above = graph.ancestors[b.index]
    if not above >> a.index & 1:
        return Refusal("anchor", f"{b.name} does not depend on {a.name}", (a.index, b.index))
    before = [m for m in group.members if above >> m & 1]
    made = {t for m in before for t in graph.operators[m].outputs}
    if made.intersection(group.outputs):
        return Refusal("output", f"what {b.name} reads stays in a buffer, it is not written out", (a.index,))
    if b.inputs[0] not in made:
        return Refusal("anchor", f"{b.name} does not read what is made of {a.name}", (a.index, b.index))
    one = W.parse(Group.of(graph, before, b.inputs[:1]), ("nn.conv2d",), (_VARIANT[first],))
    if isinstance(one, Refusal):
        return one
    rest = Group.of(graph, set(group.members).difference(before), group.outputs)
    two = W.parse(rest, ("nn.conv2d",), (_VARIANT[second],))
    if isinstance(two, Refusal):
        return two
    readers = [m for m in two.group.members if made.intersection(graph.operators[m].inputs)]
    if readers != [b.index]:
        return Refusal("output", f"what becomes of {a.name} is read by more than {b.name}", (a.index,))
    if two.data.shape != one.out.shape:
        return Refusal("layout", f"{b.name} does not read {a.name}'s result in its layout", (a.index, b.index))
    return _pair(group, one, two, lanes, first == "depthwise")


def _pair(group: Group, one: W.Window, two: W.Window, lanes: int, depthwise_first: bool) -> Pair | Refusal:
    for window in (one, two):
        op = window.anchor
        if any(len(t.shape) != 5 or t.shape[-1] != lanes for t in (window.data, window.out)):
            return Refusal("layout", f"{op.name} is not in blocks of {lanes} channels", (op.index,))
        sources = [other for other in group.operators if window.weight.index in other.inputs]
        if len(sources) != 1:
            return Refusal("weights", f"the weights of {op.name} are read by another operator", (op.index,))
    wide, point = (one, two) if depthwise_first else (two, one)
    outputs, inputs, kh, kw, *inner = point.weight.shape
    if (kh, kw) != (1, 1) or inner != [lanes, lanes] or point.data.shape[2:4] != point.out.shape[2:4]:
        return Refusal("kernel", f"{point.anchor.name} has no 1x1 kernel of stride 1", (point.anchor.index,))
    attrs = wide.anchor.attrs
    padding, strides, dilation = W.pair(attrs, "padding", 0), W.pair(attrs, "strides", 1), W.pair(attrs, "dilation", 1)
    n, blocks, height, width, _ = wide.data.shape
    taps = wide.weight.shape[1:3]
    oh, ow = wide.out.shape[2:4]
    layer = Depthwise(
        n, blocks, lanes, height, width, oh, ow, taps[0], taps[1], padding[0], padding[1], strides, dilation
    )
    if strides[0] > layer.reach or min(padding) < 0 or layer.left >= layer.columns:
        return Refusal("strides", f"{wide.anchor.name} leaves out rows of its data", (wide.anchor.index,))
    return Pair(group, one, two, layer, inputs, outputs)


@dataclass(frozen=True)
class Tiling:
    """What a configuration makes of both convolutions, whatever stands around them.

    shape: without other operands and results. before, first, second: how often the first convolution's prologue and the
    two convolutions, with what follows them, are executed.
    """

    shape: KernelShape
    before: float
    first: float
    second: float


def shape_rows(parts: Sequence[tuple[Pair, Sequence[Tiling]]]) -> NDArray[np.float64]:
    """The kernels' shapes of groups from their tilings, one group after another, as `shape_matrix` gives them."""
    tilings = [tiling for _, made in parts for tiling in made]
    facts = np.array([(*pair.work, pair.beside_bytes, pair.memory_bytes) for pair, _ in parts], np.float64)
    before, first, second, beside, memory = np.repeat(facts, [len(made) for _, made in parts], axis=0).T
    times = np.array([(t.before, t.first, t.second) for t in tilings], np.float64).T
    executed = before * times[0] + first * times[1] + second * times[2]
    rows = shape_matrix([t.shape for t in tilings])
    rows[:, _RECOMPUTE] = np.maximum(1.0, executed / np.maximum(1.0, before + first + second))
    rows[:, _L3] += beside
    rows[:, _MEMORY] = memory
    return rows


def loads(depthwise: float, columns: int, pointwise: float, tile: tuple[int, int], hardware: Hardware) -> float:
    """Loads per multiply-add, averaged over the multiply-adds of both convolutions.

    A tile of `columns` depthwise results loads data and weights in vectors and keeps few accumulations in flight; tile:
    channel blocks × places of the pointwise convolution.
    """
    slots = max(1.0 + 1.0 / columns, W.chains_needed(hardware) / columns)
    nb, mt = tile
    return (depthwise * slots + pointwise * max(1.0, (nb + mt) / (nb * mt))) / (depthwise + pointwise)


def chains(places: int, size: int, blocks: int, hardware: Hardware) -> int:
    """Accumulations in flight, averaged over tiles of `size` places × `blocks` blocks: the last tile keeps fewer."""
    needed = W.chains_needed(hardware)
    full, rest = divmod(places, size)
    steps = full * max(size * blocks, needed) + (max(rest * blocks, needed) if rest else 0)
    if steps <= places * blocks:
        return size * blocks
    return max(1, round(needed * places * blocks / steps))


def column_tile(layer: Depthwise, hardware: Hardware) -> int:
    """Columns of depthwise results in registers, beside the data and the weights of a tap."""
    most = min(7, hardware.vector_registers // 2, max(1, _MOST_TAPS // layer.taps))
    return W.columns(layer.ow, most, 1, 4)[0]


@lru_cache(maxsize=1024)
def register_tiles(outputs: int, places: int, hardware: Hardware) -> tuple[tuple[int, int], ...]:
    """Register tiles (nb, mt) of a pointwise convolution, best first: channel blocks × places. Neither need divide."""
    registers = hardware.vector_registers
    most = registers - registers // 4
    others = 1 if hardware.fused else 2
    chains = W.chains_needed(hardware)

    def time(nb: int, mt: int) -> float:
        # Half cycles: a multiply-add or one and a quarter loads each, or their latency. Many blocks read many weights,
        # which may come from L2.
        return max(nb * mt, (nb + mt) / 1.25, chains) + 0.15 * nb if mt else 0.0

    scored = []
    # One block at a time meets every broadcast with a single multiply-add: 1.1 to 1.9 times slower. Tiles of 4 × 2 were
    # 1.05 to 1.24 times slower; with more registers four blocks meet more places.
    for nb in range(min(2, outputs), min(outputs, 3 if registers <= 16 else 6) + 1):
        for mt in range(1, min(places, most // nb) + 1):
            if nb * mt + nb + others <= registers:
                full, rest = divmod(places, mt)
                across, left = divmod(outputs, nb)
                total = across * (full * time(nb, mt) + time(nb, rest))
                total += full * time(left, mt) + time(left, rest) if left else 0.0
                # Tiles of 2 × 4, 2 × 5 and 2 × 6 were as fast as each other: what is left over decides.
                ragged = (rest != 0) + 2 * (left != 0)
                scored.append((int(20 * total / (outputs * places)), ragged, -nb * mt, nb, (nb, mt)))
    scored.sort()
    return tuple(item[-1] for item in scored)


def shares(blocks: int, each: int, tiles: int) -> int:
    """Tasks that share `blocks` channel blocks, where each has `tiles` tiles of `each` blocks."""
    return ceil(ceil(blocks / each) / tiles)


def even(rows: int, parts: int) -> int:
    """Rows of each of `parts` equal parts that cover `rows`, the last perhaps overlapping the one before it."""
    return -(-rows // max(1, min(parts, rows)))


def rows_near(rows: int, most: int, cores: int) -> int:
    """Rows of a task, at most `most`, such that the core that has most of them has few; the most of equals."""

    def longest(each: int) -> int:
        parts = -(-rows // each)
        return -(-parts // cores) * each

    return min(range(1, max(1, min(rows, most)) + 1), key=lambda each: (longest(each), -each))
