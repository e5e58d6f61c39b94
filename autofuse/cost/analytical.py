"""The analytical cost model: from a group's work, a kernel shape and a hardware description to seconds.

A roofline with one roof per memory level:

    time = max(compute, l1, l2, l3, memory) + exposed + recompute + parallel + entry

Every term is in seconds of the whole kernel and already divided by the speed-up that its tasks allow. What each term is
made of stands at the function that computes it; `AnalyticalCostModel.terms` gives them by name.

Sources: the roofline of Williams, Waterman, Patterson (CACM 52(4), 2009) and its cache-aware form (Ilic, Pratas, Sousa,
IEEE CAL 13(1), 2014); latencies and issue widths of the cores from Fog's instruction tables. Constants that were fitted
or judged say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Group, Role
from autofuse.schedule.family import SHAPE_FIELDS, Configuration, ScheduleFamily
from autofuse.target import Hardware

Array = NDArray[np.float64]
Terms = dict[str, Array]

# Chains that keep the FMA units busy: 2 units × 4 cycles (Skylake and later, Zen 3 and later; 10 on Haswell and Zen 2,
# but 8 accumulators reached sgemm's own rate in the schedules that were tried).
CHAINS_IN_FLIGHT = 8
# Vector loads that a core issues in the time of one FMA at full rate: 2 loads and 2 FMAs a cycle.
LOADS_PER_FMA_SLOT = 1.0
# Registers that an inner tile needs beside its accumulators: a weight, a broadcast input and a temporary.
OPERAND_REGISTERS = 3
# A tile that does not fit in the registers runs at about half the rate (measured: 42 to 46 GFLOP/s, else 84 to 94).
SPILL_SLOWDOWN = 2.0
# A working set counts as inside a cache up to half its size, as outside from twice its size, and in between in
# proportion on a logarithmic scale (judged: LRU, associativity and the other tensors in flight blur the border).
CACHE_EDGE = 2.0
# Share of a kernel's traffic that crosses the border between L2 and L3 however small its tensors are: in a network
# they were written by another kernel, half of them by another core (judged; EfficientNet-B0 with 66 and with 75 kernels
# took the same time, where without this the model saw 2 % between them).
HANDED_ON = 0.5
# Cycles for an element that is loaded or stored by itself: a load, an insertion into a vector (fitted: layout changes
# and transpositions took 0.5 to 0.7).
SCATTER_CYCLES = 0.6
# Seconds to call a compiled function through its packed interface, argument checks included (measured: 0.1 to 0.2 µs).
ENTRY_SECONDS = 1.0e-7


def group_quantities(group: Group) -> tuple[float, ...]:
    """What the model needs of a group whatever its configuration.

    (fma, chained simple, free simple, chained compare, free compare, divide, special) in scalar operations, then the
    compulsory bytes: its inputs and outputs once, and the constants among them. Chained are those of reductions without
    multiply-adds (a sum, a maximum): each waits for the one before it, as multiply-adds do.
    """
    fma = divide = special = 0
    simple, compare = [0, 0], [0, 0]  # free, chained
    for op in group.operators:
        work = op.work
        chained = bool(op.reduction) and not work.fma
        fma += work.fma
        simple[chained] += work.simple
        compare[chained] += work.compare
        divide += work.divide
        special += work.special
    tensors = group.graph.tensors
    moved = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
    weights = sum(tensors[t].bytes for t in group.inputs if tensors[t].role is Role.CONSTANT)
    return tuple(map(float, (fma, simple[1], simple[0], compare[1], compare[0], divide, special, moved, weights)))


def outside(size: Array, capacity: float | Array) -> Array:
    """Share (0..1) of a working set of `size` bytes that a cache of `capacity` bytes does not hold."""
    with np.errstate(divide="ignore"):
        position = np.log(size / capacity) / np.log(CACHE_EDGE)
    clipped: Array = np.clip((position + 1.0) / 2.0, 0.0, 1.0)
    return clipped


class AnalyticalCostModel(CostModel):
    """Latency from a hardware description alone: the seed of every search, and the learned model's base.

    Costs are those of the kernel by itself, as a measurement of it sees them; `call_cost` is what a plan adds for each.
    `cold`: of a kernel in a network whose weights do not stay in the last cache (`weights.py`): its constants come from
    memory in every run.
    """

    name: ClassVar[str] = "analytical"

    def __init__(self, hardware: Hardware, cold: bool = False) -> None:
        self.hardware = hardware
        self.cold = cold
        h = hardware
        # A level further out is never faster, whatever noise a calibration caught.
        self._l1 = h.l1_bandwidth
        self._l2 = min(h.l2_bandwidth, self._l1)
        self._l3 = min(h.l3_bandwidth, self._l2)
        # What one core can draw from memory: no more than from L3.
        self._memory_per_core = min(self._l3, h.memory_bandwidth)

    @property
    def call_cost(self) -> float:
        """Seconds that the virtual machine adds to a plan for each of its kernels."""
        return self.hardware.call_overhead

    def shapes(self, candidates: Sequence[Candidate]) -> Array:
        """Each candidate's kernel shape as its family states it, (n, 16): see `shape_matrix`."""
        rows = np.empty((len(candidates), len(SHAPE_FIELDS)))
        # Family → its groups with their configurations, and where these stand. Candidates of one group and family
        # mostly stand side by side: the family looks at the group once.
        work: dict[int, tuple[ScheduleFamily, list[tuple[Group, list[Configuration]]], list[int]]] = {}
        group: Group | None = None
        family: ScheduleFamily | None = None
        for i, candidate in enumerate(candidates):
            if candidate.group is not group or candidate.family is not family:
                group, family = candidate.group, candidate.family
                _, asked, where = work.setdefault(id(family), (family, [], []))
                configs: list[Configuration] = []
                asked.append((group, configs))
            configs.append(candidate.config)
            where.append(i)
        for chosen, asked, where in work.values():
            rows[where] = chosen.shapes_of(asked, self.hardware)
        return rows

    def costs(self, candidates: Sequence[Candidate]) -> Array:
        """Seconds of each candidate; see CostModel."""
        return self.terms(candidates)["total"]

    def terms(self, candidates: Sequence[Candidate], shapes: Array | None = None) -> Terms:
        """The named terms of each candidate's cost, arrays of length n in seconds; `shapes` if already known.

        fma, simple, compare, divide, special, scatter: serial seconds of one core. compute, exposed, recompute, l1,
        l2, l3, memory, parallel, entry: seconds as they count. total: the cost. speedup: one core's time over the
        kernel's (a number).
        """
        if shapes is None:
            shapes = self.shapes(candidates)
        rows: dict[int, int] = {}
        unique: list[tuple[float, ...]] = []
        index = np.empty(len(candidates), np.intp)
        for i, candidate in enumerate(candidates):
            key = id(candidate.group)  # alive as long as `candidates` is, and cheaper than hashing
            row = rows.get(key)
            if row is None:
                row = rows[key] = len(unique)
                unique.append(group_quantities(candidate.group))
            index[i] = row
        quantities = np.array(unique, np.float64).reshape(-1, 9)[index]
        return self.evaluate(quantities, shapes)

    def evaluate(self, quantities: Array, shape: Array) -> Terms:
        """`terms` from plain numbers: quantities (n, 9) of `group_quantities`, shape (n, 16) of `shape_matrix`."""
        h = self.hardware
        tasks, fill, accumulators, chains, recompute, loads, l1, l2, l3, compulsory, footprint = shape.T[:11]
        loops, scattered, exposed, fma_ratio, extra_simple = shape.T[11:]
        tasks = np.maximum(tasks, 1.0)
        # Tasks run in waves of `cores`; a last wave that is not full leaves cores idle. One task: one core.
        speedup = tasks / np.ceil(tasks / h.cores)
        lanes = np.clip(fill, 1.0 / h.lanes, 1.0)
        # A view has no loop nest: nothing is computed or moved.
        runs = (loops > 0).astype(np.float64)
        quantities = quantities * runs[:, None]
        # What a schedule executes: a fast algorithm trades multiply-adds for additions.
        quantities[:, 0] *= fma_ratio
        quantities[:, 2] += extra_simple * runs
        result = self._work(quantities, lanes, accumulators, chains, loads)
        work = result["fma"] + result["simple"] + result["compare"] + result["divide"] + result["special"]
        result["scatter"] = scattered * SCATTER_CYCLES / h.frequency_hz
        result["compute"] = (work + result["scatter"]) / speedup
        # `recompute` is scalar operations executed over needed for the whole kernel: what is beyond 1 is extra time.
        result["recompute"] = np.maximum(recompute - 1.0, 0.0) * result["compute"]

        compulsory = np.where(compulsory > 0, compulsory * runs, quantities[:, 7])
        used = np.minimum(tasks, h.cores)
        cold = self._cold_bytes(compulsory, quantities) if self.cold else np.zeros(len(shape))
        result |= self._traffic(compulsory, cold, l1 * runs, l2 * runs, l3 * runs, footprint * runs, used, speedup)
        result["l1"] /= lanes
        # Each loop nest of a parallel kernel enters and leaves the pool once.
        parallel = (tasks > 1) & (h.cores > 1)
        result["parallel"] = np.where(parallel, h.parallel_overhead * np.maximum(loops, 1.0), 0.0)
        result["entry"] = np.full(len(shape), ENTRY_SECONDS)
        traffic = np.maximum.reduce([result[name] for name in ("l2", "l3", "memory")])
        roof = np.maximum.reduce([traffic, result["compute"], result["l1"]])
        # Of two phases one after the other the shorter is not hidden by the longer.
        result["exposed"] = exposed * np.minimum(traffic, result["compute"])
        result["speedup"] = speedup
        result["total"] = roof + result["exposed"] + result["recompute"] + result["parallel"] + result["entry"]
        return result

    def _work(self, quantities: Array, lanes: Array, accumulators: Array, chains: Array, loads: Array) -> Terms:
        """Serial seconds of one core for each class of scalar operations.

        A class's rate (operations per second with full vectors) is lowered by the share of lanes in use. Multiply-adds
        run slower by the worst of: too few independent chains to hide their latency, more vector loads per FMA than are
        issued beside it; and by the spill factor where accumulators and operands exceed the registers. Reductions
        without multiply-adds wait for the chains alike.
        """
        h = self.hardware
        fma, chained_simple, free_simple, chained_compare, free_compare, divide, special = quantities[:, :7].T
        latency = CHAINS_IN_FLIGHT / np.clip(chains, 1.0, CHAINS_IN_FLIGHT)
        slots = np.maximum(latency, np.maximum(loads / LOADS_PER_FMA_SLOT, 1.0))
        excess = np.maximum(accumulators + OPERAND_REGISTERS - h.vector_registers, 0.0)
        # Beyond the cliff every further register costs its share of loads and stores.
        spill = np.where(excess > 0, SPILL_SLOWDOWN + excess / h.vector_registers, 1.0)
        return {
            "fma": fma / (h.fma_per_second * lanes) * slots * spill,
            "simple": (free_simple + chained_simple * latency) / (h.simple_per_second * lanes),
            "compare": (free_compare + chained_compare * latency) / (h.simple_per_second * lanes),
            "divide": divide / (h.divide_per_second * lanes),
            "special": special / (h.special_per_second * lanes),
        }

    def _cold_bytes(self, compulsory: Array, quantities: Array) -> Array:
        """Bytes of a kernel's constants, in the form in which it reads them.

        What its compulsory traffic is beyond that of its other tensors: a form may be larger, and of a table only some
        rows are read.
        """
        moved, weights = quantities[:, 7:].T
        return np.where(weights > 0, np.maximum(compulsory - (moved - weights), 0.0), 0.0)

    def _traffic(
        self,
        compulsory: Array,
        cold: Array,
        l1: Array,
        l2: Array,
        l3: Array,
        footprint: Array,
        used: Array,
        speedup: Array,
    ) -> Terms:
        """Seconds for the bytes that cross each border: registers/L1, L1/L2, L2/L3, L3/memory.

        Compulsory bytes (inputs and outputs once) cross the borders that their producer's leftovers do not save them:
        L1 and L2 always; L3 as far as a core's part of them, or what one task works on, does not fit its L2, HANDED_ON
        of them at least; memory as far as they do not fit L3 (tensors are hot in L3 unless they are larger), and those
        of them that are `cold` whatever their size. Traffic that the tiling repeats is stated by the kernel shape; what
        it repeats across L2/L3 comes from memory where the tasks that run at once overflow L3 together. They share what
        they read, so together they hold no more than the compulsory bytes, unless one alone does. L1, L2 and L3
        bandwidths are a core's and add up over cores; memory's is the chip's, and one core cannot draw more of it than
        of L3. (L1 bandwidth is that of full vectors: `evaluate` divides by the share of lanes in use.)
        """
        h = self.hardware
        running = np.maximum(footprint, np.minimum(footprint * used, compulsory))
        past_l2 = np.maximum(outside(np.maximum(compulsory / used, footprint), h.l2_bytes), HANDED_ON)
        past_l3 = outside(np.maximum(compulsory, running), h.l3_bytes)
        once = compulsory * past_l3 + cold * (1.0 - past_l3)
        from_memory = np.maximum(once, l3 * outside(running, h.l3_bytes))
        return {
            "l1": np.maximum(l1, compulsory) / (self._l1 * speedup),
            "l2": np.maximum(l2, compulsory) / (self._l2 * speedup),
            "l3": np.maximum(l3, compulsory) * past_l2 / (self._l3 * speedup),
            "memory": from_memory / np.minimum(h.memory_bandwidth, self._memory_per_core * speedup),
        }
