"""TVM's own greedy partition (FuseOps) of a lowered module, read back as sets of operators."""

from __future__ import annotations

from typing import Any

import tvm
from tvm import relax

from autofuse.graph.build import BuiltGraph


def fuse_ops_partition(module: tvm.IRModule, built: BuiltGraph) -> tuple[tuple[int, ...], ...]:
    """The groups that FuseOps forms, ascending operator indices; every fusable operator stands in exactly one.

    FuseOps renames variables, so operators are found again by what they call on which tensors.
    """
    graph = built.graph
    tensors: dict[Any, int] = {value: t for t, value in enumerate(built.values) if value is not None}
    kernel: dict[int, str] = {}
    calls: dict[tuple[str, tuple[int, ...]], list[int]] = {}
    values = {b.var: b.value for block in module["main"].body.blocks for b in block.bindings}
    for op in graph.operators:
        call = values[built.variables[op.index]]
        if _is_kernel_call(call):
            kernel[op.index] = call.args[0].name_hint
            calls.setdefault((kernel[op.index], op.inputs), []).append(op.index)
    fused = relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(module))
    main = fused["main"]
    place: dict[Any, int] = dict(zip(main.params, graph.inputs, strict=True))

    def tensor(expr: Any, inner: dict[Any, int]) -> int | None:
        if expr in inner:
            return inner[expr]
        return place.get(expr, tensors.get(expr))

    def operator(call: Any, inner: dict[Any, int]) -> int | None:
        inputs = tuple(tensor(a, inner) for a in call.args[1].fields)
        waiting = calls.get((call.args[0].name_hint, inputs))  # type: ignore[arg-type]
        return waiting.pop(0) if waiting else None

    groups: list[tuple[int, ...]] = []
    outputs: dict[Any, list[int]] = {}
    for binding in (b for block in main.body.blocks for b in block.bindings):
        value = binding.value
        if _is_kernel_call(value):
            found = operator(value, {})
            if found is not None:
                groups.append((found,))
                place[binding.var] = graph.operators[found].outputs[0]
        elif isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar):
            function = fused[value.op]
            inner = {p: t for p, a in zip(function.params, value.args, strict=True) if (t := tensor(a, {})) is not None}
            members = []
            for step in (b for block in function.body.blocks for b in block.bindings):
                if _is_kernel_call(step.value):
                    found = operator(step.value, inner)
                    if found is not None:
                        members.append(found)
                        inner[step.var] = graph.operators[found].outputs[0]
                elif step.value in inner:
                    inner[step.var] = inner[step.value]
            groups.append(tuple(sorted(members)))
            body = function.body.body
            results = list(body.fields) if isinstance(body, relax.Tuple) else [body]
            outputs[binding.var] = [inner.get(r, -1) for r in results]
            if len(results) == 1:
                place[binding.var] = outputs[binding.var][0]
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in outputs:
            place[binding.var] = outputs[value.tuple_value][value.index]
        else:
            known = tensor(value, {}) if not isinstance(value, relax.Call) else None
            if known is not None:
                place[binding.var] = known
            elif isinstance(value, relax.Call):
                _place_opaque(binding.var, built, place, outputs)
    seen = {m for g in groups for m in g}
    groups += [(index,) for index in kernel if index not in seen]
    return tuple(sorted((g for g in groups if g), key=lambda g: g[-1]))


def _is_kernel_call(value: Any) -> bool:
    return (
        isinstance(value, relax.Call)
        and isinstance(value.op, tvm.ir.Op)
        and value.op.name == "relax.call_tir"
        and isinstance(value.args[0], tvm.ir.GlobalVar)
    )


def _place_opaque(var: Any, built: BuiltGraph, place: dict[Any, int], outputs: dict[Any, list[int]]) -> None:
    """An opaque call keeps its variable's name."""
    for op in built.graph.operators:
        if str(built.variables[op.index].name) == str(var.name):
            outputs[var] = list(op.outputs)
            if isinstance(var.ty, relax.TensorType):
                place[var] = op.outputs[0]
            return
