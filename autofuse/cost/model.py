"""The cost model interface: costs of many candidates at once."""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group
from autofuse.schedule.family import Configuration, ScheduleFamily


@dataclass(frozen=True)
class Candidate:
    """A legal group with one configuration of one schedule family: something that could be built and timed."""

    group: Group
    family: ScheduleFamily
    config: Configuration


class CostModel(abc.ABC):
    """Predicts latencies. Implementations may cache, must not change a candidate, and are deterministic."""

    name: ClassVar[str]

    @abc.abstractmethod
    def costs(self, candidates: Sequence[Candidate]) -> NDArray[np.float64]:
        """Latency in seconds of each candidate, finite and positive; inf for one known not to build or run.

        An empty sequence gives an empty array. The result does not depend on what else is in the batch.
        """

    def prefilter(self, candidates: Sequence[Candidate]) -> NDArray[np.float64] | None:
        """A cheaper model's seconds, to leave out hopeless candidates by before `costs` is asked; 0 for what is known.

        None if there is no cheaper one.
        """
        return None

    def uncertainty(self, candidates: Sequence[Candidate]) -> NDArray[np.float64] | None:
        """For each candidate the expected error of its cost's logarithm, >= 0; None if the model cannot tell."""
        return None

    def sources(self, candidates: Sequence[Candidate]) -> list[str]:
        """For each candidate, where its cost comes from: "analytical", "predicted" or "record"."""
        return ["analytical"] * len(candidates)
