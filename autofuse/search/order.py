"""An order in which a plan's groups can run, and the memory that it needs. Takes choices, gives choices and bytes."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.graph.model import Graph, bits
from autofuse.schedule.family import remembered
from autofuse.search.problem import Choice


@remembered
def depth_first(graph: Graph) -> tuple[int, ...]:
    """A topological order of the operators that finishes one branch before it starts the next.

    Few values are alive, and few groups straddle a position of it, at a time.
    """
    order: list[int] = []
    done = 0
    producer = graph.producer
    roots = [producer[t] for t in graph.outputs if t in producer] + list(range(len(graph.operators)))
    for root in roots:
        stack = [(root, False)]
        while stack:
            op, ready = stack.pop()
            if done >> op & 1:
                continue
            if ready:
                done |= 1 << op
                order.append(op)
                continue
            stack.append((op, True))
            # The predecessor with the deepest past goes first: it is on top of the stack.
            before = sorted(graph.predecessors[op], key=lambda p: (graph.ancestors[p].bit_count(), -p))
            stack.extend((p, False) for p in before if not done >> p & 1)
    return tuple(order)


def run_order(graph: Graph, choices: Sequence[Choice]) -> list[Choice] | None:
    """The choices sorted so that each runs after those whose results it reads; None if they form a cycle.

    Depth first along `depth_first(graph)`: a group runs as soon as its first operator is due and, just before it,
    whatever it still waits for.
    """
    owner: dict[int, int] = {}
    for i, choice in enumerate(choices):
        for m in bits(choice.owned):
            owner[m] = i
    order: list[Choice] = []
    state = [0] * len(choices)  # 0 new, 1 waiting for others, 2 placed
    for op in depth_first(graph):
        if op not in owner or state[owner[op]] == 2:
            continue
        stack = [owner[op]]
        while stack:
            i = stack[-1]
            if state[i] == 2:
                stack.pop()
                continue
            missing = {owner[p] for p in bits(choices[i].reads) if p in owner and state[owner[p]] != 2}
            if not missing:
                state[i] = 2
                order.append(choices[i])
                stack.pop()
                continue
            if any(state[j] == 1 for j in missing):  # it waits for one that waits for it
                return None
            state[i] = 1
            ahead = min(missing, key=lambda j: choices[j].owned & -choices[j].owned)
            stack.append(ahead)
    return order if len(order) == len(choices) else None


def peak_memory(graph: Graph, ordered: Sequence[Choice]) -> int:
    """Bytes of written tensors alive at once when the choices run in this order.

    A tensor lives from the kernel that writes it to the last one that reads it, an output of the graph to the end.
    """
    last: dict[int, int] = {}
    for i, choice in enumerate(ordered):
        for t in choice.group.inputs:
            last[t] = i
    final = set(graph.outputs)
    ends: dict[int, int] = {}
    alive = peak = 0
    for i, choice in enumerate(ordered):
        for t in choice.group.outputs:
            size = graph.tensors[t].bytes
            alive += size
            if t not in final:
                end = max(last.get(t, i), i)
                ends[end] = ends.get(end, 0) + size
        peak = max(peak, alive)
        alive -= ends.pop(i, 0)
    return peak
