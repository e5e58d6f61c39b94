"""Groups with their configurations → scheduled kernels, with a way back to smaller groups where one fails."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autofuse.codegen.fuse import GroupFuser
from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Group
from autofuse.schedule import ScheduleError
from autofuse.schedule.family import Configuration, ScheduleFamily
from autofuse.schedule.registry import families
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
    """A scheduled kernel. `name` is shared by equal kernels; `func` is None for a view (nothing is computed).

    `plain`: the loops are as TVM made them, because no schedule worked.
    """

    assignment: Assignment
    name: str
    func: Any
    plain: bool = False

    @property
    def prepared(self) -> Mapping[int, str]:
        """The constants that it reads in another form: position among the group's inputs → preparation."""
        if self.plain or self.func is None:
            return {}
        return self.assignment.family.prepared(self.assignment.group, self.assignment.config)


class KernelBuilder:
    """Schedules groups; equal groups with equal configurations once.

    `singles` gives the assignment of an operator alone, None if it has none: it is asked for when a group fails.
    `costs` says what takes the place of an operator's schedule that fails: what it knows to fail as well never does.
    """

    def __init__(
        self,
        fuser: GroupFuser,
        hardware: Hardware,
        singles: Callable[[Group], Assignment | None],
        costs: CostModel | None = None,
    ) -> None:
        self._fuser = fuser
        self._hardware = hardware
        self._singles = singles
        self._costs = costs
        self._made: dict[str, Kernel | Exception] = {}

    def schedule(self, assignment: Assignment) -> Kernel:
        """Fuse and schedule one group. Raises what the family or TVM raised."""
        group, family, config = assignment.group, assignment.family, assignment.config
        if family.name == "view":
            return Kernel(assignment, "view", None)
        return self._make(
            assignment,
            self._key(assignment),
            "fused",
            lambda: family.apply(self._fuser.fuse(group), group, config, self._hardware),
        )

    def kernels(self, assignments: Sequence[Assignment]) -> list[Kernel]:
        """A kernel for every group, in order. One that cannot be scheduled is taken apart, with a warning."""
        kernels: list[Kernel] = []
        for assignment in assignments:
            try:
                kernels.append(self.schedule(assignment))
            except Exception as error:
                kernels.extend(self.split(assignment, error))
        return kernels

    def replace(self, kernel: Kernel, error: Exception) -> list[Kernel]:
        """What takes the place of a kernel that was scheduled but could not be built."""
        if kernel.plain:
            raise ScheduleError(f"operator {kernel.assignment.group.operators[0].name} cannot be built") from error
        return self.split(kernel.assignment, error)

    def reconfigured(self, kernel: Kernel, error: Exception) -> Kernel | None:
        """The kernel in the cheapest configuration of its family that did not fail yet; None where there is none.

        It failed with `error` itself: this configuration is not taken any more.
        """
        assignment = kernel.assignment
        self._made[self._key(assignment)] = error
        for config in self._offered(assignment.group, assignment.family):
            try:
                return self.schedule(replace(assignment, config=config))
            except Exception:
                continue
        return None

    def split(self, assignment: Assignment, error: Exception) -> list[Kernel]:
        """What takes the place of `assignment` after it failed with `error`: its operators one by one.

        An operator that is alone already gets another schedule, and plain loops if it has no other. Raises
        ScheduleError when even these fail.
        """
        group = assignment.group
        self._made[self._key(assignment)] = error
        if len(group.members) == 1:
            return [self._instead(assignment, error)]
        log.warning(
            "group %s (operators %s) failed with %s: its operators become kernels of their own",
            group.label,
            ", ".join(op.name for op in group.operators),
            last_line(error),
        )
        kernels = []
        for op in group.operators:
            alone = self._singles(Group.of(group.graph, [op.index], op.outputs))
            if alone is None:
                missing = ScheduleError(f"no schedule for {op.kind}")
                alone = Assignment(Group.of(group.graph, [op.index], op.outputs), assignment.family, assignment.config)
                kernels.append(self._instead(alone, missing))
                continue
            try:
                kernels.append(self.schedule(alone))
            except Exception as failure:
                kernels.append(self._instead(alone, failure))
        return kernels

    def _instead(self, assignment: Assignment, error: Exception) -> Kernel:
        """Another kernel for one operator: the first other schedule that works, or unscheduled loops."""
        group = assignment.group
        what = f"operator {group.operators[0].name} ({group.label}) failed with {last_line(error)}"
        for family in families(self._hardware.kind):
            if family.match(group, self._hardware) is not None:
                continue
            for config in self._offered(group, family):
                other = Assignment(group, family, config)
                try:
                    kernel = self.schedule(other)
                except Exception:
                    continue
                log.warning("%s: it takes %s[%s] instead", what, family.name, config.text)
                return kernel
        key = f"plain loops: {self._fuser.structure(group)}"
        try:
            kernel = self._make(assignment, key, "plain", lambda: self._fuser.fuse(group), plain=True)
        except Exception:
            raise ScheduleError(what) from error
        log.warning("%s: it runs as plain loops", what)
        return kernel

    def _offered(self, group: Group, family: ScheduleFamily) -> list[Configuration]:
        """The family's configurations without those that are known to fail, the cheapest first."""
        configs = list(family.configs(group, self._hardware))
        if self._costs is None:
            return configs
        costs = self._costs.costs([Candidate(group, family, config) for config in configs])
        return [configs[i] for i in np.argsort(costs, kind="stable") if np.isfinite(costs[i])]

    def _key(self, assignment: Assignment) -> str:
        family = assignment.family
        return f"{family.name}@{family.version}[{assignment.config.text}]{self._fuser.structure(assignment.group)}"

    def _make(
        self, assignment: Assignment, key: str, prefix: str, make: Callable[[], Any], plain: bool = False
    ) -> Kernel:
        made = self._made.get(key)
        if made is None:
            try:
                name = f"{prefix}_{_identifier(assignment.group.label)}_{len(self._made)}"
                made = Kernel(assignment, name, make().with_attr("global_symbol", name), plain)
            except Exception as error:
                made = error
            self._made[key] = made
        if isinstance(made, Exception):
            raise made
        return replace(made, assignment=assignment)


def last_line(error: Exception) -> str:
    """The last line of an error's text: where TVM says what went wrong."""
    lines = str(error).strip().splitlines()
    return lines[-1] if lines else type(error).__name__


def _identifier(label: str) -> str:
    return "".join(c if c.isalnum() else "_" for c in label)
