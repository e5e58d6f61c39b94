"""What a plan takes beyond its kernels, each measured or predicted by itself. Takes candidates, gives seconds.

A kernel that is timed by itself, over and over, finds its operands in the L2 caches as far as these hold them. In a
plan other kernels have run in between, and what they handed on was half written by another core: the kernel fetches
its operands from L3, and what it writes takes lines from there. So a plan takes

    launches × call + sum over kernels of (activations + min(constants, L2 of the cores it uses))
                                          × (1 / L3 - 1 / L2 bandwidth) / cores it uses

beyond its kernels. Every figure is one of `autofuse doctor --calibrate`: `call_overhead`, the difference of a long and
a short chain of trivial kernels in the virtual machine, and the bandwidths of L2 and L3, which are a core's.
Activations larger than L2 count whole: alone they come from L3 too, but in plans they took longer by as much again for
a byte (docs/architecture.md). Parallel regions need no term of their own: a waiting pool stays awake for longer than
the gap between two kernels, so a region takes in a plan what it took when the kernel was timed. Constants are those
that a network's timing found in the caches; where its weights do not stay there, cold samples have had them from memory
already, and they are left out.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.analytical import AnalyticalCostModel
from autofuse.cost.model import Candidate
from autofuse.graph.model import Role
from autofuse.schedule.family import SHAPE_COLUMN
from autofuse.target import Hardware

Array = NDArray[np.float64]
_TASKS, _LOOPS, _MEMORY = (SHAPE_COLUMN[name] for name in ("tasks", "loops", "memory_bytes"))


def refill(activations: Array, constants: Array, cores: Array, hardware: Hardware) -> Array:
    """Seconds that kernels take longer in a plan, calls aside; arrays of one length.

    activations: bytes of inputs and results. constants: bytes of those that the kernel's timing found in the caches.
    cores: that run it.
    """
    h = hardware
    l3 = min(h.l3_bandwidth, h.l2_bandwidth)  # a level further out is no faster, whatever noise a calibration caught
    slower = 1.0 / l3 - 1.0 / h.l2_bandwidth
    found: Array = (activations + np.minimum(constants, cores * h.l2_bytes)) * slower / cores
    return found


def refills(candidates: Sequence[Candidate], hardware: Hardware, cold: bool) -> Array:
    """`refill` of each candidate, seconds; 0 for views, which read nothing, and on GPUs, whose cores share their L2.

    cold: cold samples count (`weights.weights_are_cold`).
    """
    if hardware.kind != "cpu" or not candidates:
        return np.zeros(len(candidates))
    shapes = AnalyticalCostModel(hardware).shapes(candidates)
    activations, constants = np.empty(len(candidates)), np.zeros(len(candidates))
    for i, candidate in enumerate(candidates):
        group = candidate.group
        tensors = [group.graph.tensors[t] for t in (*group.inputs, *group.outputs)]
        values = activations[i] = sum(t.bytes for t in tensors if t.role is not Role.CONSTANT)
        moved = sum(t.bytes for t in tensors)
        if moved > values and not cold:
            # In the form in which they are read: one may be larger, and of a table only some rows are read.
            constants[i] = max((shapes[i, _MEMORY] or moved) - values, 0.0)
    cores = np.where(shapes[:, _TASKS] > 1, hardware.cores, 1)
    return np.where(shapes[:, _LOOPS] > 0, refill(activations, constants, cores, hardware), 0.0)
