"""Which sets of a graph's operators are legal groups. Takes sets as bit masks, gives yes or no and keeps the groups.

Every set is judged once, and groups that are alike are shown to the schedule families once.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from autofuse.graph.legality import match_family
from autofuse.graph.model import Graph, Group, bits
from autofuse.schedule.family import ScheduleFamily
from autofuse.search.problem import Thresholds
from autofuse.search.signature import Signatures
from autofuse.target import Hardware

# Inputs over the limit that growing a little does not take back.
_HOPELESS_ARGUMENTS = 8


@dataclass(frozen=True)
class LegalGroup:
    """A group, the family that schedules it, and a value that is equal for groups that are alike."""

    group: Group
    family: ScheduleFamily
    signature: Hashable


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
        self._alike: dict[Hashable, tuple[ScheduleFamily | None, Hashable]] = {}
        self._verdicts: dict[Hashable, ScheduleFamily | None] = {}
        # Operators of groups have one result; an output of the graph has a user outside every group.
        self._result = [op.outputs[0] if op.outputs else -1 for op in graph.operators]
        self._users = graph.user_masks
        self._operands = [len(op.inputs) for op in graph.operators]

    def cut(self, name: str) -> None:
        """Count what a threshold cut."""
        self.pruned[name] = self.pruned.get(name, 0) + 1

    def natural(self, mask: int) -> bool:
        """Whether a convex, connected set of operators is legal with the outputs that others use."""
        known = self.seen.get(mask)
        if known is None:
            members = list(bits(mask))
            users = self._users
            written = [m for m in members if users[m] & mask != users[m]]
            result = self._result
            if len(members) == 1:
                # An operator alone may have several results, or none that is used.
                group = Group.of(self.graph, members)
                known = self.judge(group, mask, written)
            else:
                if len(written) > 1:
                    written.sort(key=result.__getitem__)
                outputs = tuple([result[m] for m in written])
                known = self.judge(Group(self.graph, tuple(members), outputs), mask, written)
            self.seen[mask] = known
        return known

    def judge(self, group: Group, mask: int, written: Sequence[int]) -> bool:
        """Whether a group is legal. `mask`: its members; `written`: those that make its outputs, in their order."""
        members = group.members
        if len(members) > 1:
            if len(members) > self.thresholds.max_group_size:
                self.cut("max_group_size")
                return False
            operands = self._operands
            most = len(group.outputs) + sum([operands[m] for m in members])
            limit = self.thresholds.max_arguments
            if most > limit and len(group.inputs) + len(group.outputs) > limit:
                self.cut("max_arguments")
                if len(group.inputs) > limit + _HOPELESS_ARGUMENTS:
                    self.hopeless.add(mask)
                return False
        place = self._signatures.place(members, written)
        known = self._alike.get(place)
        if known is None:
            known = self._alike[place] = self._matched(group)
        family, signature = known
        if family is None:
            return False
        self.found[mask, group.outputs] = LegalGroup(group, family, signature)
        return True

    def _matched(self, group: Group) -> tuple[ScheduleFamily | None, Hashable]:
        signature = self._signatures.of(group)
        if signature not in self._verdicts:
            matched = match_family(group, self.hardware, self.families)
            self._verdicts[signature] = matched if isinstance(matched, ScheduleFamily) else None
        return self._verdicts[signature], signature
