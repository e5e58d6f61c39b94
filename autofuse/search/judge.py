"""Which sets of a graph's operators are legal groups. Takes sets as bit masks, gives yes or no and keeps the groups.

Every set is judged once, and groups that are alike are shown to the schedule families once.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import NamedTuple

from autofuse.graph.model import Graph, Group, Operator, positions
from autofuse.schedule.family import ScheduleFamily
from autofuse.search.problem import Thresholds
from autofuse.search.signature import Signatures
from autofuse.target import Hardware

# Inputs over the limit that growing a little does not take back.
_HOPELESS_ARGUMENTS = 8


class LegalGroup(NamedTuple):
    """A group, the family that schedules it, and a number that is equal for groups that are alike.

    shown: the one of the groups that are alike that the families were shown: they remember what they found out.
    whole: whether it writes all that others use, so that it computes nothing that another group computes too.
    """

    group: Group
    family: ScheduleFamily
    signature: int
    shown: Group
    whole: bool


class Judged(NamedTuple):
    """What came of a set: the group if it is legal, else which threshold cut it, if one did; whether it is hopeless.

    written: the members that make the group's outputs, in their order.
    """

    mask: int
    legal: LegalGroup | None
    cut: str
    hopeless: bool
    written: tuple[int, ...]


# The family that takes groups of one kind, if one does, the number of their signature, and the group that was shown.
_Verdict = tuple[ScheduleFamily | None, int, Group]


class GroupJudge:
    """Judges convex, connected sets of fusable operators of one graph.

    found: the legal groups by members (a bit set) and outputs. seen: the sets with the outputs that others use, and
    their groups where they are legal. pruned: what thresholds cut. hopeless: sets with so many operands that no larger
    one is legal.
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
        self.seen: dict[int, LegalGroup | None] = {}
        self.hopeless: set[int] = set()
        self.signatures = Signatures(graph)
        self._cut_sets: dict[int, str] = {}
        self._alike: dict[Hashable, _Verdict] = {}
        self._verdicts: dict[Hashable, _Verdict] = {}
        # Operators of groups have one result; an output of the graph has a user outside every group.
        self._result = [op.outputs[0] if op.outputs else -1 for op in graph.operators]
        self._users = graph.user_masks
        self._operands = [len(op.inputs) for op in graph.operators]
        # The families that may be the first to take a group, and the operators that each admits, and its anchors; those
        # that never take more than one operator apart.
        first = [(f, self._where(f.admits), self._where(f.anchors)) for f in families if not f.beside]
        self._first = {many: [row for row in first if row[0].most_operators > many] for many in (False, True)}
        self._shape = [graph.tensors[op.outputs[0]].shape if op.outputs else () for op in graph.operators]
        self._behind = graph.descendants
        self._moulds: dict[tuple[int, ...], int] = {}

    def _where(self, holds: Callable[[Operator], bool]) -> int:
        return sum(1 << op.index for op in self.graph.operators if holds(op))

    def _fits(self, family: ScheduleFamily, mask: int, last: int, written: Sequence[int]) -> bool:
        """Whether the results, and what depends on the last anchor, are such as the family says that it takes."""
        shapes = self._shape
        if family.one_shape and len(written) > 1 and len({shapes[m] for m in written}) > 1:
            return False
        behind = self._behind[last]
        if family.results_behind:
            for m in written:
                if m != last and not behind >> m & 1:
                    return False
        return not family.keeps_shape or not mask & behind & ~self._mould(shapes[last])

    def _mould(self, shape: tuple[int, ...]) -> int:
        """The operators whose result has a shape, and those that change the layout, as a bit set."""
        known = self._moulds.get(shape)
        if known is None:
            known = self._where(lambda op: self._shape[op.index] == shape or op.kind == "layout_change")
            self._moulds[shape] = known
        return known

    def cut(self, name: str) -> None:
        """Count what a threshold cut."""
        self.pruned[name] = self.pruned.get(name, 0) + 1

    def natural(self, mask: int) -> bool:
        """Whether a convex, connected set of operators is legal with the outputs that others use."""
        seen = self.seen
        if mask not in seen:
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
            seen[mask] = self.judge(mask, members, outputs, written, whole=True)
        return seen[mask] is not None

    def judge(
        self, mask: int, members: Sequence[int], outputs: tuple[int, ...], written: Sequence[int], *, whole: bool
    ) -> LegalGroup | None:
        """The group if it is legal. `mask`: its members; `written`: those that make its outputs, in their order."""
        if len(members) > 1:
            if len(members) > self.thresholds.max_group_size:
                self._refuse(mask, "max_group_size", whole)
                return None
            operands = self._operands
            limit = self.thresholds.max_arguments
            if len(outputs) + sum([operands[m] for m in members]) > limit:
                inputs = len(Group(self.graph, tuple(members), outputs).inputs)
                if inputs + len(outputs) > limit:
                    self._refuse(mask, "max_arguments", whole)
                    if inputs > limit + _HOPELESS_ARGUMENTS:
                        self.hopeless.add(mask)
                    return None
        possible = [
            f
            for f, admitted, anchors in self._first[len(members) > 1]
            if mask & admitted == mask
            and f.least_anchors <= (mask & anchors).bit_count() <= f.most_anchors
            and len(outputs) <= f.most_results
            and self._fits(f, mask, (mask & anchors).bit_length() - 1, written)
        ]
        if not possible:
            return None
        place = self.signatures.place(mask, members, written)
        known = self._alike.get(place)
        if known is not None and known[0] is None:
            return None
        group = Group.made(self.graph, tuple(members), outputs, mask)
        if known is None:
            known = self._alike[place] = self._matched(group, possible)
        family, signature, shown = known
        if family is None:
            return None
        legal = self.found[mask, outputs] = LegalGroup(group, family, signature, shown, whole)
        return legal

    def _refuse(self, mask: int, name: str, whole: bool) -> None:
        self.cut(name)
        if whole:
            self._cut_sets[mask] = name

    def _matched(self, group: Group, possible: Sequence[ScheduleFamily]) -> _Verdict:
        """The first of the families that takes the group."""
        signature = self.signatures.of(group)
        known = self._verdicts.get(signature)
        if known is None:
            taking = (f for f in possible if f.match(group, self.hardware) is None)
            known = self._verdicts[signature] = next(taking, None), len(self._verdicts), group
        return known

    # What was found in one place, in another that is alike

    def outcomes(self, sets: Iterable[int]) -> list[Judged]:
        """What came of sets that `natural` was asked about."""
        producer, made = self.graph.producer, []
        for mask in sets:
            legal = self.seen[mask]
            written = tuple([producer[t] for t in legal.group.outputs]) if legal is not None else ()
            made.append(Judged(mask, legal, self._cut_sets.get(mask, ""), mask in self.hopeless, written))
        return made

    def repeat(self, judged: Iterable[Judged], distance: int) -> None:
        """The same of the sets that stand `distance` operators further on, where the operators are alike."""
        seen, found, graph, result = self.seen, self.found, self.graph, self._result
        for mask, legal, cut, hopeless, written in judged:
            moved = mask << distance
            if moved in seen:
                continue
            if legal is None:
                seen[moved] = None
                if cut:
                    self._refuse(moved, cut, whole=True)
                if hopeless:
                    self.hopeless.add(moved)
                continue
            members = tuple([m + distance for m in legal.group.members])
            outputs = tuple([result[m + distance] for m in written])
            group = Group.made(graph, members, outputs, moved)
            seen[moved] = found[moved, outputs] = LegalGroup(group, legal.family, legal.signature, legal.shown, True)
