"""What GPU kernels take of a card that is not here, kept in gpu_code/resources.json: rows of it, made again.

`networks`: every group of the plans that the analytical cost model of GPUs finds for four networks, and what TVM's own
rules make of the same fused function; `tvm`: the groups of TVM's own fusion (FuseOps) of the same lowered networks, by
its rules; `families`: tests/gpu_cases.py; `offered`: more of the configurations that families offer for the same groups
and cases, what families estimate of them beside what the compiler made. scripts/gpu_kernels.py writes the file.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

from gpu_cases import CASES
from gpu_harness import HARDWARE, TARGET, GpuCase

from autofuse.codegen.fuse_ops import fuse_ops_partition
from autofuse.compiler import Analysed, analyse_for, problem_of
from autofuse.cost.gpu import GpuCostModel
from autofuse.graph.model import Group
from autofuse.measure.cross import CrossCompiler, CrossResult
from autofuse.schedule.family import ScheduleFamily
from autofuse.schedule.gpu.dlight import scheduled_by_rules
from autofuse.schedule.gpu.shape import GpuShape
from autofuse.schedule.registry import family
from autofuse.search.strategies import strategy

__all__ = ["TARGET"]

FILE = Path(__file__).with_name("gpu_code") / "resources.json"
NETWORKS = ("mobilenet_v1", "minilm_l6", "yolov4_tiny", "resnet50")
STRATEGY = "dp"
#: Seconds that a kernel may take to compile: most take one, on a busy machine as long as it likes.
PATIENCE = 300.0
#: Of each group so many of the configurations that its family offers, evenly over its list, first and last among them.
OFFERED = 5
Row = dict[str, Any]

#: How far what is found may be from what was kept: so much, or such a part of it. Registers are the compiler's choice,
#: which another version makes anew; a spill is none too few.
TOLERANCES: dict[str, tuple[int, float]] = {
    "vgprs": (8, 0.15), "sgprs": (16, 0.3), "lds": (0, 0.0), "scratch": (0, 0.0), "spills": (0, 0.0),
    "kernels": (0, 0.0), "workgroups": (0, 0.0), "threads": (0, 0.0), "loads": (0, 0.05), "stores": (0, 0.05),
}  # fmt: skip


def kept() -> dict[str, Any]:
    """The file's content."""
    content: dict[str, Any] = json.loads(FILE.read_text(encoding="utf-8"))
    return content


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[str]:
    """What of a kernel is no longer as it was kept, beyond what TOLERANCES allow."""
    if before.get("status") or after.get("status"):
        was, now = (str(row.get("status", "ok")) for row in (before, after))
        return [] if was == now else [f"status was {was}, is {now}: {after.get('message', '')}"]
    found = []
    for name, (much, part) in TOLERANCES.items():
        if name in before and abs(after[name] - before[name]) > max(much, part * before[name]):
            found.append(f"{name} was {before[name]}, is {after[name]}")
    return found


def resources(result: CrossResult) -> Row:
    """A compiled function's numbers: sums over its kernels, of registers, LDS and threads the largest."""
    if not result.ok:
        return {"status": result.status, "message": result.message.splitlines()[-1][:160] if result.message else ""}
    kernels = {k.name: k for k in result.kernels}
    launches = [(kernels[str(launch["kernel"])], launch) for launch in result.launches]
    threads = [_product(launch["threads"]) for _, launch in launches]
    return {
        "vgprs": max(k.vgprs for k, _ in launches),
        "sgprs": max(k.sgprs for k, _ in launches),
        "lds": max(k.lds_bytes for k, _ in launches),
        "scratch": max(k.scratch_bytes for k, _ in launches),
        "spills": sum(k.vgpr_spills + k.sgpr_spills for k, _ in launches),
        "kernels": len(launches),
        "workgroups": sum(_product(launch["workgroups"]) for _, launch in launches),
        "threads": max(threads),
        "waves": min(
            HARDWARE.resident_waves(k.vgprs, k.lds_bytes, t) for (k, _), t in zip(launches, threads, strict=True)
        ),
        "loads": result.traffic["loads"],
        "stores": result.traffic["stores"],
    }


