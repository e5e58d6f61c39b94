"""What is known about a predictor as Markdown: takes the summary of an evaluation, and of a study of thresholds.

Plain values in (those of `Evaluation.summary` and of `autofuse tune --json`), tables out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from autofuse.report.results import number, table

Plain = Mapping[str, Any]
MODELS = ("learned", "analytical", "analytical_scaled")
#: What is aimed at: of held-out workloads, and of networks that nothing was learned from.
GOALS = {
    "workload_mape": 0.07,
    "workload_within_10": 0.90,
    "mape": 0.10,
    "tau_share": 0.9,
    "plan_regret": 0.02,
    "end_to_end_error": 0.10,
}


def percent(value: float | None, digits: int = 1) -> str:
    """A share as a cell."""
    return number(None if value is None else 100 * value, f"{{:.{digits}f}} %")


def hardware_names(summary: Plain) -> dict[str, str]:
    """Digest → name of the hardware rows that the figures are of; empty where there is only one."""
    return dict(summary.get("hardware", {}).get("names", {}))


def split_title(name: str, names: Mapping[str, str] | None = None) -> str:
    """A split's name for people; `names`: of hardware rows, by digest."""
    kind, _, what = name.partition("/")
    what = (names or {}).get(what, what)
    titles = {
        "workload": "random, by workload",
        "network": f"without {what}",
        "family": f"without the {what} networks",
        "hardware": f"other hardware ({what})",
        "machine": f"another machine ({what})",
        "unseen": "**unseen networks**",
    }
    return titles.get(kind, name)


def errors_table(summary: Plain, only: Collection[str] | None = None, names: Mapping[str, str] | None = None) -> str:
    """Errors of every split (of `only` these), learned beside analytical; the noise floor last."""
    rows = []
    for name, split in summary["splits"].items():
        if only is not None and name not in only:
            continue
        for model in MODELS:
            m = split[model]
            rows.append(
                [
                    split_title(name, names) if model == MODELS[0] else "",
                    model.replace("_", ", "),
                    str(m["rows"]),
                    *(percent(m[key]) for key in ("mape", "within_5", "within_10", "within_20")),
                    *(number(m[key], "{:.3f}") for key in ("tau_within", "tau_across")),
                    *(percent(m[key], 0) for key in ("top_1", "top_5")),
                    percent(m["loss"]),
                ]
            )
    noise = summary["noise_floor"]
    rows.append(["noise floor", "measured again", "", percent(noise["mape"]), "", "", "",
                 number(noise["tau_within"], "{:.3f}"), "", "", "", ""])  # fmt: skip
    headings = ["trained", "model", "rows", "MAPE", "within 5 %", "within 10 %", "within 20 %", "tau within"]
    return table([*headings, "tau across", "top-1", "top-5", "slower than best"], rows)


def sureness_table(summary: Plain) -> str:
    """Coverage of the expected errors, and how often the predictor answered for itself."""
    rows = [
        [
            split_title(name, hardware_names(summary)),
            percent(split["coverage"]["one"]),
            percent(split["coverage"]["two"]),
            number(split["coverage"]["rank"], "{:.2f}"),
            percent(split["predicted"]),
            str(split["left_out"] + split.get("overlap", 0)),
        ]
        for name, split in summary["splits"].items()
    ]
    headings = ["trained", "within the expected error (68.3 %)", "within twice (95 %)", "tau of the two"]
    return table([*headings, "predicted, not analytical", "rows left out"], rows)


def hardware_note(summary: Plain) -> str:
    """What the figures of other hardware are worth where none of its rows was predicted; "" where some were."""
    names = hardware_names(summary)
    alone = [
        split_title(name, names)
        for name, split in summary["splits"].items()
        if name.startswith(("hardware/", "machine/")) and not split["predicted"]
    ]
    if not alone:
        return ""
    return (
        f"Of {' and '.join(alone)} nothing is predicted: a number of cores, or a width of vectors, that was never seen"
        " lies outside the training range. What stands there for learned is the analytical model for that hardware,"
        " scaled.\n"
    )


