"""Record stores of real networks' candidates, with latencies that follow a known law: nothing is compiled or timed."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from autofuse.cost import AnalyticalCostModel, Candidate
from autofuse.graph.keys import workload_key
from autofuse.learn.plans import NetworkPlans
from autofuse.records import Form, Record, RecordedHardware, Workload
from autofuse.records.groups import group_to_text
from autofuse.records.identity import layouts_text
from autofuse.records.store import RecordStore
from autofuse.target import Hardware
from autofuse.target.fingerprint import HardwareRow

Law = Callable[[Candidate], float]


def truth(candidate: Candidate) -> float:
    """ln(measured / analytical) of a kernel: some families are slower than the analytical model has them."""
    slower = {"elementwise": 0.5, "rows": 0.7, "conv2d": -0.3, "matmul": 0.2, "depthwise": 0.4}
    work = math.log2(1 + candidate.group.work.flops)
    return 0.6 + slower.get(candidate.family.name, 0.0) + 0.02 * (work - 15) - 0.1 * len(candidate.group.anchors)


def seconds(candidates: Sequence[Candidate], hardware: Hardware, law: Law = truth) -> np.ndarray:
    """What the kernels take."""
    return AnalyticalCostModel(hardware).costs(candidates) * np.exp([law(c) for c in candidates])


def fill_from(
    store: RecordStore,
    networks: Iterable[NetworkPlans],
    row: HardwareRow,
    *,
    law: Law = truth,
    noise: float = 0.01,
    times: int = 1,
    seed: int = 0,
) -> RecordStore:
    """Records of all candidates of the networks, each measured `times` times."""
    hardware = RecordedHardware.of(row)
    store.add_hardware(hardware)
    rng = np.random.default_rng(seed)
    for network in networks:
        candidates = network.candidates()
        for candidate, exact in zip(candidates, seconds(candidates, network.hardware, law), strict=True):
            group = candidate.group
            key, layouts = workload_key(group), layouts_text(group)
            store.add_workload(Workload(key, group.label, group.label), [str(network.source)])
            store.add_form(Form(key, layouts, group_to_text(group)))
            for time in range(times):
                taken = float(exact * math.exp(noise * rng.standard_normal()))
                store.add(
                    Record(
                        key,
                        hardware.digest,
                        candidate.family.name,
                        candidate.family.version,
                        candidate.config.text,
                        layouts,
                        samples=(taken,) * 3,
                        created=f"2025-01-01T00:00:{time:02d}.000000Z",
                    )
                )
    return store
