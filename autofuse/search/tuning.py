"""Tuning the search's thresholds: takes networks to replay, gives the thresholds of the fastest search that plans well.

An Optuna study with two objectives: the plans' cost, averaged over the networks relative to what the default thresholds
give, and the effort of the searches. Effort is counted, not timed (see `replay`), so that a study gives the same result
on any machine and under any load, and may be resumed anywhere.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autofuse.errors import PlanError
from autofuse.search.problem import Thresholds
from autofuse.search.replay import ReplayNetwork
from autofuse.search.strategies import strategy as make_strategy
from autofuse.search.thresholds import thresholds_of

if TYPE_CHECKING:
    import optuna

#: Raise it when the space, the effort or the objectives change: studies of older versions are refused.
STUDY_VERSION = 3  # 2: the uncertainty margin, plans judged by records; 3: the margin has an effort
_STUDY = "autofuse-thresholds"
#: Plans may cost this share more than the best known if their search is faster.
TOLERANCE = 0.01

#: Threshold → its type, least and largest value, and step (float) or None for a logarithmic scale (int).
SPACE: Mapping[str, tuple[str, float, float, float | None]] = {
    "max_group_size": ("int", 2, 128, None),
    "groups_per_operator": ("int", 8, 1024, None),
    "groups_per_state": ("int", 1, 256, None),
    "abort_factor": ("float", 0.8, 2.0, 0.1),
    "prefilter_ratio": ("float", 0.5, 8.0, 0.25),
    "states_per_region": ("int", 64, 200_000, None),
    "recompute_members": ("int", 0, 3, 1),
    "frontier_values": ("int", 0, 4, 1),
    "uncertainty_margin": ("float", 0.0, 2.0, 0.25),
}
#: Only where the strategy is one of these the threshold does anything.
HYBRID_SPACE: Mapping[str, tuple[str, float, float, float | None]] = {"hybrid_share": ("float", 0.05, 1.0, 0.05)}
#: Only on GPUs these thresholds do anything.
GPU_SPACE: Mapping[str, tuple[str, float, float, float | None]] = {
    "gpu_registers": ("int", 32, 256, None),
    "gpu_lds": ("int", 4096, 65_536, None),
    "gpu_occupancy": ("float", 0.0, 0.5, 0.05),
}


@dataclass(frozen=True)
class Outcome:
    """Thresholds and what searches under them gave: plan cost and effort of each network in seconds.

    `proved`: the networks whose plans are proved optimal over the groups that the thresholds let through.
    """

    thresholds: Thresholds
    costs: Mapping[str, float]
    efforts: Mapping[str, float]
    proved: tuple[str, ...] = ()

    @property
    def seconds(self) -> float:
        """Effort of all searches."""
        return sum(self.efforts.values())

    def ratio(self, to: Mapping[str, float]) -> float:
        """Mean over the networks of plan cost over that in `to`."""
        return sum(cost / to[name] for name, cost in self.costs.items()) / len(self.costs)

    def worst(self, to: Mapping[str, float]) -> float:
        """The largest of these, of the network whose plan suffers most."""
        return max(cost / to[name] for name, cost in self.costs.items())

    def as_dict(self, to: Mapping[str, float]) -> dict[str, Any]:
        """Plain JSON values; plan costs relative to `to`."""
        return {
            "plan_cost": self.ratio(to),
            "search_seconds": self.seconds,
            "proved_optimal": len(self.proved) == len(self.costs),
            "networks": {
                name: {"plan_cost": cost / to[name], "plan_ms": 1e3 * cost, "search_seconds": self.efforts[name]}
                for name, cost in self.costs.items()
            },
            "thresholds": asdict(self.thresholds),
        }


@dataclass(frozen=True)
class TuningResult:
    """`best`: least plan cost known of each network; `pareto`: no other outcome is better in both objectives."""

    chosen: Outcome
    default: Outcome
    pareto: tuple[Outcome, ...]
    best: Mapping[str, float]
    trials: int
    new_trials: int
    failed: int
    interrupted: bool = False


def tune(
    networks: Sequence[ReplayNetwork],
    *,
    trials: int = 100,
    strategy: str = "dp",
    seed: int = 0,
    study: str | Path | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> TuningResult:
    """Run a study until it has `trials` finished trials, counted from its beginning.

    study: a file that keeps it; an unfinished one is gone on with (several processes may work on one), a finished one
    only read. PlanError if the file belongs to other networks, costs or strategy. progress: told (finished, trials).
    An interrupt (Ctrl-C) ends the study early, with what it found.
    """
    if not networks:
        raise PlanError("there is no network to tune the thresholds on: name at least one")
    default = evaluate(networks, Thresholds(), strategy)
    opened = _open(study, seed)
    _check_same(opened, study, networks, strategy, default)
    outcomes, failed, new = _run(opened, networks, strategy, trials, default, progress or (lambda *_: None))
    interrupted = len(outcomes) + failed < trials
    everything = [default, *outcomes]
    best = best_costs(everything)
    chosen = _simplified(select(everything), networks, strategy)
    best = best_costs([*everything, chosen])
    return TuningResult(
        chosen, default, tuple(pareto(everything, best)), best, len(outcomes) + failed, new, failed, interrupted
    )


def evaluate(networks: Iterable[ReplayNetwork], thresholds: Thresholds, strategy: str) -> Outcome:
    """Search every network under `thresholds`. PlanError where they leave no plan."""
    found = {n.name: n.search(thresholds, make_strategy(strategy, hardware=n.hardware)) for n in networks}
    return Outcome(
        thresholds,
        {name: r.cost for name, r in found.items()},
        {name: r.seconds for name, r in found.items()},
        tuple(name for name, r in found.items() if r.result.proved_optimal),
    )


def best_costs(outcomes: Iterable[Outcome]) -> dict[str, float]:
    """The least plan cost of each network."""
    best: dict[str, float] = {}
    for outcome in outcomes:
        for name, cost in outcome.costs.items():
            best[name] = min(cost, best.get(name, math.inf))
    return best


def select(outcomes: Sequence[Outcome], tolerance: float = TOLERANCE) -> Outcome:
    """The outcome with the least effort no plan of which costs more than 1 + `tolerance` times the best one known.

    Where there is none, of those that come nearest to that. A mean over networks would trade one network's plan for
    another's, and what was given up so was twice as much on networks that a study did not see.
    """
    to = best_costs(outcomes)
    limit = max(1.0, min(o.worst(to) for o in outcomes)) * (1 + tolerance)
    good = [o for o in outcomes if o.worst(to) <= limit]
    return min(good, key=lambda o: (o.seconds, o.ratio(to)))


def pareto(outcomes: Sequence[Outcome], to: Mapping[str, float]) -> list[Outcome]:
    """Those that no other beats in plan cost and effort, fastest search first; of equals the first."""
    front: list[Outcome] = []
    for outcome in sorted(outcomes, key=lambda o: (o.seconds, o.ratio(to))):
        if not front or outcome.ratio(to) < front[-1].ratio(to):
            front.append(outcome)
    return front


def _simplified(chosen: Outcome, networks: Sequence[ReplayNetwork], strategy: str) -> Outcome:
    """The same with every threshold back at its default that is no worse there: chance values should not stay."""
    usual = Thresholds()
    for name in asdict(usual):
        value = getattr(usual, name)
        if getattr(chosen.thresholds, name) == value:
            continue
        try:
            other = evaluate(networks, replace(chosen.thresholds, **{name: value}), strategy)
        except PlanError:
            continue
        if other.seconds <= chosen.seconds and other.ratio(chosen.costs) <= 1 + 1e-12:
            chosen = other
    return chosen


# The study


def space_of(strategy: str, kind: str = "cpu") -> dict[str, tuple[str, float, float, float | None]]:
    """The thresholds that a strategy's search depends on, for a kind of hardware."""
    hybrid = HYBRID_SPACE if strategy in ("hybrid", "auto") else {}
    return {**SPACE, **hybrid, **(GPU_SPACE if kind == "gpu" else {})}


