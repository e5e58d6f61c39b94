"""`none` and `greedy`: plans that need no search, and what every strategy is held against."""

from __future__ import annotations

from collections.abc import Sequence

from autofuse.errors import PlanError
from autofuse.search.cover import Counters, CoverSearch
from autofuse.search.order import peak_memory, run_order
from autofuse.search.problem import Choice, SearchProblem, SearchResult, SearchStrategy


def result_of(
    problem: SearchProblem,
    ordered: Sequence[Choice],
    strategy: str,
    counters: Counters | None = None,
    *,
    proved_optimal: bool = False,
    reason: str = "",
) -> SearchResult:
    """The result for choices in run order. PlanError if they need more than the problem's memory."""
    peak = peak_memory(problem.graph, ordered)
    if problem.max_memory and peak > problem.max_memory:
        raise PlanError(
            f"the plan of strategy {strategy!r} needs {_mb(peak)} MB for its tensors and the limit is "
            f"{_mb(problem.max_memory)} MB: raise --max-memory or use --strategy dp"
        )
    done = counters or Counters()
    pruned = dict(problem.pruned)
    for name, count in done.pruned.items():
        pruned[name] = pruned.get(name, 0) + count
    return SearchResult(
        tuple(ordered),
        problem.seconds(ordered),
        strategy,
        proved_optimal,
        done.states,
        done.transitions,
        done.regions,
        pruned,
        reason,
        peak,
    )


def _mb(size: int) -> str:
    return f"{size / 1e6:.3g}"


def singles(problem: SearchProblem) -> list[int]:
    """Positions of the choices of every operator alone. PlanError if an operator has none."""
    found = problem.singles
    for op in problem.graph.operators:
        if op.index not in found:
            raise PlanError(f"operator {op.name} ({op.kind}) has no kernel of its own: it cannot be compiled")
    return [found[op.index] for op in problem.graph.operators]


def greedy_cover(problem: SearchProblem) -> list[int]:
    """Positions of the choices that make up the given partition.

    A set that is not among the choices (no schedule takes it) is covered by the fewest choices inside it.
    """
    inside = within(problem, problem.greedy)
    if len(inside) == len({problem.choices[i].owned & -problem.choices[i].owned for i in inside}):
        covered = 0
        for i in inside:
            covered += problem.choices[i].owned
        whole = covered == (1 << len(problem.graph.operators)) - 1
        if whole and run_order(problem.graph, [problem.choices[i] for i in inside]) is not None:
            return inside  # every set is a choice: nothing to search
    fewest = [1.0 + 1e-6 * _share(problem, i) for i in range(len(problem.choices))]
    for allowed in (inside, within(problem, problem.greedy, keep_exact=False)):
        picked = [problem.choices[i] for i in allowed]
        counters = Counters()
        cover = CoverSearch(problem.graph, picked, problem.thresholds, counters).best([fewest[i] for i in allowed])
        if cover is not None:
            return [allowed[j] for j in cover.chosen]
    return singles(problem)


def _share(problem: SearchProblem, i: int) -> float:
    """A choice's cost among its operators' alone, at most 1: settles ties between equally many kernels."""
    choice = problem.choices[i]
    alone = sum(problem.choices[problem.singles[m]].inside for m in choice.group.members if m in problem.singles)
    return min(1.0, choice.inside / alone) if alone > 0 else 1.0


def within(problem: SearchProblem, sets: Sequence[Sequence[int]], *, keep_exact: bool = True) -> list[int]:
    """Positions of the choices that lie inside one of `sets`, nothing recomputed, and of single operators elsewhere.

    With `keep_exact`, where a whole set is a choice, only that one (the cheapest).
    """
    home = {m: k for k, members in enumerate(sets) for m in members}
    masks = [0] * len(sets)
    for m, k in home.items():
        masks[k] |= 1 << m
    whole: dict[int, int] = {}
    single: dict[int, int] = {}
    parts: list[int] = []
    for i, choice in enumerate(problem.choices):
        members = choice.group.members
        k = home.get(members[0], -1)
        if k < 0:
            if len(members) == 1 and not choice.recomputed:
                best = single.setdefault(members[0], i)
                if choice.inside < problem.choices[best].inside:
                    single[members[0]] = i
        elif not choice.group.mask & ~masks[k] and not choice.recomputed:
            parts.append(i)
            if choice.group.mask == masks[k] and (k not in whole or choice.inside < problem.choices[whole[k]].inside):
                whole[k] = i
    parts = sorted([*parts, *single.values()])
    if not keep_exact:
        return parts
    return [i for i in parts if whole.get(home.get(problem.choices[i].group.members[0], -1), i) == i]


def in_order(problem: SearchProblem, positions: Sequence[int]) -> list[Choice]:
    """The choices at these positions, in run order."""
    ordered = run_order(problem.graph, [problem.choices[i] for i in positions])
    if ordered is None:
        raise PlanError("the chosen groups wait for each other")
    return ordered


class NoneStrategy(SearchStrategy):
    """Every operator alone."""

    name = "none"

    def search(self, problem: SearchProblem) -> SearchResult:
        return result_of(problem, in_order(problem, singles(problem)), self.name)


class GreedyStrategy(SearchStrategy):
    """TVM's own partition (`problem.greedy`); operators that it does not name stay alone."""

    name = "greedy"

    def search(self, problem: SearchProblem) -> SearchResult:
        return result_of(problem, in_order(problem, greedy_cover(problem)), self.name)
