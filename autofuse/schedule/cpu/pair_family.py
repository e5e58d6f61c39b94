"""What the families of two convolutions in one kernel share: takes groups that `window_pair` knows, costs them at once.

A family says in which order the convolutions stand, which configurations suit them and what each makes of a pair.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu import window as W
from autofuse.schedule.cpu import window_pair as P
from autofuse.schedule.family import BatchedFamily, Configuration
from autofuse.target import Hardware


@dataclass(frozen=True)
class PairConfiguration(Configuration):
    """Register tiles: `nb` channel blocks × `mt` places of pointwise results; `ct` columns of depthwise ones.

    A task: `hb` rows of results, `cob` tiles of channels. Rows that `hb` does not divide are covered by parts that
    overlap. pad: 0 data read as it is, zeros around them left out; 1 the rows that a task reads copied (and computed)
    first. parallel: 0 runs on the calling thread.
    """

    nb: int
    mt: int
    ct: int
    hb: int
    cob: int
    pad: int
    parallel: int


class PairFamily(BatchedFamily):
    """A family of two convolutions, `order` of them in the words of `window_pair.pair_of`."""

    configuration: ClassVar[type[Configuration]] = PairConfiguration
    least_anchors: ClassVar[int] = 2
    most_anchors: ClassVar[int] = 2
    results_behind: ClassVar[bool] = True
    keeps_shape: ClassVar[bool] = True
    order: ClassVar[tuple[str, str]]

    @abc.abstractmethod
    def tilings(self, pair: P.Pair, configs: Sequence[Configuration], hardware: Hardware) -> Sequence[P.Tiling]:
        """What each of the configurations makes of a pair, whatever stands around it."""

    def anchors(self, op: Operator) -> bool:
        """Depthwise and pointwise convolutions."""
        return P.is_depthwise(op) or P.is_pointwise(op)

    def admits(self, op: Operator) -> bool:
        """These, and what may surround them."""
        return self.anchors(op) or W.may_surround(op)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """Two convolutions in the family's order; elementwise operators around both."""
        found = P.pair_of(group, hardware.lanes, *self.order)
        return found if isinstance(found, Refusal) else None

    def pair(self, group: Group, hardware: Hardware) -> P.Pair:
        """The pair of a group that matches."""
        return matched(P.pair_of(group, hardware.lanes, *self.order))

    def shapes_of(
        self, asked: Sequence[tuple[Group, Sequence[Configuration]]], hardware: Hardware
    ) -> NDArray[np.float64]:
        """All at once: groups around equal pairs share most of it."""
        pairs = [(self.pair(group, hardware), configs) for group, configs in asked]
        return P.shape_rows([(pair, self.tilings(pair, configs, hardware)) for pair, configs in pairs])
