"""A synthetic record store: hand-made groups, a fake schedule family, latencies that follow a known law."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from autofuse.cost import AnalyticalCostModel, Candidate
from autofuse.cost.weights import LEAST_COLD_BYTES
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.graph.reasons import Refusal
from autofuse.learn import LearnedCostModel, Trained, TrainSettings, build_dataset, train_predictor
from autofuse.learn.boosting import TreeSettings
from autofuse.learn.ranges import TrainingRange
from autofuse.records import Form, MemoryStore, Record, RecordedHardware, Workload
from autofuse.records.groups import group_to_text
from autofuse.records.store import RecordStore
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware
from autofuse.target.fingerprint import HardwareRow

MACHINE = Hardware()
ROW = HardwareRow(
    "x86_64", "AuthenticAMD", 25, 1, 1, ("avx2", "fma"), 32 << 10, 512 << 10, 32 << 20, 2, "0.27", "A CPU"
)
RECORDED = RecordedHardware.of(ROW)


@dataclass(frozen=True)
class TileConfiguration(Configuration):
    """Rows of a tile and pieces of work."""

    rows: int = 1
    tasks: int = 2


class TileFamily(ScheduleFamily):
    """Takes every group; more rows mean more accumulators and fewer loads."""

    name = "tile"
    version = 3
    configuration = TileConfiguration

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        return None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[Configuration]:
        return [TileConfiguration(r, t) for r in (1, 2, 4, 8) for t in (1, 2, 8)]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        assert isinstance(config, TileConfiguration)
        moved = sum(group.graph.tensors[t].bytes for t in (*group.inputs, *group.outputs))
        return KernelShape(
            tasks=config.tasks,
            accumulators=config.rows * 2,
            independent_chains=min(8, config.rows * 2),
            loads_per_fma=1 / config.rows,
            l1_bytes=2 * moved,
            l2_bytes=moved,
            l3_bytes=moved,
            footprint=moved // config.tasks,
        )

    def apply(self, func: Any, group: Group, config: Any, hardware: Hardware) -> Any:
        return func


FAMILY = TileFamily()


def family_of(name: str) -> ScheduleFamily:
    """The families that the synthetic store names."""
    if name != FAMILY.name:
        raise KeyError(name)
    return FAMILY


def matmul_group(rows: int, inner: int, columns: int, activation: str = "") -> Group:
    """matmul, maybe with an activation behind it."""
    shapes = [(rows, inner), (inner, columns), (rows, columns), (rows, columns)]
    roles = [Role.INPUT, Role.CONSTANT, Role.VALUE, Role.VALUE]
    tensors = tuple(Tensor(i, f"t{i}", s, role=r) for i, (s, r) in enumerate(zip(shapes, roles, strict=True)))
    heavy = (
        Access(0, 0, MappingType.MANY_TO_MANY, inner, columns),
        Access(1, 1, MappingType.MANY_TO_MANY, inner, rows),
    )
    size = rows * columns
    operators = [
        Operator(0, "m", "matmul", f"matmul {rows} {inner} {columns}", (0, 1), (2,), heavy, Work(fma=size * inner),
                 spatial=(rows, columns), reduction=(inner,))
    ]  # fmt: skip
    if activation:
        work = Work(special=size) if activation == "exp" else Work(compare=size)
        access = (Access(0, 2, MappingType.ONE_TO_ONE),)
        operators.append(
            Operator(
                1, "a", activation, f"{activation} {rows} {columns}", (2,), (3,), access, work, spatial=(rows, columns)
            )
        )
    graph = Graph("g", tensors[: 3 + bool(activation)], tuple(operators), (0,), (len(operators) + 1,))
    return Group.of(graph, range(len(operators)))


def groups() -> Iterator[Group]:
    """A few dozen workloads of different sizes."""
    sizes = itertools.product((16, 64, 256), (32, 128, 512), (48, 96, 384))
    for rows, inner, columns in sizes:
        for activation in ("", "exp", "nn.relu"):
            yield matmul_group(rows, inner, columns, activation)


def law(candidate: Candidate) -> float:
    """What the machine does that the analytical model does not know: ln(measured / analytical)."""
    config = candidate.config
    assert isinstance(config, TileConfiguration)
    inner = candidate.group.operators[0].reduction[0]
    return 0.8 + 0.35 * (config.rows == 8) - 0.25 * (config.tasks == 8) + 0.1 * math.log2(inner / 128)


#: What cold weights cost beyond what the analytical model says, ln.
COLDER = 0.4


def fill(
    store: RecordStore,
    noise: float = 0.01,
    seed: int = 0,
    limit: int | None = None,
    *,
    cold: bool = False,
    spilling: bool = False,
    times: int = 1,
    start: int = 0,
    networks: str = "net",
) -> RecordStore:
    """Put the records of `groups` (of the first `limit` of them, without the first `start`) into the store.

    A failure for each tenth, or, `spilling`, for each large tile of exponentials. cold: with cold latencies too. times:
    each kernel is measured so often. The models are called `networks`0 to 3.
    """
    store.add_hardware(RECORDED)
    rng = np.random.default_rng(seed)
    for number, group in list(enumerate(itertools.islice(groups(), limit)))[start:]:
        key = f"w{number:03d}"
        models = [f"{networks}{number % 4}"] + (["shared"] if number % 5 == 0 and networks == "net" else [])
        store.add_workload(Workload(key, group.label), models)
        store.add_form(Form(key, "", group_to_text(group)))
        candidates = [Candidate(group, FAMILY, c) for c in FAMILY.configs(group, MACHINE)]
        hot, slow = (AnalyticalCostModel(MACHINE, c).costs(candidates) for c in (False, True))
        for candidate, base, cold_base in zip(candidates, hot, slow, strict=True):
            failed = rng.random() < 0.1
            if spilling:
                failed = candidate.config.rows == 8 and group.operators[-1].kind == "exp"  # type: ignore[attr-defined]
            weights = group.graph.tensors[1].bytes
            for time in range(times):
                seconds = float(base * math.exp(law(candidate) + noise * rng.standard_normal()))
                slowly = float(cold_base * math.exp(law(candidate) + COLDER + noise * rng.standard_normal()))
                store.add(
                    Record(
                        key,
                        RECORDED.digest,
                        FAMILY.name,
                        FAMILY.version,
                        candidate.config.text,
                        status="crashed" if failed else "ok",
                        samples=() if failed else (seconds,) * 3,
                        cold_samples=(slowly,) * 3 if cold and not failed and weights >= LEAST_COLD_BYTES else (),
                        created=f"2025-01-01T00:00:{time:02d}.000000Z",
                    )
                )
    return store


def beside_references(source: RecordStore, store: RecordStore, slower: float = 1.0) -> RecordStore:
    """Put the records of `source` into `store` as measured beside reference kernels, all of it so much slower."""

    def measured(record: Record) -> Record:
        beside = {"arithmetic": (1e-4 * slower,) * 3}
        cold = tuple(slower * s for s in record.cold_samples)
        return replace(
            record,
            samples=tuple(slower * s for s in record.samples),
            reference_samples=beside if record.samples else {},
            cold_samples=cold,
            cold_reference_samples=beside if cold else {},
        )

    workloads = [(w, source.models(w.key)) for w in source.workloads()]
    store.add_all(list(source.hardware()), workloads, list(source.forms()), [measured(r) for r in source.records()])
    store.refresh_baseline(RECORDED.digest)
    return store


@functools.lru_cache(maxsize=1)
def small_predictor() -> Trained:
    """Trained on a part of the synthetic store, once a process."""
    data = build_dataset(synthetic_store(limit=24), descriptions={RECORDED.digest: MACHINE}, family_of=family_of)
    return train_predictor(data, TrainSettings(members=3, trees=TreeSettings(rounds=20)))


def trusting_model(families: dict[str, int]) -> LearnedCostModel:
    """A learned cost model that predicts whatever it is asked of these families, in range or not."""
    trained = small_predictor()
    trust = replace(trained.card.trust, base_scale=1e9, failing=None)
    card = replace(trained.card, families=families, range=TrainingRange({}), trust=trust)
    return LearnedCostModel(card, trained.files, MACHINE)


def synthetic_store(**arguments: Any) -> RecordStore:
    """A MemoryStore filled as `fill` does."""
    return fill(MemoryStore(), **arguments)
