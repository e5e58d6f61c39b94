"""Which operators may share a kernel: rules on mapping types, and the checks of a whole group.

Takes a graph and two operators, or a group with the schedule families; gives a rule with its reason, or the family
that can schedule the group, or a Refusal. Nothing here looks at an operator's name.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TYPE_CHECKING

from autofuse.graph.model import Graph, Group, MappingType, Operator, Role, bits
from autofuse.graph.reasons import Refusal

if TYPE_CHECKING:
    from autofuse.schedule.family import ScheduleFamily
    from autofuse.target import Hardware


class Rule(enum.Enum):
    """What the mapping types of two neighbours say about one kernel for both."""

    ALWAYS = "always"  # index substitution alone merges the two loop nests
    IF_SCHEDULED = "if scheduled"  # legal, but only a schedule made for the pair keeps the work from growing
    NEVER = "never"


_ONE, _SPREAD, _REDUCE, _HEAVY, _SAME, _MOVE, _OPAQUE = (
    MappingType.ONE_TO_ONE,
    MappingType.ONE_TO_MANY,
    MappingType.MANY_TO_ONE,
    MappingType.MANY_TO_MANY,
    MappingType.REORGANIZE,
    MappingType.SHUFFLE,
    MappingType.OPAQUE,
)
#: Mapping types whose operators read at most one element of every operand for an output element: cheap to repeat.
CHEAP = frozenset({_ONE, _SPREAD, _SAME, _MOVE})

_A, _S, _N = Rule.ALWAYS, Rule.IF_SCHEDULED, Rule.NEVER


def _table() -> dict[tuple[MappingType, MappingType], tuple[Rule, str]]:
    rules: dict[tuple[MappingType, MappingType], tuple[Rule, str]] = {}
    names = {_ONE: "element by element", _SPREAD: "under a broadcast", _SAME: "in the same order", _MOVE: "permuted"}
    for first in (_ONE, _SPREAD, _SAME, _MOVE):
        for second in (_ONE, _SPREAD, _SAME, _MOVE):
            rules[first, second] = (
                (_A, "the producer's value at one index is needed: substitute its expression")
                if second is not _SPREAD
                else (_A, "the producer's expression is substituted, at the price of repeating it under the broadcast")
            )
        rules[first, _REDUCE] = (_A, f"the reduction reads the producer {names[first]}: compute it as it is read")
        rules[first, _HEAVY] = (
            _S,
            "every element of the producer is read many times: a schedule has to keep it in a tile",
        )
    for first, result in ((_REDUCE, "the finished sum"), (_HEAVY, "a finished tile")):
        rules[first, _ONE] = (_A, f"the consumer is applied to {result} before it is stored")
        rules[first, _SAME] = (_A, f"only the index changes at which {result} is stored")
        rules[first, _MOVE] = (_S, f"{result} is stored permuted: needs a schedule that keeps the stores wide")
        rules[first, _SPREAD] = (_S, f"every use repeats or waits for {result}: needs a schedule that keeps it")
        rules[first, _REDUCE] = (_S, f"a reduction over {result}: needs a schedule that nests or chains both")
    rules[_REDUCE, _HEAVY] = (_S, "every result of the reduction is read many times: needs a schedule that keeps it")
    rules[_HEAVY, _HEAVY] = (_S, "two contractions: needs a schedule that keeps the first one's tile for the second")
    for kind in MappingType:
        rules[kind, _OPAQUE] = rules[_OPAQUE, kind] = (_N, "one of the two is no tensor program")
    return rules


#: (producer's mapping type, consumer's mapping type in the shared tensor) → rule and reason.
RULES = _table()


def edge_rule(graph: Graph, producer: int, consumer: int) -> tuple[Rule, str]:
    """The rule for two neighbouring operators, and its reason as a sentence.

    The consumer counts with its mapping in the operand that it shares, so that a bias add is One-to-Many in its bias
    alone. Where it reads several results or the same one twice, the strictest rule holds.
    """
    first, second = graph.operators[producer], graph.operators[consumer]
    if not first.fusable or not second.fusable:
        which = first if not first.fusable else second
        return Rule.NEVER, f"{which.name} ({which.kind}) is no tensor program with one result"
    shared = set(first.outputs)
    worst: tuple[Rule, str] | None = None
    severity = (Rule.ALWAYS, Rule.IF_SCHEDULED, Rule.NEVER)
    for access in second.accesses:
        if access.tensor in shared:
            rule = RULES[first.mapping, access.mapping]
            if worst is None or severity.index(rule[0]) > severity.index(worst[0]):
                worst = rule
    if worst is None:
        if consumer not in graph.successors[producer]:
            return Rule.NEVER, f"{second.name} does not read a result of {first.name}"
        worst = RULES[first.mapping, second.mapping]
    return worst


def recomputable(op: Operator) -> bool:
    """Whether an operator is cheap enough to be computed in several kernels: no reduction, no contraction."""
    return op.fusable and op.mapping in CHEAP and not op.work.fma


def convex_hull(graph: Graph, mask: int) -> int:
    """The smallest convex set that contains `mask`: every operator on a path between two members is added."""
    below, above = 0, 0
    for m in bits(mask):
        below |= graph.descendants[m]
        above |= graph.ancestors[m]
    return mask | (below & above)


def _neighbours(graph: Graph, members: Sequence[int]) -> bool:
    """Whether the members hang together by edges or by inputs (no constants) that they share."""
    inside = set(members)
    seen = {members[0]}
    todo = [members[0]]
    by_tensor: dict[int, list[int]] = {}
    for m in members:
        for t in graph.operators[m].inputs:
            if graph.tensors[t].role is not Role.CONSTANT:
                by_tensor.setdefault(t, []).append(m)
    while todo:
        m = todo.pop()
        near = [*graph.predecessors[m], *graph.successors[m]]
        for t in graph.operators[m].inputs:
            near.extend(by_tensor.pop(t, ()))
        for other in near:
            if other in inside and other not in seen:
                seen.add(other)
                todo.append(other)
    return len(seen) == len(inside)


def check_structure(group: Group, *, max_arguments: int, max_group_size: int) -> Refusal | None:
    """What can be said against a group without asking for a schedule; None if nothing.

    A single operator passes whatever its size: it has to run somehow.
    """
    graph, members = group.graph, group.members
    if not members:
        return Refusal("empty", "a group has at least one operator")
    operators = group.operators
    unknown = set(group.outputs) - {t for op in operators for t in op.outputs}
    if unknown:
        return Refusal("outputs", f"tensor {min(unknown)} is no result of a member", members)
    if len(members) == 1:
        return None
    for op in operators:
        if not op.fusable:
            return Refusal("opaque", f"{op.name} ({op.kind}) is no tensor program with one result", (op.index,))
    if len(members) > max_group_size:
        return Refusal("size", f"{len(members)} operators; at most {max_group_size} share a kernel", members)
    arguments = len(group.inputs) + len(group.outputs)
    if arguments > max_arguments:
        return Refusal("arguments", f"{arguments} kernel arguments; at most {max_arguments} are passed", members)
    missing = convex_hull(graph, group.mask) & ~group.mask
    if missing:
        outside = next(bits(missing))
        detail = f"{graph.operators[outside].name} lies on a path between two members: one kernel would wait for itself"
        return Refusal("convex", detail, (outside,))
    if not _neighbours(graph, members):
        return Refusal("connected", "the operators neither feed each other nor share an input", members)
    for consumer in members:
        for producer in graph.predecessors[consumer]:
            if group.mask >> producer & 1:
                rule, reason = edge_rule(graph, producer, consumer)
                if rule is Rule.NEVER:
                    return Refusal("mapping", reason, (producer, consumer))
    return _check_outputs(group)


def _check_outputs(group: Group) -> Refusal | None:
    """Members used outside are written, or cheap enough to be computed again elsewhere; no member is in vain."""
    graph, written, final = group.graph, set(group.outputs), set(group.graph.outputs)
    for op in group.operators:
        if not written.isdisjoint(op.outputs):
            continue
        successors = graph.successors[op.index]
        if not any(group.mask >> s & 1 for s in successors) and (successors or not final.isdisjoint(op.outputs)):
            return Refusal("outputs", f"nothing in the group uses {op.name}, and it is not written", (op.index,))
        outside = any(not group.mask >> s & 1 for s in successors) or not final.isdisjoint(op.outputs)
        if outside and not recomputable(op):
            detail = f"{op.name} ({op.mapping.value}) is used outside, not written, and too dear to be computed twice"
            return Refusal("recompute", detail, (op.index,))
    return None


# A family that says "not my kind of group" knows less than one that names what is in the way.
_VAGUE = frozenset({"kind", "anchor", "family", "unsupported", "no-anchor"})


def _most_specific(refusals: Sequence[Refusal], members: tuple[int, ...]) -> Refusal:
    if not refusals:
        return Refusal("family", "there is no schedule family for this target", members)

    def rank(refusal: Refusal) -> tuple[bool, bool, int]:
        # Fewer operators named is more specific; no operators at all is least.
        return (refusal.rule in _VAGUE, not refusal.where, len(refusal.where))

    return min(refusals, key=rank)


def match_family(group: Group, hardware: Hardware, families: Sequence[ScheduleFamily]) -> ScheduleFamily | Refusal:
    """The first family that can schedule the group, else the most specific of their refusals."""
    refusals = []
    for family in families:
        refusal = family.match(group, hardware)
        if refusal is None:
            return family
        refusals.append(refusal)
    return _most_specific(refusals, group.members)


def check_group(
    group: Group,
    *,
    hardware: Hardware,
    families: Sequence[ScheduleFamily],
    max_arguments: int = 48,
    max_group_size: int = 64,
) -> ScheduleFamily | Refusal:
    """The family that schedules the group, or why it is not legal.

    Legal: its operators hang together (by edges, or as siblings on one input), the set is convex, holds no opaque
    operator and no edge that is never legal, keeps to the limits, writes what others use unless that is cheap enough
    to be computed again, and a schedule family takes it.
    """
    refusal = check_structure(group, max_arguments=max_arguments, max_group_size=max_group_size)
    if refusal is not None:
        return refusal
    if len(group.members) == 1 and not group.operators[0].fusable:
        op = group.operators[0]
        return Refusal("opaque", f"{op.name} ({op.kind}) is no tensor program with one result", group.members)
    return match_family(group, hardware, families)
