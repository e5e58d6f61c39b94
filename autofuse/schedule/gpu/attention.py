"""Attention on a GPU: two matrix products with a softmax between them, in one kernel.

A workgroup takes some queries of one head. It brings them to LDS, makes their scores with all keys there, a few threads
a query turn these into weights, and all threads add up the values by them. Scores never go to memory; keys and values
are read from L2 by every workgroup of the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal
from autofuse.schedule.cpu.attention_parts import Attention, parse
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.schedule.gpu.roof import terms
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape, ceil_div
from autofuse.target import GpuHardware, Hardware
from autofuse.target.gpu import MOST_THREADS

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

#: Queries whose scores a thread makes at once, from one key.
TOGETHER = 4
#: Threads of a query at most: each reads what all of them found.
_MOST_SHARING = 16
_CONFIGURATIONS = 8


@dataclass(frozen=True)
class GpuAttentionConfig(Configuration):
    """rows: queries of a workgroup, a multiple of TOGETHER; threads: of it, a power of two of them for each query."""

    rows: int
    threads: int

    @property
    def sharing(self) -> int:
        """Threads that make the weights of one query."""
        return self.threads // self.rows


def pitch(keys: int) -> int:
    """Elements from the scores of one query to those of the next: odd, so that threads of several read other banks."""
    return keys | 1


class GpuAttentionFamily(ScheduleFamily):
    """Products of queries with keys, elementwise work on the scores, their softmax, and its product with values."""

    name: ClassVar[str] = "gpu_attention"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = GpuAttentionConfig

    def anchors(self, op: Operator) -> bool:
        """The softmax between the products."""
        return op.kind == "nn.softmax"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Two products of activations, a softmax of the first one's rows between them, whose scores LDS holds."""
        found = parse(group, hardware.lanes)
        if isinstance(found, Refusal):
            return found
        assert isinstance(hardware, GpuHardware)
        if not _offered(found, hardware):
            return Refusal("scores", f"the scores of {TOGETHER} queries with {found.keys} keys do not fit LDS", ())
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuAttentionConfig]:
        """Those whose scores fit, first those that take least by `roof.terms`."""
        assert isinstance(hardware, GpuHardware)
        attention = _attention(group, hardware)
        times = {c: terms(group.work, _shape(attention, c), hardware)["total"] for c in _offered(attention, hardware)}
        return sorted(times, key=lambda c: (times[c], c.text))[:_CONFIGURATIONS]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """See `_shape`."""
        assert isinstance(config, GpuAttentionConfig)
        return _shape(_attention(group, hardware), config)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.attention_nests import build

        return build(func, _attention(group, hardware), config)


def _attention(group: Group, hardware: Hardware) -> Attention:
    found = parse(group, hardware.lanes)
    assert isinstance(found, Attention)
    return found


def _lds(a: Attention, c: GpuAttentionConfig) -> int:
    """Bytes of LDS: scores and weights, queries, a value a thread twice, a share a query."""
    return 4 * (2 * c.rows * pitch(a.keys) + c.rows * a.depth + 2 * c.threads + c.rows)


def _offered(a: Attention, hardware: GpuHardware) -> list[GpuAttentionConfig]:
    """Those of which a unit holds two workgroups, or one of the smallest; no more queries than there are."""
    found = []
    for rows in (4, 8, 16, 32):
        for threads in (64, 128, MOST_THREADS):
            config = GpuAttentionConfig(rows, threads)
            fits = _lds(a, config) <= (hardware.workgroup_lds if rows == TOGETHER else hardware.workgroup_lds // 2)
            whole = threads % hardware.wave == 0 and 1 <= config.sharing <= _MOST_SHARING
            if fits and whole and (rows == TOGETHER or rows < 2 * a.queries):
                found.append(config)
    return found


def _shape(a: Attention, c: GpuAttentionConfig) -> GpuShape:
    """Keys pass L1 once for TOGETHER queries, values once for each; both pass L2 once a workgroup."""
    tensors = a.group.graph.tensors
    memory = sum(tensors[t].bytes for t in (*a.group.inputs, *a.group.outputs))
    tiles = ceil_div(a.queries, c.rows)
    groups = a.batch * tiles
    padded = tiles * c.rows
    wide = next(w for w in (4, 2, 1) if a.width % w == 0)
    keys, values = 4 * a.keys * a.depth, 4 * a.keys * a.width
    first, second = groups * c.rows * a.keys * a.depth, groups * c.rows * a.keys * a.width
    # Threads that have something to add up in the second product, of all.
    pairs = c.rows * ceil_div(a.width, wide)
    busy = pairs / (ceil_div(pairs, c.threads) * c.threads)
    # Beside multiply-adds: reads of queries and scores from LDS, addresses; idle threads count as if they worked.
    beside = first // 8 + second // 2 + int(second * (1 / busy - 1))
    return GpuShape(
        tasks=groups,
        accumulators=TOGETHER,
        independent_chains=TOGETHER,
        recompute=padded / a.queries,
        l1_bytes=memory + groups * (keys * (c.rows // TOGETHER) + values * c.rows),
        l2_bytes=memory + groups * (keys + values),
        l3_bytes=memory,
        memory_bytes=memory,
        footprint=keys + values,
        extra_simple=beside,
        threads=c.threads,
        registers=BASE_REGISTERS + 48,
        lds_bytes=_lds(a, c),
        lds_traffic=4 * first + 4 * second // wide + 16 * groups * c.rows * a.keys,
        barriers=6,
    )
