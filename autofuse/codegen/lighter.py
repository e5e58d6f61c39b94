"""Kernels whose machine code keeps values in memory for want of registers get another configuration of their family.

Families estimate registers before anything is compiled, and leave out what an estimate forbids; the compiler knows.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from autofuse.codegen.kernels import Kernel, KernelBuilder
from autofuse.codegen.resources import CodeError
from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Group

log = logging.getLogger("autofuse")
Row = Mapping[str, Any]


def spilled(resources: Sequence[Row]) -> str:
    """What code keeps in scratch memory, "" if nothing; `resources`: of each of its kernels, as JSON values.

    Spilled scalar registers do not count: they go to lanes of vector registers, not to memory.
    """
    registers = max((int(row["vgpr_spills"]) for row in resources), default=0)
    scratch = max((int(row["scratch_bytes"]) for row in resources), default=0)
    return f"{registers} registers spill, {scratch} bytes of scratch memory a lane" if registers or scratch else ""


class Lighter:
    """Chooses again for kernels that spill, the cheapest other configuration first; the first one where all spill.

    A kernel that was measured stays: `costs` has its time, whatever it keeps in memory.
    """

    def __init__(self, builder: KernelBuilder, costs: CostModel) -> None:
        self._builder = builder
        self._costs = costs
        self._first: dict[Group, Kernel] = {}
        self._kept: set[Group] = set()

    def again(self, kernels: Sequence[Kernel], resources: Mapping[str, Sequence[Row]]) -> list[Kernel]:
        """The kernels, those that spill in another configuration; `resources` by the kernel's name.

        TVM's own rules have nothing to choose, and what is no longer to be bettered stays: asked again with what it
        gave, compiled, it comes to an end.
        """
        return [self._other(kernel, spilled(resources.get(kernel.name, ()))) for kernel in kernels]

    def _other(self, kernel: Kernel, why: str) -> Kernel:
        chosen = kernel.assignment
        group = chosen.group
        if not why or kernel.plain or group in self._kept:
            return kernel
        if self._costs.sources([Candidate(group, chosen.family, chosen.config)])[0] == "record":
            return kernel
        first = self._first.setdefault(group, kernel)
        other = self._builder.reconfigured(kernel, CodeError(why))
        if other is None:
            self._kept.add(group)
            log.warning("group %s: %s, whatever the configuration", group.label, why)
            return first
        log.info("group %s: %s, now %s", group.label, why, other.assignment.config.text)
        return other
