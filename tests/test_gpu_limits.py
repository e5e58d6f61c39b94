"""Thresholds on registers, LDS and waves: what they leave out before it costs anything, and that they can be tuned."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from random_graphs import chain

from autofuse.cost.gpu import GpuCostModel
from autofuse.graph.model import Group
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.search.candidates import search_problem
from autofuse.search.dp import DPStrategy
from autofuse.search.gpu_limits import exceeded, within
from autofuse.search.problem import SearchProblem, Thresholds
from autofuse.search.replay import ReplayedCosts, ReplayNetwork
from autofuse.search.threshold_table import effects
from autofuse.search.tuning import GPU_SPACE, SPACE, space_of, tune
from autofuse.target import GpuHardware, Hardware

CARD = GpuHardware()


@dataclass(frozen=True)
class Takes(Configuration):
    """Registers of a lane, KiB of LDS."""

    registers: int
    lds: int


class Hungry(ScheduleFamily):
    """The more registers, the less traffic: the cost model likes what a threshold may forbid."""

    name = "hungry"
    version = 1
    configuration = Takes

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        return [Takes(r, lds) for r in (200, 64, 24) for lds in (0, 32)]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        assert isinstance(config, Takes)
        traffic = (1 << 34) // config.registers
        return GpuShape(
            tasks=4096, threads=256, registers=config.registers, lds_bytes=config.lds << 10, l1_bytes=traffic,
            l2_bytes=traffic, memory_bytes=traffic,
        )  # fmt: skip

    def apply(self, func: Any, group: Group, config: Any, hardware: Hardware) -> Any:
        return func


FAMILY = Hungry()


def problem(**thresholds: Any) -> SearchProblem:
    limits = Thresholds(**thresholds)
    return search_problem(chain(3), GpuCostModel(CARD), hardware=CARD, families=(FAMILY,), thresholds=limits)


def registers(found: SearchProblem) -> set[int]:
    return {Takes.parse(c.config).registers for c in found.choices}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("shape", "limit", "beyond"),
    [
        ({"registers": 65}, {"gpu_registers": 64}, "gpu_registers"),
        ({"registers": 64}, {"gpu_registers": 64}, ""),
        ({"lds_bytes": 4097}, {"gpu_lds": 4096}, "gpu_lds"),
        ({"lds_bytes": 4096}, {"gpu_lds": 4096}, ""),
        ({"registers": 128}, {"gpu_occupancy": 0.2}, ""),  # 8 of 40 waves
        ({"registers": 129}, {"gpu_occupancy": 0.2}, "gpu_occupancy"),
        ({"registers": 255, "lds_bytes": 65_536}, {}, ""),  # nothing is forbidden that fits
    ],
)
def test_what_is_beyond_a_threshold(shape: dict[str, int], limit: dict[str, Any], beyond: str) -> None:
    made = GpuShape(**{"tasks": 1, "threads": 256, "registers": 24, **shape})  # type: ignore[arg-type]
    assert exceeded(made, CARD, Thresholds(**limit)) == beyond


def test_a_search_keeps_to_the_thresholds_and_counts_what_it_left_out() -> None:
    free, tight = problem(), problem(gpu_registers=64)
    assert registers(free) == {200} and not {"gpu_registers", "gpu_lds"} & set(free.pruned)
    assert max(registers(tight)) == 64 and tight.pruned["gpu_registers"] > 0
    assert max(registers(problem(gpu_occupancy=0.5))) == 24
    assert len(free.choices) == len(tight.choices)


def test_a_group_keeps_its_first_configuration_where_none_is_within() -> None:
    assert registers(problem(gpu_registers=8)) == {200}
    group = problem().choices[0].group
    pruned: Counter[str] = Counter()
    configs = FAMILY.configs(group, CARD)
    assert within(group, FAMILY, configs, CARD, Thresholds(gpu_registers=8), pruned) == [configs[0]]
    assert pruned == {"gpu_registers": len(configs) - 1}
    # They say nothing of CPUs.
    assert within(group, FAMILY, configs, Hardware(), Thresholds(gpu_registers=8), pruned) is configs


def network() -> ReplayNetwork:
    return ReplayNetwork("chain", "chain", chain(4), ReplayedCosts(GpuCostModel(CARD)), CARD, (FAMILY,))


def test_fewer_configurations_are_less_effort() -> None:
    usual, tight = (network().search(Thresholds(gpu_registers=r), DPStrategy()) for r in (256, 100))
    assert tight.seconds < usual.seconds and tight.cost > usual.cost


def test_they_are_tuned_where_there_is_a_gpu_and_nowhere_else() -> None:
    assert set(space_of("dp", "gpu")) == set(SPACE) | set(GPU_SPACE) and set(space_of("dp")) == set(SPACE)
    result = tune([network()], trials=6)
    assert result.trials == 6 and result.failed == 0
    found = {effect.name: effect for effect in effects([network()], result.chosen.thresholds, "dp")}
    assert set(found) == set(SPACE) | set(GPU_SPACE)
    for name in GPU_SPACE:  # off: nothing is left out
        value, outcome = found[name].off
        assert value == getattr(Thresholds(), name) and outcome is not None
