"""The cheapest way to cover a graph's operators by choices: the exact search that the strategies share.

Takes a graph, choices, a weight for each, and gives a Cover: chosen positions in an order to run.

Choices that cannot be part of a cheapest cover are put aside (prices.py). What is left usually cuts the graph into
more and smaller regions, which are searched one by one (region_search.py). Covers without recomputation come first:
they are quickly found, they cut into smaller regions still, and their best is what a recomputing choice has to beat. A
cover that meets the bound (but for a ten-millionth) is the answer, and nothing is searched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from autofuse.graph.model import Graph
from autofuse.search.prices import Prices, prices, sharper
from autofuse.search.problem import Choice, Thresholds
from autofuse.search.region_search import SLACK, RegionSearch, skippable
from autofuse.search.region_search import Counters as Counters
from autofuse.search.regions import Region, cut

_ROUNDS = 4  # rounds of putting choices aside and cutting anew
_WORTH_A_ROUND = 0.9  # share of the choices kept, above which another round brings little
_MANY = 64  # choices from which on a quick search for a better bound pays
_LARGE = 256  # the same for sharper prices
_NEAR = 1e-6  # gap, as a share, that is not worth either
_EQUAL = 1e-7  # gap, as a share, up to which a cover counts as proved the cheapest: costs are estimates


@dataclass(frozen=True)
class Cover:
    """Positions of the chosen choices, in an order to run; the sum of their weights; whether nothing was cut."""

    chosen: tuple[int, ...]
    value: float
    exact: bool


class CoverSearch:
    """Covers of one graph by one list of choices. `whole` searches it as a single region (needed to plan memory)."""

    def __init__(
        self,
        graph: Graph,
        choices: Sequence[Choice],
        thresholds: Thresholds,
        counters: Counters,
        *,
        whole: bool = False,
    ) -> None:
        self.graph = graph
        self.choices = choices
        self.thresholds = thresholds
        self.counters = counters
        self.regions = cut(graph, choices, whole=whole)
        counters.regions = len(self.regions)
        self._sizes = [sum(graph.tensors[t].bytes for t in op.outputs) for op in graph.operators]

    def best(
        self,
        weights: Sequence[float],
        known: Sequence[Sequence[int]] = (),
        *,
        max_memory: int = 0,
        minimise_peak: bool = False,
        cap: int | None = None,
    ) -> Cover | None:
        """The cover with the smallest sum of weights; None if there is none within `max_memory` bytes.

        `known`: covers (positions) that bound the search, and that the result is never worse than when no memory
        limit is set. With `minimise_peak` the weights are ignored and the value is the peak in bytes. cap: instead of
        `states_per_region`.
        """
        bounding = [list(k) for k in known]
        regions: Sequence[Region] = self.regions
        if not max_memory and not minimise_peak:
            regions, bounding = self._narrowed(weights, bounding, cap)
        memo: dict[tuple[object, ...], tuple[list[int], bool]] = {}
        chosen: list[int] = []
        exact = True
        known_sets = [set(k) for k in bounding]
        for region in regions:
            if len(region.choices) == 1:
                chosen.append(region.choices[0].position)
                continue
            covers = [[j for j, c in enumerate(region.choices) if c.position in k] for k in known_sets]
            structure = region.structure(weights) if not max_memory and not minimise_peak else None
            solved = memo.get(structure) if structure is not None else None
            if solved is None:
                search = RegionSearch(
                    region,
                    weights,
                    self._sizes,
                    self.thresholds,
                    self.counters,
                    max_memory=max_memory,
                    minimise_peak=minimise_peak,
                    cap=cap,
                )
                found = search.run([] if max_memory or minimise_peak else covers)
                if found is None:
                    return None
                solved = found
                if structure is not None:
                    memo[structure] = found
            chosen.extend(region.choices[j].position for j in solved[0])
            exact = exact and solved[1]
        value = sum(weights[i] for i in chosen)
        self.counters.exact = self.counters.exact and exact
        return Cover(tuple(chosen), value, exact)

    def _narrowed(
        self, weights: Sequence[float], known: list[list[int]], cap: int | None
    ) -> tuple[Sequence[Region], list[list[int]]]:
        """Regions of the choices that may be in a cheapest cover, and a cover of them that is no dearer than `known`.

        Where single operators are missing there may be none, and all choices stay.
        """
        plain = self._plain
        if len(plain) < len(self.choices):
            search, counters = self._without_recomputation, Counters()
            search.counters = counters
            place = {i: j for j, i in enumerate(plain)}
            without = [[place[i] for i in k] for k in known if all(i in place for i in k)]
            cover = search.best([weights[i] for i in plain], without, cap=cap)
            self.counters.regions = max(self.counters.regions, len(search.regions))
            self.counters.states += counters.states
            self.counters.transitions += counters.transitions
            if cover is not None:
                known = [*known, [plain[j] for j in cover.chosen]]
        regions: Sequence[Region] = self.regions
        left = len(self.choices)
        for _ in range(_ROUNDS):
            kept: list[int] = []
            best: list[int] = []
            memo: dict[tuple[object, ...], tuple[list[int], list[int]] | None] = {}
            known_sets = [set(k) for k in known]
            for region in regions:
                if len(region.choices) == 1 and not region.choices[0].extra:
                    kept.append(region.choices[0].position)
                    best.append(region.choices[0].position)
                    continue
                structure = region.structure(weights)
                if structure not in memo:
                    covers = [[j for j, c in enumerate(region.choices) if c.position in k] for k in known_sets]
                    memo[structure] = self._worthwhile(region, weights, covers)
                found = memo[structure]
                if found is None:
                    return regions, known
                kept.extend(region.choices[j].position for j in found[0])
                best.extend(region.choices[j].position for j in found[1])
            known = [best]
            if len(kept) < left:
                self.counters.cut("too_dear", left - len(kept))
                regions = cut(self.graph, self.choices, among=sorted(kept))
            if len(kept) > _WORTH_A_ROUND * left:
                break
            left = len(kept)
        return regions, known

    @cached_property
    def _plain(self) -> list[int]:
        """Positions of the choices that recompute nothing."""
        return [i for i, c in enumerate(self.choices) if not c.recomputed]

    @cached_property
    def _without_recomputation(self) -> CoverSearch:
        return CoverSearch(self.graph, [self.choices[i] for i in self._plain], self.thresholds, Counters())

    def _worthwhile(
        self, region: Region, weights: Sequence[float], covers: Sequence[list[int]]
    ) -> tuple[list[int], list[int]] | None:
        """Positions of the region's choices that may be in a cheapest cover, and of the best cover so far."""
        own = [weights[c.position] for c in region.choices]
        found = prices(len(region.operators), region.choices, own, skippable(region))
        candidates = [*covers, *([found.cover] if found.cover is not None else [])]
        if not candidates:
            return None
        best = min(candidates, key=lambda cover: sum(own[j] for j in cover))
        positions = list(range(len(own)))
        kept = _not_too_dear(found, own, best)
        value = sum(own[j] for j in best)
        if len(kept) > _LARGE and value - found.bound > _NEAR * value:
            better = sharper(
                len(region.operators), [region.choices[j] for j in kept], [own[j] for j in kept], skippable(region)
            )
            if better.bound > found.bound:
                place = {j: i for i, j in enumerate(kept)}
                positions, found = kept, better
                left = _not_too_dear(found, [own[j] for j in kept], [place[j] for j in best])
                kept = [positions[i] for i in left]
        if len(kept) > _MANY and value - found.bound > _NEAR * value:
            part = replace(region, choices=tuple(region.choices[j] for j in kept))
            quick = RegionSearch(part, weights, self._sizes, self.thresholds, self.counters, cap=0).look(value)
            if quick is not None:
                best = [kept[j] for j in quick]
                place = {j: i for i, j in enumerate(positions)}
                left = _not_too_dear(found, [own[j] for j in positions], [place[j] for j in best])
                kept = [positions[i] for i in left]
        return kept, best


def _not_too_dear(found: Prices, weights: Sequence[float], best: Sequence[int]) -> list[int]:
    value = sum(weights[j] for j in best)
    if value - found.bound <= _EQUAL * value:
        return sorted(best)
    limit = value * SLACK - found.bound
    needed = set(best)
    return [j for j, slack in enumerate(found.slack) if slack <= limit or j in needed]