def plans_table(summary: Plain) -> str:
    """Regret of the unseen networks' plans, and predicted beside measured latency."""
    networks = summary["splits"].get("unseen", {}).get("networks", {})
    if not networks:
        return "No network was planned.\n"
    ways = list(next(iter(networks.values()))["plan_regret"])
    rows = [
        [
            name,
            percent(n["covered"], 0),
            str(n["kernels"]),
            str(n["kernels_unmeasured"]),
            *(percent(n["plan_regret"][way], 2) for way in ways),
            number(n["predicted_ms"].get("learned"), "{:.3f}"),
            number(n["predicted_ms"].get("analytical"), "{:.3f}"),
            number(n["measured_ms"], "{:.3f}"),
            percent(n["end_to_end_error"].get("learned")),
            percent(n["end_to_end_error"].get("analytical")),
        ]
        for name, n in networks.items()
    ]
    headings = ["network", "candidates measured", "kernels", "without a record"]
    headings += [f"regret, {way.replace('_', ' ')}" for way in ways]
    headings += ["predicted, ms", "analytical, ms", "measured, ms", "error", "analytical's"]
    failed = [f"{name} was not run: {n['failure']}.\n" for name, n in networks.items() if n.get("failure")]
    return "\n".join([table(headings, rows), *failed])


def goals_table(summary: Plain) -> str:
    """What was aimed at beside what came out."""
    unseen, noise = summary["unseen_networks"], summary["noise_floor"]
    workload = summary["splits"].get("workload", {}).get("learned", {})
    networks = summary["splits"].get("unseen", {}).get("networks", {})
    worst, regret = (
        _largest(n[key].get("learned") for n in networks.values()) for key in ("end_to_end_error", "plan_regret")
    )
    # A network that was not run has no error, and none that reaches the goal.
    run = sum(n["measured_ms"] is not None for n in networks.values())
    which = "the worst network" if run == len(networks) else f"the worst of the {run} of {len(networks)} networks run"
    share = None
    if unseen["tau_within"] is not None and noise["tau_within"]:
        share = unseen["tau_within"] / noise["tau_within"]
    # What, as text, found, wanted, and whether more is better.
    found: list[tuple[str, str, float | None, float, bool]] = [
        ("MAPE, held-out workloads", "≤ 7 %", workload.get("mape"), GOALS["workload_mape"], False),
        ("within 10 %, held-out workloads", "≥ 90 %", workload.get("within_10"), GOALS["workload_within_10"], True),
        ("MAPE, unseen networks", "≤ 10 %", unseen["mape"], GOALS["mape"], False),
        ("tau within a workload over that of two measurements", "≥ 90 %", share, GOALS["tau_share"], True),
        ("plan regret, unseen networks, mean", "≤ 2 %", unseen["plan_regret"], GOALS["plan_regret"], False),
        ("plan regret, the worst network", "≤ 2 %", regret, GOALS["plan_regret"], False),
        (f"end-to-end error, {which}", "≤ 10 %", worst, GOALS["end_to_end_error"], False),
    ]
    rows = []
    for what, goal, value, wanted, more in found:
        said = ""
        if value is not None:
            said = "reached" if (value >= wanted if more else value <= wanted) else "missed"
        rows.append([what, goal, percent(value), said])
    return table(["goal", "wanted", "found", ""], rows)


def _largest(values: Iterable[float | None]) -> float | None:
    """The largest of those that are there, None without one."""
    return max((v for v in values if v is not None), default=None)


def verdict(summary: Plain) -> str:
    """In what the predictor alone beats the analytical model on unseen networks, and in what it does not."""
    learned, analytical = summary["unseen_networks"], summary["analytical"]["unseen_networks"]
    better: list[str] = []
    worse: list[str] = []
    for key, title, sign in (("mape", "MAPE", -1), ("tau_within", "tau within", 1), ("plan_regret", "plan regret", -1)):
        if learned[key] is None or analytical[key] is None:
            continue
        form = "{:.3f}" if sign > 0 else "{:.1%}"
        text = f"{title} {form.format(learned[key])} against {form.format(analytical[key])}"
        (better if sign * (learned[key] - analytical[key]) > 0 else worse).append(text)
    parts = []
    if better:
        parts.append(f"On unseen networks the predictor alone beats the analytical model in {', '.join(better)}.")
    if worse:
        parts.append(f"It does not in {', '.join(worse)}.")
    return " ".join(parts)


def others_part(summary: Plain) -> list[str]:
    """The figures of each other hardware row that the stores hold: held-out workloads, unseen networks, their plans."""
    names = hardware_names(summary)
    parts = []
    for digest, other in summary.get("other_hardware", {}).items():
        if not {"workload", "unseen"} & set(other["splits"]):
            continue
        parts += [f"**{names.get(digest, digest)}**\n", errors_table(other, ("workload", "unseen"), names)]
        parts += [plans_table(other)] if other["splits"].get("unseen", {}).get("networks") else []
    if not parts:
        return []
    return [
        "## Other hardware in the stores\n",
        "The same of records of other hardware rows, which the predictor learned from too: on workloads that were not"
        " trained on. Networks are planned for that hardware and not run.\n",
        *parts,
    ]