def _open(study: str | Path | None, seed: int) -> optuna.Study:
    import optuna
    from optuna.storages import JournalStorage
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage: optuna.storages.BaseStorage = optuna.storages.InMemoryStorage()
    done = 0
    if study is not None:
        try:
            _check_journal(Path(study))
            storage = JournalStorage(JournalFileBackend(str(study)))
            names = {s.study_name for s in optuna.get_all_study_summaries(storage)}
            # A study that goes on must not draw its first random trials once more.
            done = len(optuna.load_study(study_name=_STUDY, storage=storage).trials) if _STUDY in names else 0
        except OSError as error:
            raise PlanError(f"cannot open study {study}: {error.strerror or error}") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise PlanError(f"{study} is no study of `autofuse tune`, or is damaged: give another file") from None
    return optuna.create_study(
        storage=storage,
        study_name=_STUDY,
        directions=["minimize", "minimize"],
        sampler=optuna.samplers.TPESampler(seed=seed + done, n_startup_trials=16),
        load_if_exists=True,
    )


def _check_journal(path: Path) -> None:
    """ValueError for a file with other content: the storage would take it for a line of its own not yet written."""
    if path.exists():
        with path.open("rb") as file:
            first = file.readline()
        if first and "op_code" not in json.loads(first):
            raise ValueError("no journal")