def _product(sizes: Sequence[int]) -> int:
    total = 1
    for size in sizes:
        total *= size
    return total


def compiled(compiler: CrossCompiler, schedule: Callable[[], Any]) -> Row:
    """The resources of what `schedule` gives, a status where it or the compiler fails."""
    try:
        return resources(compiler.code(schedule()))
    except Exception as error:
        return unscheduled(error)


def unscheduled(error: Exception) -> Row:
    """What a row says where there is no scheduled code."""
    return {"status": "unscheduled", "message": (str(error).strip().splitlines() or ["?"])[-1][:160]}


# -- networks ------------------------------------------------------------------------------------------------------


@cache
def analysed(network: str) -> Analysed:
    """A network lowered for the card."""
    return analyse_for(network, HARDWARE)


def plan(network: str, how: str = STRATEGY) -> Iterator[tuple[Group, str, str]]:
    """The groups of a network's plan with family and configuration, those that launch nothing left out."""
    problem = problem_of(analysed(network), GpuCostModel(HARDWARE))
    for choice in strategy(how, hardware=HARDWARE).search(problem).choices:
        if choice.family not in ("", "view"):
            yield choice.group, choice.family, choice.config


def described(network: str, group: Group, name: str, config: str) -> Row:
    """What a row says of a group besides its resources."""
    tensors, shape = group.graph.tensors, _shape(group, name, config)
    return {
        "group": group.label,
        "operators": [op.name for op in group.operators],
        "outputs": [tensors[t].name for t in group.outputs],
        "result": list(tensors[group.outputs[0]].shape),
        "family": name,
        "config": config,
        "bytes": sum(tensors[t].bytes for t in (*group.inputs, *group.outputs)),
        "estimated": {"vgprs": shape.registers, "lds": shape.lds_bytes, "workgroups": shape.tasks},
    }


def _shape(group: Group, name: str, config: str) -> GpuShape:
    chosen = family(name, "gpu")
    shape = chosen.shape(group, chosen.configuration.parse(config), HARDWARE)
    assert isinstance(shape, GpuShape)
    return shape


def group_of(network: str, row: Mapping[str, Any]) -> Group:
    """The group of a row. KeyError where the network has no such operators any more."""
    graph = analysed(network).graph
    operators = {op.name: op for op in graph.operators}
    members = [operators[name] for name in row["operators"]]
    written = {graph.tensors[t].name: t for op in members for t in op.outputs}
    return Group.of(graph, [op.index for op in members], [written[name] for name in row["outputs"]])


def own(compiler: CrossCompiler, network: str, group: Group, name: str, config: str) -> Row:
    """The resources of a family's kernel."""
    chosen = family(name, "gpu")
    parsed = chosen.configuration.parse(config)
    fuser = analysed(network).fuser
    return compiled(compiler, lambda: chosen.apply(fuser.fuse(group), group, parsed, HARDWARE))


def by_rules(compiler: CrossCompiler, network: str, group: Group) -> Row:
    """The resources of what TVM's rules make of the same fused function."""
    return compiled(compiler, lambda: scheduled_by_rules(analysed(network).fuser.fuse(group), HARDWARE))


def planned(network: str) -> list[tuple[Row, Group]]:
    """A row for each different kernel of a network's plan, without resources, and its group; `times`: how often it
    stands in the plan.
    """
    rows: dict[str, tuple[Row, Group]] = {}
    for group, name, config in plan(network):
        key = f"{name}[{config}]{analysed(network).fuser.structure(group)}"
        if key in rows:
            rows[key][0]["times"] += 1
        else:
            rows[key] = ({**described(network, group, name, config), "times": 1}, group)
    return list(rows.values())


