"""How well measurements repeat: takes a store with repeated measurements, gives the differences within each identity.

A pair is two successful records of one identity (the same kernel on the same hardware), from different collections or
one after another. Its difference is |a - b| / ((a + b) / 2); every pair of an identity counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import combinations, groupby
from typing import Any

from autofuse.records.record import Record
from autofuse.records.store import RecordStore

_REPEATS = 16  # of one identity, the newest: pairs grow with the square


@dataclass(frozen=True)
class Spread:
    """Differences of pairs: `normalised` and plain `latency`, each the median and the 95th percentile (None: no pairs).

    `kernels`: identities that were measured more than once. `cold`: normalised latency with cold weights, of the
    `cold_pairs` that both have cold samples.
    """

    kernels: int = 0
    pairs: int = 0
    normalised: tuple[float, float] | None = None
    latency: tuple[float, float] | None = None
    cold_pairs: int = 0
    cold: tuple[float, float] | None = None

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""

        def both(of: tuple[float, float] | None) -> dict[str, float | None]:
            return {"median": None if of is None else of[0], "p95": None if of is None else of[1]}

        return {
            "kernels": self.kernels,
            "pairs": self.pairs,
            "normalised": both(self.normalised),
            "latency": both(self.latency),
            "cold_pairs": self.cold_pairs,
            "cold": both(self.cold),
        }


@dataclass(frozen=True)
class NoiseReport:
    """The spread over all, and by schedule family. `changed`: identities that did and did not succeed."""

    overall: Spread
    families: dict[str, Spread]
    changed: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            **self.overall.as_dict(),
            "changed": self.changed,
            "families": {name: spread.as_dict() for name, spread in sorted(self.families.items())},
        }


@dataclass
class _Pairs:
    kernels: int = 0
    normalised: list[float] = field(default_factory=list)
    latency: list[float] = field(default_factory=list)
    cold: list[float] = field(default_factory=list)

    def spread(self) -> Spread:
        return Spread(
            self.kernels,
            len(self.latency),
            quantiles(self.normalised),
            quantiles(self.latency),
            len(self.cold),
            quantiles(self.cold),
        )


def noise(store: RecordStore, hardware: str | None = None) -> NoiseReport:
    """What repeated measurements in `store` say, of one hardware if given."""
    families: dict[str, _Pairs] = {}
    changed = 0
    for records in _repeated(store.records(hardware)):
        good = _counted(records)
        changed += 0 < len(good) < min(len(records), _REPEATS)
        if len(good) < 2:
            continue
        found = families.setdefault(good[0].family, _Pairs())
        found.kernels += 1
        for a, b in combinations(good, 2):
            assert a.latency and b.latency and a.normalised and b.normalised
            found.latency.append(difference(a.latency, b.latency))
            found.normalised.append(difference(a.normalised, b.normalised))
            if a.cold_samples and b.cold_samples:
                assert a.cold_normalised and b.cold_normalised
                found.cold.append(difference(a.cold_normalised, b.cold_normalised))
    total = _Pairs(
        sum(f.kernels for f in families.values()),
        [d for f in families.values() for d in f.normalised],
        [d for f in families.values() for d in f.latency],
        [d for f in families.values() for d in f.cold],
    )
    return NoiseReport(total.spread(), {name: pairs.spread() for name, pairs in families.items()}, changed)


def pairs(store: RecordStore, hardware: str | None = None) -> Iterator[tuple[Record, Record]]:
    """The pairs that `noise` counts, one identity's after another's."""
    for records in _repeated(store.records(hardware)):
        yield from combinations(_counted(records), 2)


def _repeated(records: Iterable[Record]) -> Iterator[Sequence[Record]]:
    """Runs of records of one identity that hold more than one; a store gives its records in that order."""
    for _, run in groupby(records, key=lambda r: r.identity):
        found = list(run)
        if len(found) > 1:
            yield found


def _counted(records: Sequence[Record]) -> list[Record]:
    """Of the records of one identity, oldest first, those that count."""
    return [r for r in records if r.ok][-_REPEATS:]


def difference(a: float, b: float) -> float:
    """Of two measurements, relative to their mean."""
    return abs(a - b) / ((a + b) / 2)


def quantiles(differences: Sequence[float]) -> tuple[float, float] | None:
    """Median and 95th percentile; None of nothing."""
    if not differences:
        return None
    import numpy as np

    median, high = np.quantile(differences, [0.5, 0.95])
    return float(median), float(high)
