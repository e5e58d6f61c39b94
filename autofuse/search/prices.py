"""A price for every operator, so that no choice is cheaper than its operators: a bound, and which choices may pay.

Takes a region and the weights of its choices; gives prices that add up to a lower bound of every cover's weight.

Every operator is owned by exactly one choice of a cover, or, where it may be left to recomputation (skippable),
computed inside at least one. So with prices p, p >= 0 for skippable operators, and for every choice G a
slack(G) = weight(G) - sum of p over what G owns or recomputes >= 0, a cover weighs

    sum of weights = sum of slacks + sum over G of p(G) >= sum of slacks + sum of all prices.

The sum of all prices bounds every cover, and a cover that uses G weighs at least that and slack(G): where this is more
than a known cover weighs, G is in no cheapest cover (linear programming: reduced cost fixing). A choice that computes
something again thus has to pay for it: it stays only if what it saves may exceed the prices of what it repeats.

The prices come from the cheapest cut of the region's order into choices of neighbours, whose differences are the best
prices for these choices alone, made feasible for all and raised operator by operator. They are mostly the optimum of
the linear program or close to it. `sharper` does more, for the choices that are left when those that are too dear are
gone: it raises all prices from nothing, then takes back and raises again those of a few operators at a time, in both
orders. On the networks that were tried this reached the optimum of the linear program, in a tenth of a solver's time.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from autofuse.graph.model import bits, positions
from autofuse.search.regions import LocalChoice

_INFINITE = float("inf")
_PASSES = 8
_WINDOW = 32  # operators whose prices are raised again together
_GAIN = 1e-6  # relative; passes that raise the bound by less end it
_CROWDED = 40  # choices an operator, from which on arrays are quicker than lists


@dataclass(frozen=True)
class Prices:
    """`of`: each operator's price. `bound`: their sum. `slack`: each choice's weight over its operators' prices.

    `cover`: positions of the cheapest cut into neighbours, in order; None if single operators are missing.
    """

    of: list[float]
    bound: float
    slack: list[float]
    cover: list[int] | None


def priced(choice: LocalChoice, skippable: int) -> Sequence[int]:
    """The operators whose prices a choice has to pay, ascending."""
    extra = choice.extra & skippable
    return positions(choice.owned | extra) if extra else choice.operators


def prices(count: int, choices: Sequence[LocalChoice], weights: Sequence[float], skippable: int) -> Prices:
    """Prices of a region's `count` operators; `skippable`: those that may be left to recomputation."""
    price, cover = _neighbours(count, choices, weights)
    return _feasible(price, _rows(choices, skippable), weights, skippable, cover)