def _check_same(
    opened: optuna.Study,
    path: str | Path | None,
    networks: Sequence[ReplayNetwork],
    strategy: str,
    default: Outcome,
) -> None:
    """Note what a new study is about; PlanError if an old one is about something else."""
    about = {
        "version": STUDY_VERSION,
        "strategy": strategy,
        "networks": {n.name: n.digest for n in networks},
        "costs": {name: float(f"{cost:.9g}") for name, cost in default.costs.items()},
    }
    known = opened.user_attrs.get("autofuse")
    if known is None:
        opened.set_user_attr("autofuse", about)
        usual = asdict(Thresholds())
        # Where everyone starts from, and both ends of the front.
        space = space_of(strategy, networks[0].hardware.kind)
        for values in (
            {name: min(max(usual[name], low), high) for name, (_, low, high, _) in space.items()},
            {name: high for name, (_, _, high, _) in space.items()},
            {name: low for name, (_, low, _, _) in space.items()},
        ):
            opened.enqueue_trial(values)
    elif known != about:
        what = next((k for k in about if not isinstance(known, dict) or known.get(k) != about[k]), "version")
        raise PlanError(f"study {path} was made with another {what}: give a new file with --study")


def _suggest(trial: optuna.Trial, strategy: str, hardware: str) -> Thresholds:
    values: dict[str, Any] = {}
    for name, (kind, low, high, step) in space_of(strategy, hardware).items():
        if kind == "float":
            values[name] = round(trial.suggest_float(name, low, high, step=step), 6)
        elif step is None:
            values[name] = trial.suggest_int(name, int(low), int(high), log=True)
        else:
            values[name] = trial.suggest_int(name, int(low), int(high), step=int(step))
    return replace(Thresholds(), **values)


def _run(
    opened: optuna.Study,
    networks: Sequence[ReplayNetwork],
    strategy: str,
    trials: int,
    default: Outcome,
    tell: Callable[[int, int], None],
) -> tuple[list[Outcome], int, int]:
    """Bring the study to `trials` finished trials: its outcomes, how many failed, how many are new."""
    from optuna.trial import TrialState

    new = 0
    finished = len(opened.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)))
    try:
        while finished < trials:
            tell(finished, trials)
            trial = opened.ask()
            try:
                outcome = evaluate(networks, _suggest(trial, strategy, networks[0].hardware.kind), strategy)
            except PlanError as error:
                trial.set_user_attr("error", str(error))
                opened.tell(trial, state=TrialState.FAIL)
            else:
                trial.set_user_attr("outcome", {**asdict(outcome), "proved": list(outcome.proved)})
                opened.tell(trial, [outcome.ratio(default.costs), outcome.seconds])
            new += 1
            # Others may work on the same study.
            finished = len(opened.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL)))
    except KeyboardInterrupt:
        pass
    done = opened.get_trials(deepcopy=False, states=(TrialState.COMPLETE, TrialState.FAIL))
    outcomes = [_outcome(t.user_attrs["outcome"]) for t in done if "outcome" in t.user_attrs]
    return outcomes, len(done) - len(outcomes), new


def _outcome(content: Mapping[str, Any]) -> Outcome:
    return Outcome(
        thresholds_of(content["thresholds"]), dict(content["costs"]), dict(content["efforts"]), tuple(content["proved"])
    )
