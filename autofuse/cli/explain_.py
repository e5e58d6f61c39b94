"""`autofuse explain`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from autofuse.arguments import check_arguments
from autofuse.cli.options import compile_arguments, compile_options, json_option, print_json, status
from autofuse.cli.tables import table_console
from autofuse.errors import PlanError


@click.command("explain")
@click.argument("model")
@click.option("--edge", metavar="A,B", help="Explain the edge between two operators (names or numbers).")
@click.option("--all", "everything", is_flag=True, help="Explain every edge.")
@compile_options
@json_option
def command(model: str, edge: str | None, everything: bool, as_json: bool, **given: Any) -> None:
    """Say why operators of MODEL are, or are not, in one kernel, and the cost on both sides.

    Without --edge or --all: the plan, kernel by kernel.
    """
    arguments = compile_arguments(given)
    check_arguments(arguments)
    from autofuse.chosen import choose_cost_model, choose_predictor, choose_thresholds
    from autofuse.compiler import analyse, follow_plan, limit_fuel, problem_of
    from autofuse.report.explain import Explainer
    from autofuse.schedule.registry import families
    from autofuse.search.strategies import strategy

    with status(f"explaining {model}") as tell:
        analysed = analyse(
            model,
            target=given["target"],
            threads=given["threads"],
            batch=given["batch"],
            input_shapes=arguments["input_shapes"],
            progress=tell,
            dump_ir=Path(given["dump_ir"]) if given["dump_ir"] else None,
        )
        costs = choose_cost_model(analysed, given["cost_model"], given["predictor"], given["db"])
        predictor = choose_predictor(analysed.hardware, given["cost_model"], given["predictor"])
        limits = choose_thresholds(given["thresholds"], predictor)
        problem = problem_of(analysed, costs, limits, int((given["max_memory"] or 0) * 1e6))
        if given["plan"]:
            result = follow_plan(given["plan"], problem, analysed, costs)
        else:
            chosen = strategy(
                given["strategy"], hardware=analysed.hardware, compile_allowance=given["compile_allowance"]
            )
            result = chosen.search(problem)
        if given["fuel"] is not None:
            result = limit_fuel(result, problem, given["fuel"])
    explainer = Explainer(problem, result.choices, costs, analysed.hardware, families(analysed.hardware.kind))
    if edge is None and not everything:
        _print_plan(analysed.graph, result, as_json)
        return
    if edge is not None:
        names = [n.strip() for n in edge.split(",")]
        if len(names) != 2:
            raise PlanError(f"--edge {edge!r} does not name two operators: write --edge A,B")
        pairs = [tuple(sorted(explainer.operator(n) for n in names))]
        if pairs[0][0] == pairs[0][1]:
            raise PlanError(f"--edge {edge!r} names one operator twice")
    else:
        pairs = list(explainer.edges())
    reports = [explainer.explain(*pair) for pair in pairs]
    if as_json:
        print_json({"model": analysed.graph.name, "edges": [r.as_dict() for r in reports]})
        return
    for report in reports:
        click.echo(report.sentences())


def _print_plan(graph: Any, result: Any, as_json: bool) -> None:
    kernels = [
        {
            "operators": [{"index": op.index, "name": op.name, "kind": op.kind} for op in c.group.operators],
            "family": c.family,
            "config": c.config,
            "microseconds": c.inside * 1e6,
            "source": c.source,
        }
        for c in result.choices
    ]
    if as_json:
        print_json({"model": graph.name, "strategy": result.strategy, "reason": result.reason, "kernels": kernels})
        return
    from rich.table import Table

    table = Table("#", "operators", "family", "configuration", "µs", "from", title=f"{graph.name}: {result.strategy}")
    for n, c in enumerate(result.choices):
        names = " ".join(f"{op.name}:{op.kind.removeprefix('nn.')}" for op in c.group.operators[:8])
        more = f" … {len(c.group.members) - 8} more" if len(c.group.members) > 8 else ""
        table.add_row(str(n), names + more, c.family or "opaque", c.config, f"{c.inside * 1e6:.2f}", c.source)
    table_console().print(table)
    if result.reason:
        click.echo(f"strategy {result.reason}")
    click.echo("explain one edge with --edge A,B, all with --all")
