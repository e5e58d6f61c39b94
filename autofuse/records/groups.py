"""Groups as text, so that the features of a record can be computed anew: a group → JSON, JSON → an equal group.

The text holds the group alone, renumbered, as a graph of its own; names of tensors and operators are left out.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.records.record import canonical

_VERSION = 1


def group_to_text(group: Group) -> str:
    """Canonical JSON of everything that schedules and cost models may ask of the group."""
    graph = group.graph
    order = dict.fromkeys(t for op in group.operators for t in (*op.inputs, *op.outputs))
    number = {t: i for i, t in enumerate(order)}
    return canonical(
        {
            "version": _VERSION,
            "tensors": [
                [
                    graph.tensors[t].shape,
                    graph.tensors[t].dtype,
                    graph.tensors[t].role.value,
                    graph.tensors[t].layout,
                    graph.tensors[t].logical_shape,
                ]
                for t in order
            ],
            "operators": [
                {
                    "kind": op.kind,
                    "form": op.form,
                    "inputs": [number[t] for t in op.inputs],
                    "outputs": [number[t] for t in op.outputs],
                    "accesses": [
                        [a.operand, number[a.tensor], a.mapping.value, a.reads_per_output, a.uses_per_element, a.stride]
                        for a in op.accesses
                    ],
                    "work": [op.work.fma, op.work.simple, op.work.divide, op.work.special, op.work.compare],
                    "attrs": dict(op.attrs),
                    "spatial": op.spatial,
                    "reduction": op.reduction,
                    "blocks": op.blocks,
                }
                for op in group.operators
            ],
            "outputs": [number[t] for t in group.outputs],
        }
    )


def group_from_text(text: str) -> Group:
    """The group, in a graph that holds nothing else. ValueError if the text is not one of `group_to_text`."""
    try:
        value = json.loads(text)
        if value["version"] != _VERSION:
            raise ValueError(f"version {value['version']!r}")
        tensors = tuple(
            Tensor(i, f"t{i}", tuple(shape), dtype, Role(role), layout, tuple(logical))
            for i, (shape, dtype, role, layout, logical) in enumerate(value["tensors"])
        )
        operators = tuple(_operator(i, op) for i, op in enumerate(value["operators"]))
        outputs = tuple(value["outputs"])
        if any(not 0 <= t < len(tensors) for op in operators for t in (*op.inputs, *op.outputs, *outputs)):
            raise ValueError("a tensor that is not there")
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"no text of a group ({error})") from error
    made = {t for op in operators for t in op.outputs}
    inputs = tuple(dict.fromkeys(t for op in operators for t in op.inputs if t not in made))
    graph = Graph("group", tensors, operators, inputs, outputs)
    return Group(graph, tuple(range(len(operators))), outputs)


def for_lanes(group: Group, lanes: int) -> Group:
    """The group as it is stored where vectors have so many float32 lanes.

    One form stands for the records of several machines. What its layouts do not say is how wide the columns are in
    which constants of matrix products are packed: two vectors (`lower/rules.py`).
    """
    graph, wanted = group.graph, 2 * lanes
    tensors = list(graph.tensors)
    for op in group.operators:
        if op.kind == "matmul" and op.attrs.get("variant") == "packed":
            weight, columns = tensors[op.inputs[1]], tensors[op.outputs[0]].shape[-1]
            _, depth, width = weight.shape
            if width != wanted:
                tensors[weight.index] = replace(weight, shape=(-(-columns // wanted), depth, wanted))
    changed = tuple(tensors)
    return group if changed == graph.tensors else replace(group, graph=replace(graph, tensors=changed))


def _operator(index: int, value: dict[str, Any]) -> Operator:
    return Operator(
        index,
        f"{value['kind']}_{index}",
        value["kind"],
        value["form"],
        tuple(value["inputs"]),
        tuple(value["outputs"]),
        tuple(
            Access(operand, tensor, MappingType(mapping), reads, uses, stride)
            for operand, tensor, mapping, reads, uses, stride in value["accesses"]
        ),
        Work(*value["work"]),
        value["attrs"],
        tuple(value["spatial"]),
        tuple(value["reduction"]),
        value["blocks"],
    )
