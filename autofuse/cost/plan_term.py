"""What a plan takes beyond the sum of its kernels, each measured by itself. Plain numbers; no TVM.

A kernel that is timed by itself, over and over, finds its operands in the L2 caches as far as these hold them. In a
plan other kernels have run in between, and what they handed on was half written by another core: the kernel fetches
its operands from L3. So a plan takes

    launches × call + sum over kernels of min(operands, L2 of the cores it uses) × (1 / L3 - 1 / L2 bandwidth)

beyond its kernels. Every figure is one of `autofuse doctor --calibrate`: `call_overhead`, the difference of a long and
a short chain of trivial kernels in the virtual machine, and the bandwidths of L2 and L3, which are a core's. Parallel
regions need no term of their own: a waiting pool stays awake for longer than the gap between two kernels, so a region
takes in a plan what it took when the kernel was timed. Constants are operands like others in a network whose weights
stay in the last cache; where they do not, cold samples have had them from memory already, and they are left out.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autofuse.cost.model import Candidate
from autofuse.graph.model import Role
from autofuse.target import Hardware


@dataclass(frozen=True)
class PlanKernel:
    """One launch: bytes of operands that its timing found in the caches, and whether all cores run it."""

    operands: int
    parallel: bool


@dataclass(frozen=True)
class PlanTerm:
    """Seconds that a plan adds to its kernels: calls of the virtual machine, and operands that come from L3 again."""

    calls: float
    refill: float

    @property
    def seconds(self) -> float:
        """All of it."""
        return self.calls + self.refill


def plan_kernel(candidate: Candidate, hardware: Hardware, cold: bool) -> PlanKernel:
    """What the term needs to know of a kernel. `cold`: its cold samples count (`weights.weights_are_cold`)."""
    group = candidate.group
    tensors = group.graph.tensors
    operands = sum(
        tensors[t].bytes for t in (*group.inputs, *group.outputs) if not (cold and tensors[t].role is Role.CONSTANT)
    )
    shape = candidate.family.shape(group, candidate.config, hardware)
    return PlanKernel(operands, shape.tasks > 1 and hardware.cores > 1)


def plan_term(kernels: Iterable[PlanKernel], hardware: Hardware) -> PlanTerm:
    """The term of a plan, `kernels` in any order, one for each launch."""
    h = hardware
    l3 = min(h.l3_bandwidth, h.l2_bandwidth)  # a level further out is no faster, whatever noise a calibration caught
    slower = 1.0 / l3 - 1.0 / h.l2_bandwidth
    launches, refill = 0, 0.0
    for kernel in kernels:
        cores = h.cores if kernel.parallel else 1
        launches += 1
        refill += min(kernel.operands, cores * h.l2_bytes) * slower / cores
    return PlanTerm(launches * h.call_overhead, refill)
