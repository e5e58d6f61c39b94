"""The recorded cost model: a candidate's measured latency where there is one, another model's answer elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate, CostModel
from autofuse.graph.model import Group
from autofuse.records.identity import KeyOf, default_key, identity_of
from autofuse.records.record import Identity, Measured
from autofuse.records.store import RecordStore


class RecordedCostModel(CostModel):
    """Costs from the records of one hardware and of the families' present versions, else `fallback`'s.

    The normalised latency counts, where `cold` that with cold weights: for networks whose weights do not stay in the
    last cache (`cost/weights.py`; the fallback should know it too). A recorded failure costs infinity. Answers are
    kept: records that are added to the store later are not seen by this object. `key_of` gives a group's workload key.
    """

    name: ClassVar[str] = "recorded"

    def __init__(
        self,
        store: RecordStore,
        hardware_digest: str,
        fallback: CostModel,
        key_of: KeyOf | None = None,
        cold: bool = False,
    ) -> None:
        self._store = store
        self._hardware = hardware_digest
        #: Answers where there is no record.
        self.fallback = fallback
        self._key_of = key_of or default_key()
        self._cold = cold
        self._keys: dict[tuple[int, Group], tuple[Group, str]] = {}
        self._known: dict[Identity, Measured | None] = {}

    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        found = self._find(candidates)
        missing = [i for i, measured in enumerate(found) if measured is None]
        costs = np.empty(len(candidates), dtype=np.float64)
        for i, measured in enumerate(found):
            if measured is not None:
                seconds = measured.cold_normalised if self._cold else measured.normalised
                costs[i] = np.inf if seconds is None else seconds
        if missing:
            costs[missing] = self.fallback.costs([candidates[i] for i in missing])
        return costs

    def prefilter(self, candidates: Sequence[Candidate]) -> NDArray[np.float64] | None:
        """0 for what is recorded, the fallback's for the rest."""
        missing = [i for i, measured in enumerate(self._find(candidates)) if measured is None]
        rest = self.fallback.prefilter([candidates[i] for i in missing])
        if rest is None:
            return None
        found = np.zeros(len(candidates))
        found[missing] = rest
        return found

    def uncertainty(self, candidates: Sequence[Candidate]) -> NDArray[np.float64] | None:
        """None of what is recorded, the fallback's of the rest."""
        missing = [i for i, measured in enumerate(self._find(candidates)) if measured is None]
        rest = self.fallback.uncertainty([candidates[i] for i in missing])
        if rest is None:
            return None
        found = np.zeros(len(candidates))
        found[missing] = rest
        return found

    def sources(self, candidates: Sequence[Candidate]) -> list[str]:
        found = self._find(candidates)
        rest = iter(self.fallback.sources([c for c, measured in zip(candidates, found, strict=True) if not measured]))
        return ["record" if measured else next(rest) for measured in found]

    def _find(self, candidates: Sequence[Candidate]) -> list[Measured | None]:
        identities = [identity_of(c, self._key(c.group), self._hardware) for c in candidates]
        new = [i for i in dict.fromkeys(identities) if i not in self._known]
        if new:
            self._known.update(zip(new, self._store.lookup(new), strict=True))
        return [self._known[i] for i in identities]

    def _key(self, group: Group) -> str:
        # Groups of different graphs may compare equal; the kept group keeps its graph's id from being used again.
        entry = self._keys.get((id(group.graph), group))
        if entry is None:
            entry = self._keys[(id(group.graph), group)] = (group, self._key_of(group))
        return entry[1]
