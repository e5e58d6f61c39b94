"""What a configuration makes of a group on a GPU, as far as cost models and pruning must know it. No TVM."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autofuse.graph.model import Group, Operator
from autofuse.schedule.family import KernelShape
from autofuse.target.hardware_gpu import GpuHardware

#: Registers that a kernel takes for addresses, indices and what is in flight, besides what its tile holds.
BASE_REGISTERS = 16


@dataclass(frozen=True)
class GpuShape(KernelShape):
    """`KernelShape` for a GPU: `tasks` are workgroups, `l1_bytes` what goes through L1 (whole lines of memory),
    `l2_bytes` what L1 does not keep, `memory_bytes` compulsory traffic; `vector_fill` the share of lanes with work.

    threads: of a workgroup; registers: vector registers of a lane, estimated; lds_bytes: of a workgroup;
    lds_traffic: bytes that all lanes move to and from LDS; barriers: that a workgroup waits at; launches: kernels.
    """

    threads: int = 64
    registers: int = BASE_REGISTERS
    lds_bytes: int = 0
    lds_traffic: int = 0
    barriers: int = 0
    launches: int = 1

    def fits(self, hardware: GpuHardware) -> bool:
        """Whether a compute unit holds at least one workgroup."""
        return hardware.resident_waves(self.registers, self.lds_bytes, self.threads) > 0


def computed_again(group: Group, anchor: Operator, reads: Sequence[int], apart: int = 0) -> int:
    """Simple operations executed beyond the group's work: what stands before `anchor` is computed where it is read.

    reads: elements that the kernel reads of each of the first operands, repetitions included. apart: members that do
    not count, as a bit set. Functions count as often as they are slower than additions on gfx9.
    """
    graph = group.graph
    total = 0.0
    for tensor, read in zip(anchor.inputs, reads, strict=False):
        producer = graph.producer.get(tensor)
        if producer is None or not group.mask >> producer & 1:
            continue
        side = (graph.ancestors[producer] | 1 << producer) & group.mask & ~apart
        times = max(0.0, read / graph.tensors[tensor].elements - 1.0)
        for op in group.operators:
            if side >> op.index & 1:
                work = op.work
                total += times * (work.fma + work.simple + work.compare + 4 * work.special + 10 * work.divide)
    return int(total)


def ceil_div(a: int, b: int) -> int:
    """a / b rounded up."""
    return -(-a // b)


def whole_lines(together: int, line_bytes: int) -> float:
    """Bytes that pass L1 for each byte used, where neighbouring lanes read runs of `together` bytes apart: it gives a
    wave whole lines, one after another.
    """
    return max(1.0, line_bytes / max(4, together))
