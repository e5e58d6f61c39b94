"""Groups with their configurations → scheduled kernels, with a way back to smaller groups where one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autofuse.codegen.fuse import GroupFuser
from autofuse.graph.model import Group
from autofuse.schedule import ScheduleError
from autofuse.schedule.family import Configuration, ScheduleFamily
from autofuse.target import Hardware

log = logging.getLogger("autofuse")


@dataclass(frozen=True)
class Assignment:
    """What becomes one kernel: a group, the family that schedules it and its configuration."""

    group: Group
    family: ScheduleFamily
    config: Configuration


@dataclass(frozen=True)
class Kernel:
    """A scheduled kernel. `name` is shared by equal kernels; `func` is None for a view (nothing is computed)."""

    assignment: Assignment
    name: str
    func: Any


class KernelBuilder:
    """Schedules groups; equal groups with equal configurations once.

    `check` compiles a function on its own to see whether the code generator takes it; without it only scheduling can
    fail.
    """

    def __init__(self, fuser: GroupFuser, hardware: Hardware, singles: Callable[[Group], Assignment | None]) -> None:
        self._fuser = fuser
        self._hardware = hardware
        self._singles = singles
        self._made: dict[str, Kernel | Exception] = {}

    def schedule(self, assignment: Assignment) -> Kernel:
        """Fuse and schedule one group. Raises what the family or TVM raised."""
        group, family, config = assignment.group, assignment.family, assignment.config
        if family.name == "view":
            return Kernel(assignment, "view", None)
        key = f"{family.name}@{family.version}[{config.text}]{self._fuser.structure(group)}"
        made = self._made.get(key)
        if made is None:
            try:
                func = family.apply(self._fuser.fuse(group), group, config, self._hardware)
                name = f"{_identifier(group.label)}_{len(self._made)}"
                made = Kernel(assignment, name, func.with_attr("global_symbol", name))
            except Exception as error:
                made = error
            self._made[key] = made
        if isinstance(made, Exception):
            raise made
        return Kernel(assignment, made.name, made.func)

    def kernels(self, assignments: Sequence[Assignment]) -> list[Kernel]:
        """A kernel for every group, in order. One that cannot be scheduled is taken apart, with a warning.

        Raises ScheduleError when an operator cannot be scheduled even alone.
        """
        kernels: list[Kernel] = []
        for assignment in assignments:
            try:
                kernels.append(self.schedule(assignment))
            except Exception as error:
                kernels.extend(self.split(assignment, error))
        return kernels

    def split(self, assignment: Assignment, error: Exception) -> list[Kernel]:
        """The members one by one, after `assignment` failed with `error`."""
        group = assignment.group
        reason = str(error).strip().splitlines()[-1] if str(error).strip() else type(error).__name__
        if len(group.members) == 1:
            raise ScheduleError(
                f"operator {group.operators[0].name} ({group.label}) cannot be scheduled: {reason}"
            ) from error
        log.warning(
            "group %s (operators %s) failed with %s: its operators become kernels of their own",
            group.label,
            ", ".join(op.name for op in group.operators),
            reason,
        )
        kernels = []
        needed = set(group.outputs)
        for op in group.operators:
            single = Group.of(group.graph, [op.index])
            if not single.outputs:
                # A recomputed producer's tensor is needed by the members that now stand alone.
                single = Group.of(group.graph, [op.index], [t for t in op.outputs if t not in needed] or op.outputs)
            alone = self._singles(single)
            if alone is None:
                raise ScheduleError(f"operator {op.name} ({op.kind}) has no schedule")
            kernels.append(self.schedule(alone))
        return kernels


def _identifier(label: str) -> str:
    return "fused_" + "".join(c if c.isalnum() else "_" for c in label)