def headline_note(summary: Plain) -> str:
    """Whose figures the page has, "" where there is one hardware row."""
    name = hardware_names(summary).get(summary.get("hardware", {}).get("digest", ""))
    if name is None:
        return ""
    return (
        f"Figures are of records of {name}; what is trained on includes those of other hardware. The rows of other"
        " hardware and other machines say what becomes of hardware that was left out of training.\n"
    )


def evaluation_page(summary: Plain, title: str = "# Evaluation\n") -> str:
    """The whole evaluation."""
    return "\n".join(
        [
            title,
            *filter(None, [headline_note(summary)]),
            goals_table(summary),
            verdict(summary) + "\n",
            "## Errors\n",
            "On workloads that were not trained on. `analytical, scaled`: the analytical model with its usual error"
            " taken out. tau: Kendall's, of configurations of one workload (within) and of all rows (across). top-k:"
            " how often the fastest measured configuration is among the k predicted to be the fastest. Slower than"
            " best: how much slower than the fastest measured configuration the one is that would be chosen.\n",
            errors_table(summary, names=hardware_names(summary)),
            *filter(None, [hardware_note(summary)]),
            "## How sure it is\n",
            sureness_table(summary),
            "## Plans of unseen networks\n",
            "Regret: how much slower than the plan that measured latencies choose a plan is, both among measured"
            " kernels and by a measurement that chose neither; kernels without a record that no plan does without count"
            " what the analytical model says. `learned`: the predictor alone; `learned and records`: records of the"
            " networks trained on come first; `records`: those, and the analytical model where there are none.\n",
            plans_table(summary),
            *others_part(summary),
        ]
    )


_SETTINGS = ("off", "default", "tuned", "tight")


def thresholds_table(effects: Sequence[Plain]) -> str:
    """Each threshold off, at its default, as tuned and tight: plan cost over that of the defaults, and effort."""
    rows = []
    for effect in effects:
        cells = []
        for setting in _SETTINGS:
            found = effect[setting]
            cost, seconds = number(found["plan_cost"], "{:.4f}"), number(found["search_seconds"], "{:.2f}")
            cells += [f"{found['value']:g}", cost, seconds]
        rows.append([effect["name"], *cells, "" if effect["matters"] else "changes nothing"])
    headings = ["threshold"]
    for setting in _SETTINGS:
        headings += [setting, "plan", "effort, s"]
    return table([*headings, ""], rows)


def study_page(report: Plain) -> str:
    """What a study of thresholds found."""
    chosen, usual = report["chosen"], report["default"]
    rows = [
        [name, number(o["plan_cost"], "{:.4f}"), number(o["search_seconds"], "{:.2f}")]
        for name, o in (("default", usual), ("tuned", chosen))
    ]
    parts = [
        f"{report['trials']} trials on {', '.join(report['models'])}; plan cost over the least known, effort of all"
        " searches together.\n",
        table(["thresholds", "plan cost", "effort, s"], rows),
    ]
    front = [
        [
            number(o["plan_cost"], "{:.4f}"),
            number(o["search_seconds"], "{:.2f}"),
            "yes" if o["proved_optimal"] else "no",
            ", ".join(f"{k} {v:g}" for k, v in o["thresholds"].items() if v != usual["thresholds"][k]) or "none",
        ]
        for o in report["pareto"]
    ]
    headings = ["plan cost", "effort, s", "all plans proved optimal", "thresholds that are not the defaults"]
    parts += ["The Pareto front, fastest search first:\n", table(headings, front)]
    if "checked" in report:
        names = ", ".join(report["checked"]["chosen"]["networks"])
        cost = report["checked"]["chosen"]["plan_cost"]
        efforts = [report["checked"][name]["search_seconds"] for name in ("default", "chosen")]
        parts.append(
            f"On networks that the study did not see ({names}): plans of {cost:.4f} times the default's cost, effort"
            f" {efforts[1]:.2f} s instead of {efforts[0]:.2f} s.{_judges(report)}\n"
        )
    if "each" in report:
        parts += [
            "Each threshold by itself, the others at their defaults, on all of these networks. Off and tight: its"
            " pruning as weak, and as strong, as the study allows.\n",
            thresholds_table(report["each"]),
        ]
        abort = chosen["thresholds"]["abort_factor"]
        if abort < 1:
            parts.append(f"The tuned abort factor, {abort:g}, is below 1: plans are not proved to be the best ones.\n")
    return "\n".join(parts)


def _judges(report: Plain) -> str:
    """What says how much the plans cost of networks that were not tuned on."""
    if not report.get("predictor") or not report.get("db"):
        return ""
    return (
        f" What their plans cost is judged by the predictor, and by {report['db']} where it has records of their"
        " kernels: of networks that are not in it, those that they share with one that is."
    )
