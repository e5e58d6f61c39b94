"""Schedule family of attention: two matrix products with a softmax between them, in one kernel.

A task takes blocks of queries of one head. The queries of a block stand in the vector lanes, so that the softmax needs
no step across a vector: scores are kept as [keys, queries] in a buffer that stays near, exponentials replace them, and
the second product reads them as they are. The division by the sum comes last, on the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu.attention_parts import Attention, computed, parse
from autofuse.schedule.cpu.window import chains_needed
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# Floating point operations below which a second thread costs more than it brings.
_SERIAL_FLOPS = 200_000
# Operations in whose time a task copies one element of a key or a value (measured: 7 to 9).
_COPY_COST = 8


@dataclass(frozen=True)
class AttentionConfiguration(Configuration):
    """lq: queries of a block, a multiple of the lanes; jt: keys of a register tile of scores.

    mt, dt: register tile of the second product, queries × vectors of a value. qb: blocks of a task. stage: 1 copies
    the keys of a task first, 0 reads them where they are. parallel: 0 runs on the calling thread.
    """

    lq: int
    jt: int
    mt: int
    dt: int
    qb: int
    stage: int
    parallel: int


class AttentionFamily(ScheduleFamily):
    """Products of queries with keys, elementwise work on the scores, their softmax, and its product with values."""

    name: ClassVar[str] = "attention"
    version: ClassVar[int] = 1
    configuration: ClassVar[type[Configuration]] = AttentionConfiguration

    def anchors(self, op: Operator) -> bool:
        """The softmax between the products."""
        return op.kind == "nn.softmax"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Two products of activations, a softmax of the first one's rows between them, no other reduction."""
        found = parse(group, hardware.lanes)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[AttentionConfiguration]:
        """Blocks of 2, 4, 3 and 1 vectors of queries; enough tasks for every core."""
        a = self._attention(group, hardware)
        lanes = hardware.lanes
        computes = computed(group.graph, a.scores.right)
        widest = -(-a.queries // lanes)
        found: dict[AttentionConfiguration, None] = {}
        for vectors in dict.fromkeys(min(v, widest) for v in (2, 4, 3, 1)):
            lq, blocks = vectors * lanes, -(-widest // vectors)
            jt = max(j for j in range(1, 13) if j == 1 or (j <= a.keys and _fits(vectors, j, hardware)))
            mt, dt = _value_tile(min(lq, a.queries), a.width, hardware)
            serial = hardware.cores == 1 or group.work.flops < _SERIAL_FLOPS
            split = max(1, -(-2 * hardware.cores // a.batch))
            sizes = [blocks] if a.batch % hardware.cores == 0 or serial else []
            sizes += [-(-blocks // split), max(1, -(-blocks // (2 * split)))]
            for qb in dict.fromkeys(sizes):
                tasks = a.batch * -(-blocks // qb)
                for stage in (1,) if computes else (0, 1):
                    parallel = int(tasks > 1 and not serial)
                    found[AttentionConfiguration(lq, jt, mt, dt, qb, stage, parallel)] = None
        return list(found)[:12]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Scores stay where they are made; keys and values pass by once for every block of queries."""
        assert isinstance(config, AttentionConfiguration)
        return _shape(self._attention(group, hardware), config, hardware)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.attention_nests import AttentionNests

        attention = self._attention(group, hardware)
        return blocks.guarded(
            f"attention {config.text}", lambda: AttentionNests(func, attention, config, hardware.lanes).build()
        )

    def _attention(self, group: Group, hardware: Hardware) -> Attention:
        return matched(parse(group, hardware.lanes))


def _fits(across: int, down: int, hardware: Hardware) -> bool:
    """Whether a register tile with `across` vectors in its inner direction leaves room for them and a broadcast."""
    registers = hardware.vector_registers
    return across * down <= registers - registers // 4 and across * down + across + 1 <= registers


def _value_tile(queries: int, width: int, hardware: Hardware) -> tuple[int, int]:
    """The register tile (queries, vectors of a value) of the second product that is fastest, ragged edges included.

    Of equal ones the narrowest: its panel of values stays in L1 beside the scores.
    """
    chains, vectors = chains_needed(hardware), -(-width // hardware.lanes)

    def cost(m: int, d: int) -> float:
        # Multiply-adds, the loads beside them, or the latency of too few of them.
        return max(m * d, m + d, chains) if m and d else 0.0

    scored = []
    for dt in range(min(vectors, 2), min(vectors, 4) + 1):
        for mt in range(1, min(queries, 8) + 1):
            if _fits(dt, mt, hardware):
                down, left = divmod(queries, mt)
                across, rest = divmod(vectors, dt)
                time = across * (down * cost(mt, dt) + cost(left, dt)) + down * cost(mt, rest) + cost(left, rest)
                scored.append((round(time / queries / vectors, 2), left != 0, dt, mt))
    _, _, dt, mt = min(scored)
    return mt, dt


def _shape(a: Attention, c: AttentionConfiguration, hardware: Hardware) -> KernelShape:
    lanes = hardware.lanes
    blocks = -(-a.queries // c.lq)
    groups = -(-blocks // c.qb)
    padded = -(-a.queries // lanes) * lanes  # whole blocks, then whole vectors
    tasks = a.batch * groups
    rows = a.batch * padded
    vectors = c.lq // lanes
    columns = -(-a.width // lanes)
    # Loads for each multiply-add, in the mean of the two products.
    first = (c.jt + vectors) / (c.jt * vectors)
    dt = min(c.dt, columns)
    second = (c.mt + dt) / (c.mt * dt)
    share = a.depth / (a.depth + a.width)
    scores = 4 * a.keys * c.lq
    keys, values = 4 * a.keys * a.depth, 4 * a.keys * columns * lanes
    flops = max(1, a.group.work.flops)
    fetched = tasks * a.keys * a.width + (tasks * a.keys * a.depth if c.stage else 0)
    again = (padded / a.queries - 1.0) * 0.5 + _COPY_COST * fetched / flops
    memory = sum(a.group.graph.tensors[t].bytes for t in (*a.group.inputs, *a.group.outputs))
    # Passes of the scores: written, exponentials, and one for each panel of values.
    panels = -(-columns // c.dt)
    l1 = a.batch * blocks * (scores * (4 + panels) + keys * 2 + values * -(-c.lq // c.mt))
    near = hardware.l1_bytes
    task = scores + keys + values
    l2 = memory + a.batch * blocks * (keys + values)
    if scores + 4 * a.keys * c.dt * lanes > near:
        l2 += a.batch * blocks * scores * (2 + panels)
    return KernelShape(
        tasks=tasks if c.parallel else 1,
        vector_fill=a.queries / padded,
        accumulators=max(c.jt * vectors, c.mt * dt),
        independent_chains=min(c.jt * vectors, c.mt * dt),
        recompute=1.0 + again,
        loads_per_fma=share * first + (1 - share) * second,
        l1_bytes=l1,
        l2_bytes=l2,
        l3_bytes=memory + (l2 if task > hardware.l2_bytes // 2 else 0),
        memory_bytes=memory,
        footprint=task,
        loops=1,
        scattered=rows * a.depth + a.mask_elements,
    )
