"""Whole networks, predicted and run: takes networks and a predictor, gives seconds of their plans by cost model.

Each network is compiled with the predictor alone and run in a process of its own, several times over, networks taking
turns: what disturbs the machine meanwhile lasts for seconds. A reference kernel runs beside each run, and what counts
is the normalised latency, as in records: the ratio to the reference times the reference's usual time there.
The prediction is the sum of the plan's kernels and what a plan adds to them (`cost/plan_term.py`).
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autofuse.cost.model import Candidate, CostModel
from autofuse.cost.plan_term import refills
from autofuse.learn.plans import NetworkPlans

if TYPE_CHECKING:
    from autofuse.search.plan import Plan

#: Runs each time, and how often every network has its turn.
RUNS, PASSES = 15, 4
_TIMEOUT = 300.0


@dataclass(frozen=True)
class NetworkRun:
    """One network's seconds: predicted, by cost model, and measured. `failure`: why it was not run, "" if it was."""

    predicted: Mapping[str, float] = field(default_factory=dict)
    measured: float | None = None
    failure: str = ""


def predicted_seconds(network: NetworkPlans, candidates: Sequence[Candidate], costs: CostModel) -> float:
    """What a plan of these kernels takes under a cost model, calls and operands from L3 included."""
    added = refills(candidates, network.hardware, network.cold) + network.hardware.call_overhead
    return float((costs.costs(candidates) + added).sum())


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
    usual: float | None,
    tell: Callable[[str], None] = lambda _: None,
) -> dict[str, NetworkRun]:
    """Network → what the plan that the predictor alone chooses takes. One that does not run stops no other.

    usual: seconds that the reference takes in the records that the predictor learned from; None if they do not say,
    then the least tenth of the runs counts.
    """
    import autofuse
    from autofuse.errors import AutofuseError
    from autofuse.measure.jobs import one_line
    from autofuse.measure.process import ChildProcess
    from autofuse.profile.run import example_inputs
    from autofuse.records.record import quiet, ratio_of
    from autofuse.target.pool import pool_environment

    found: dict[str, NetworkRun] = {}
    latencies: dict[str, list[float]] = {}
    beside: dict[str, list[float]] = {}
    children: dict[str, ChildProcess] = {}

    def failed(name: str, why: str) -> None:
        found[name] = replace(found.get(name, NetworkRun()), failure=one_line(why))
        if name in children:
            children.pop(name).close()

    with tempfile.TemporaryDirectory(prefix="autofuse-") as parent, contextlib.ExitStack() as stack:
        for network in networks:
            name = network.name
            tell(f"compiling {name}")
            try:
                made = autofuse.compile(
                    network.source, strategy="dp", cost_model="learned", predictor=predictor, db="none", threads=threads
                )
                folder = Path(parent) / name.replace("/", "_")
                folder.mkdir()
                made.save(folder / "model.so")
                np.savez(folder / "inputs.npz", **example_inputs(made.description))
                chosen = kernels_of(made.plan, network)
            except Exception as error:  # TVM's own errors too
                failed(name, str(error) if isinstance(error, AutofuseError) else f"{type(error).__name__}: {error}")
                continue
            predicted = {title: predicted_seconds(network, chosen, costs) for title, costs in models(network).items()}
            found[name] = NetworkRun(predicted)
            children[name] = ChildProcess(
                "autofuse.profile.child:Handler",
                (str(folder / "model.so"), str(folder / "inputs.npz")),
                pool_environment(threads),
            )
            stack.callback(children[name].close)
        for number in range(PASSES):
            for name, child in list(children.items()):
                tell(f"running {name}, pass {number + 1} of {PASSES}")
                try:
                    outcome = child.request({"runs": RUNS, "beside": True}, _TIMEOUT)
                except AutofuseError as error:
                    failed(name, str(error))
                    continue
                if outcome.status != "ok":
                    failed(name, f"{outcome.status}: {outcome.message}")
                    continue
                latencies.setdefault(name, []).extend(outcome.value["latencies"])
                beside.setdefault(name, []).extend(outcome.value["references"])

    def measured(name: str) -> float:
        return quiet(latencies[name]) if usual is None else ratio_of(latencies[name], beside[name]) * usual

    return {name: run if run.failure else replace(run, measured=measured(name)) for name, run in found.items()}