def network_rows(compiler: CrossCompiler, network: str) -> Iterator[Row]:
    """The rows of a network's plan with the resources of our kernels, and of what TVM's rules make of the groups."""
    for row, group in planned(network):
        found = {"own": own(compiler, network, group, row["family"], row["config"])}
        if row["family"] != "dlight":
            found["rules"] = by_rules(compiler, network, group)
        yield {**row, **found}


def tvm_rows(compiler: CrossCompiler, network: str) -> Iterator[Row]:
    """A row for each different group of TVM's own fusion, as its rules schedule it; views left out."""
    model = analysed(network)
    view = family("view", "gpu")
    rows: dict[str, Row] = {}
    groups: dict[str, Group] = {}
    for members in fuse_ops_partition(model.lowered.module, model.built):
        group = Group.of(model.graph, members)
        if not all(op.fusable for op in group.operators) or view.match(group, HARDWARE) is None:
            continue
        key = model.fuser.structure(group)
        if key in rows:
            rows[key]["times"] += 1
        else:
            rows[key] = {"group": group.label, "times": 1}
            groups[key] = group
    for key, row in rows.items():
        yield {**row, "rules": by_rules(compiler, network, groups[key])}


# -- families ------------------------------------------------------------------------------------------------------


def family_rows(compiler: CrossCompiler, names: Sequence[str] = ()) -> Iterator[Row]:
    """A row for each case of tests/gpu_cases.py (those in `names`), of the first configuration offered."""
    for name, what, emit, shapes, behind in CASES:
        if not names or f"{name}: {what}" in names:
            case = GpuCase(family(name, "gpu"), emit, shapes, behind)
            config = case.configs()[0]
            yield {
                "case": f"{name}: {what}",
                "config": config.text,
                "own": compiled(compiler, lambda case=case, config=config: case.schedule(config)),  # type: ignore[misc]
            }


# -- estimates -----------------------------------------------------------------------------------------------------


def offered_rows(compiler: CrossCompiler) -> Iterator[Row]:
    """A row for each of OFFERED configurations of every group of the networks' plans, and of every case."""
    for network in NETWORKS:
        fuser = analysed(network).fuser
        groups = {fuser.structure(group): (group, row["family"]) for row, group in planned(network)}
        for group, name in groups.values():
            if name != "dlight":
                yield from _offered(compiler, network, family(name, "gpu"), group, partial(fuser.fuse, group))
    for name, what, emit, shapes, behind in CASES:
        case = GpuCase(family(name, "gpu"), emit, shapes, behind)
        yield from _offered(compiler, what, case.family, case.group, partial(case.made.fuser.fuse, case.group))


def _offered(
    compiler: CrossCompiler, where: str, chosen: ScheduleFamily, group: Group, fused: Callable[[], Any]
) -> Iterator[Row]:
    configs = chosen.configs(group, HARDWARE)
    last = len(configs) - 1
    for place in sorted({round(i * last / (OFFERED - 1)) for i in range(OFFERED)}):
        config = configs[place]
        shape = _shape(group, chosen.name, config.text)
        try:
            result = compiler.code(chosen.apply(fused(), group, config, HARDWARE))
            own = resources(result)
        except Exception as error:
            own = unscheduled(error)
        estimated = {
            "vgprs": shape.registers, "lds": shape.lds_bytes, "loads_per_fma": round(shape.loads_per_fma, 4),
            "waves": HARDWARE.resident_waves(shape.registers, shape.lds_bytes, shape.threads),
        }  # fmt: skip
        if "status" not in own:
            inner = result.kernels[0].inner
            kept = ("vgprs", "lds", "scratch", "spills", "waves")
            own = {name: own[name] for name in kept} | {"fma": inner.fma, "inner_loads": inner.loads + inner.lds_reads}
        yield {
            "where": where, "group": group.label, "family": chosen.name, "config": config.text, "estimated": estimated,
            "own": own,
        }  # fmt: skip
