"""Which sets of a graph's operators are legal groups. Takes sets as bit masks, gives yes or no and keeps the groups.

Every set is judged once, and groups that are alike are shown to the schedule families once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass

from autofuse.graph.model import Graph, Group, Operator, positions
from autofuse.schedule.family import ScheduleFamily
from autofuse.search.problem import Thresholds
from autofuse.search.signature import Signatures
from autofuse.target import Hardware

# Inputs over the limit that growing a little does not take back.
_HOPELESS_ARGUMENTS = 8


@dataclass(frozen=True)
class LegalGroup:
    """A group, the family that schedules it, and a value that is equal for groups that are alike.

    shown: the one of the groups that are alike that the families were shown: they remember what they found out.
    """

    group: Group
    family: ScheduleFamily
    signature: Hashable
    shown: Group


# The family that takes groups of one kind, if one does, their signature, and the group that was shown.
_Verdict = tuple[ScheduleFamily | None, Hashable, Group]


class GroupJudge:
    """Judges convex, connected sets of fusable operators of one graph.

    found: the legal groups by members (a bit set) and outputs. pruned: what thresholds cut. hopeless: sets with so many
    operands that no larger one is legal.
    """

    def __init__(
        self, graph: Graph, *, hardware: Hardware, families: Sequence[ScheduleFamily], thresholds: Thresholds
    ) -> None:
        self.graph = graph
        self.hardware = hardware
        self.families = families
        self.thresholds = thresholds
        self.pruned: dict[str, int] = {}
        self.found: dict[tuple[int, tuple[int, ...]], LegalGroup] = {}
        self.seen: dict[int, bool] = {}
        self.hopeless: set[int] = set()
        self._signatures = Signatures(graph)
        self._alike: dict[Hashable, _Verdict] = {}
        self._verdicts: dict[Hashable, _Verdict] = {}
        # Operators of groups have one result; an output of the graph has a user outside every group.
        self._result = [op.outputs[0] if op.outputs else -1 for op in graph.operators]
        self._users = graph.user_masks
        self._operands = [len(op.inputs) for op in graph.operators]
        # The families that may be the first to take a group; for each the operators that it admits, and its anchors.
        self._first = [(f, self._where(f.admits), self._where(f.anchors)) for f in families if not f.beside]

    def _where(self, holds: Callable[[Operator], bool]) -> int:
        return sum(1 << op.index for op in self.graph.operators if holds(op))

    def cut(self, name: str) -> None:
        """Count what a threshold cut."""
        self.pruned[name] = self.pruned.get(name, 0) + 1

    def natural(self, mask: int) -> bool:
        """Whether a convex, connected set of operators is legal with the outputs that others use."""
        known = self.seen.get(mask)
        if known is None:
            members = positions(mask)
            users = self._users
            written = [m for m in members if users[m] & mask != users[m]]
            result = self._result
            if len(members) == 1:
                # An operator alone may have several results, or none that is used.
                outputs = Group.of(self.graph, members).outputs
            else:
                if len(written) > 1:
                    written.sort(key=result.__getitem__)
                outputs = tuple([result[m] for m in written])
            known = self.seen[mask] = self.judge(mask, members, outputs, written) is not None
        return known

    def judge(
        self, mask: int, members: Sequence[int], outputs: tuple[int, ...], written: Sequence[int]
    ) -> Group | None:
        """The group if it is legal. `mask`: its members; `written`: those that make its outputs, in their order."""
        if len(members) > 1:
            if len(members) > self.thresholds.max_group_size:
                self.cut("max_group_size")
                return None
            operands = self._operands
            limit = self.thresholds.max_arguments
            if len(outputs) + sum([operands[m] for m in members]) > limit:
                inputs = len(Group(self.graph, tuple(members), outputs).inputs)
                if inputs + len(outputs) > limit:
                    self.cut("max_arguments")
                    if inputs > limit + _HOPELESS_ARGUMENTS:
                        self.hopeless.add(mask)
                    return None
        possible = [f for f, admitted, anchors in self._first if mask & anchors and mask & admitted == mask]
        if not possible:
            return None
        place = self._signatures.place(mask, members, written)
        known = self._alike.get(place)
        if known is not None and known[0] is None:
            return None
        group = Group(self.graph, tuple(members), outputs)
        if known is None:
            known = self._alike[place] = self._matched(group, possible)
        family, signature, shown = known
        if family is None:
            return None
        self.found[mask, outputs] = LegalGroup(group, family, signature, shown)
        return group

    def _matched(self, group: Group, possible: Sequence[ScheduleFamily]) -> _Verdict:
        """The first of the families that takes the group."""
        signature = self._signatures.of(group)
        known = self._verdicts.get(signature)
        if known is None:
            taking = (f for f in possible if f.match(group, self.hardware) is None)
            known = self._verdicts[signature] = next(taking, None), signature, group
        return known
