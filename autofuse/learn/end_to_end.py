"""Whole networks, predicted and run: takes networks and a predictor, gives seconds of their plans by cost model.

Each network is compiled with the predictor alone and run in a process of its own, several times over, networks taking
turns: what disturbs the machine meanwhile lasts for seconds. What counts is the least tenth of the runs, as in records.
The prediction is the sum of the plan's kernels and what a plan adds to them (`cost/plan_term.py`).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autofuse.cost.model import Candidate, CostModel
from autofuse.cost.plan_term import plan_kernel, plan_term
from autofuse.errors import PredictorError
from autofuse.learn.plans import NetworkPlans

if TYPE_CHECKING:
    from autofuse.search.plan import Plan

#: Runs each time, and how often every network has its turn.
RUNS, PASSES = 15, 4
_TIMEOUT = 300.0


def predicted_seconds(network: NetworkPlans, candidates: Sequence[Candidate], costs: CostModel) -> float:
    """What a plan of these kernels takes under a cost model, calls and operands from L3 included."""
    kernels = [plan_kernel(c, network.hardware, network.cold) for c in candidates]
    return float(costs.costs(candidates).sum()) + plan_term(kernels, network.hardware).seconds


def kernels_of(plan: Plan, network: NetworkPlans) -> list[Candidate]:
    """The kernels of a plan that was made for the network."""
    from autofuse.search.problem import Choice

    found = []
    for group, planned in zip(plan.groups_of(network.graph), plan.groups, strict=True):
        candidate = network.candidate(Choice(group, planned.seconds, planned.family, planned.config))
        if candidate is not None:
            found.append(candidate)
    return found


def run_networks(
    networks: Iterable[NetworkPlans],
    predictor: str | Path,
    models: Callable[[NetworkPlans], Mapping[str, CostModel]],
    threads: int,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, tuple[dict[str, float], float]]:
    """Network → predicted seconds by cost model, and measured seconds, of the plan that the predictor alone chooses.

    Raises PredictorError where a compiled network does not run.
    """
    import autofuse
    from autofuse.measure.process import ChildProcess
    from autofuse.profile.run import example_inputs
    from autofuse.records.record import quiet
    from autofuse.target.pool import pool_environment

    predicted: dict[str, dict[str, float]] = {}
    latencies: dict[str, list[float]] = {}
    with tempfile.TemporaryDirectory(prefix="autofuse-") as name, contextlib.ExitStack() as stack:
        children = {}
        for network in networks:
            tell(f"compiling {network.name}")
            made = autofuse.compile(
                network.source, strategy="dp", cost_model="learned", predictor=predictor, db="none", threads=threads
            )
            folder = Path(name) / network.name.replace("/", "_")
            folder.mkdir()
            made.save(folder / "model.so")
            np.savez(folder / "inputs.npz", **example_inputs(made.description))
            chosen = kernels_of(made.plan, network)
            predicted[network.name] = {
                title: predicted_seconds(network, chosen, costs) for title, costs in models(network).items()
            }
            children[network.name] = ChildProcess(
                "autofuse.profile.child:Handler",
                (str(folder / "model.so"), str(folder / "inputs.npz")),
                pool_environment(threads),
            )
            stack.callback(children[network.name].close)
        for number in range(PASSES):
            for title, child in children.items():
                tell(f"running {title}, pass {number + 1} of {PASSES}")
                outcome = child.request({"runs": RUNS}, _TIMEOUT)
                if outcome.status != "ok":
                    raise PredictorError(f"{title} does not run: {outcome.status}: {outcome.message}")
                latencies.setdefault(title, []).extend(outcome.value["latencies"])
    return {title: (predicted[title], quiet(times)) for title, times in latencies.items()}