def sharper(count: int, choices: Sequence[LocalChoice], weights: Sequence[float], skippable: int) -> Prices:
    """The same with more effort, never less; better than `prices` only where few choices are too dear for any cover."""
    table = _table([0.0] * count, _rows(choices, skippable), weights, skippable)
    table.settle()
    for start in range(0, count, _WINDOW // 2):
        window = range(start, min(count, start + _WINDOW))
        table.again(window)
        table.again(window[::-1])
    made = Prices(table.price, sum(table.price), list(table.slack), None)
    first = prices(count, choices, weights, skippable)
    return made if made.bound >= first.bound else first


def _rows(choices: Sequence[LocalChoice], skippable: int) -> list[Sequence[int]]:
    return [priced(c, skippable) for c in choices]


def _feasible(
    price: list[float],
    rows: Sequence[Sequence[int]],
    weights: Sequence[float],
    skippable: int,
    cover: list[int] | None,
) -> Prices:
    for v in bits(skippable):
        price[v] = max(price[v], 0.0)
    table = _table(price, rows, weights, skippable)
    # What is too dear is first taken back evenly, the worst first; then each operator takes what its choices leave.
    slack = table.slack
    before = list(slack)
    for j in sorted((j for j, left in enumerate(before) if left < 0), key=lambda j: (before[j], j)):
        if slack[j] < 0:
            step = slack[j] / len(rows[j])
            for v in rows[j]:
                table.move(v, step if not skippable >> v & 1 else max(step, -price[v]))
    table.settle()
    return Prices(price, sum(price), list(slack), cover)


class _Table:
    """Prices that are being raised, and what they leave of each choice's weight."""

    def __init__(
        self, price: list[float], rows: Sequence[Sequence[int]], weights: Sequence[float], skippable: int
    ) -> None:
        self.price = price
        self.skippable = skippable
        operators = np.fromiter(chain.from_iterable(rows), np.intp)
        owner = np.repeat(np.arange(len(rows)), np.fromiter(map(len, rows), np.intp, len(rows)))
        slack = np.array(weights, np.float64)
        np.subtract.at(slack, owner, np.array(price)[operators])
        self.slack: Any = slack.tolist()
        users = owner[np.argsort(operators, kind="stable")].tolist()
        ends = np.cumsum(np.bincount(operators, minlength=len(price))).tolist()
        # For each operator, the choices that pay for it.
        self.users: list[Any] = [users[start:end] for start, end in zip([0, *ends], ends, strict=False)]

    def move(self, v: int, step: float) -> None:
        """Add to the price of operator v."""
        slack = self.slack
        self.price[v] += step
        for j in self.users[v]:
            slack[j] -= step

    def least(self, v: int) -> float:
        """What the choices that pay for operator v leave at least."""
        slack = self.slack
        return float(min([slack[j] for j in self.users[v]]))

    def raised(self, operators: Iterable[int]) -> bool:
        """Each operator takes what the choices that pay for it leave. Whether one had to give something back.

        Unless one had to, each now has a choice that leaves nothing, and raising them again brings nothing.
        """
        users = self.users
        lowered = False
        for v in operators:
            if len(users[v]):
                step = self.least(v)
                if self.skippable >> v & 1:
                    step = max(step, -self.price[v])
                if step:
                    self.move(v, step)
                    lowered = lowered or step < 0
        return lowered

    def settle(self) -> None:
        """Raise all prices until that brings nothing."""
        count = len(self.price)
        bound = -_INFINITE
        for turn in range(_PASSES):
            lowered = self.raised(range(count) if turn % 2 else range(count - 1, -1, -1))
            if not lowered:
                break
            reached = sum(self.price)
            if reached <= bound + _GAIN * abs(reached):
                break
            bound = reached

    def again(self, operators: Sequence[int]) -> None:
        """Take back the operators' prices and raise them in this order; as before if they do not add up to more."""
        before = [self.price[v] for v in operators]
        for v in operators:
            if self.price[v] > 0:
                self.move(v, -self.price[v])
        self.raised(operators)
        if sum([self.price[v] for v in operators]) < sum(before):
            for v, price in zip(operators, before, strict=True):
                self.move(v, price - self.price[v])


class _CrowdedTable(_Table):
    """The same where very many choices pay for each operator: with arrays, and so with the same numbers."""

    def __init__(
        self, price: list[float], rows: Sequence[Sequence[int]], weights: Sequence[float], skippable: int
    ) -> None:
        super().__init__(price, rows, weights, skippable)
        self.slack = np.array(self.slack)
        self.users = [np.array(users, np.intp) for users in self.users]

    def move(self, v: int, step: float) -> None:
        self.price[v] += step
        self.slack[self.users[v]] -= step

    def least(self, v: int) -> float:
        return float(self.slack[self.users[v]].min())


def _table(price: list[float], rows: Sequence[Sequence[int]], weights: Sequence[float], skippable: int) -> _Table:
    crowded = sum(map(len, rows)) > _CROWDED * len(price)
    return (_CrowdedTable if crowded else _Table)(price, rows, weights, skippable)


def _neighbours(
    count: int, choices: Sequence[LocalChoice], weights: Sequence[float]
) -> tuple[list[float], list[int] | None]:
    """The cheapest cut of 0..count-1 into choices of neighbours: differences of its partial sums, and its choices."""
    ending: list[list[tuple[int, int]]] = [[] for _ in range(count)]
    for j, c in enumerate(choices):
        row = c.operators
        if row and not c.extra and row[-1] - row[0] == len(row) - 1:
            ending[row[-1]].append((row[0], j))
    best = [0.0] + [_INFINITE] * count
    taken = [-1] * count
    for v in range(count):
        for first, j in ending[v]:
            value = best[first] + weights[j]
            if value < best[v + 1]:
                best[v + 1], taken[v] = value, j
    if best[count] == _INFINITE:
        return [0.0] * count, None
    cover: list[int] = []
    v = count - 1
    while v >= 0:
        cover.append(taken[v])
        v = choices[taken[v]].operators[0] - 1
    whole = _INFINITE not in best
    return [best[v + 1] - best[v] if whole else 0.0 for v in range(count)], cover[::-1]
