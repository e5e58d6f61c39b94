"""Kernels in order → a Relax program that calls them; its weights become parameters.

A constant that a kernel wants in another form is a weight of its own, once for each form; the constant as the model has
it is a weight only if something reads it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tvm
from tvm import relax

from autofuse.codegen.fuse import kernel_type
from autofuse.codegen.kernels import Kernel
from autofuse.graph.model import Graph, Role, Tensor
from autofuse.schedule.preparations import prepare, prepared_shape


@dataclass(frozen=True)
class Program:
    """`module["main"]` takes the model's inputs, then `weights` (TVM tensors).

    `units`: kernels, and numbers of operators outside every group, in the order of the program.
    """

    module: tvm.IRModule
    weights: tuple[Any, ...]
    units: tuple[Kernel | int, ...]

    @property
    def kernels(self) -> int:
        """Kernels that one call launches: all but the views."""
        return sum(1 for unit in self.units if isinstance(unit, int) or unit.func is not None)


def _needs(graph: Graph, unit: Kernel | int) -> tuple[int, ...]:
    return graph.operators[unit].inputs if isinstance(unit, int) else unit.assignment.group.inputs


def reads(graph: Graph, unit: Kernel | int) -> list[tuple[int, str]]:
    """The tensors that a unit reads, in order, each with the form in which it wants it ("" as it is)."""
    needs = _needs(graph, unit)
    forms = {} if isinstance(unit, int) else unit.prepared
    for position in forms:
        if graph.tensors[needs[position]].role is not Role.CONSTANT:
            raise ValueError(f"{graph.tensors[needs[position]].name} is no constant: it cannot be prepared")
    return [(t, forms.get(position, "")) for position, t in enumerate(needs)]


def _weight_type(tensor: Tensor, form: str) -> Any:
    return relax.TensorType(list(prepared_shape(form, tensor.shape)), tensor.dtype) if form else kernel_type(tensor)


def gives(graph: Graph, unit: Kernel | int) -> tuple[int, ...]:
    return graph.operators[unit].outputs if isinstance(unit, int) else unit.assignment.group.outputs


def order_kernels(kernels: Sequence[Kernel], opaque: Sequence[int], graph: Graph) -> list[Kernel | int]:
    """Kernels and opaque operators in an order in which every tensor is made before it is read.

    A kernel that makes nothing new is left out: where a group was taken apart, a producer that it recomputed may stand
    in another kernel already. Raises ValueError for a cycle.
    """
    made = {t.index for t in graph.tensors if t.role is not Role.VALUE}
    givers = Counter(t for k in kernels for t in k.assignment.group.outputs)
    waiting: list[Kernel | int] = list(opaque)
    for kernel in sorted(kernels, key=lambda k: len(k.assignment.group.members)):
        if all(givers[t] > 1 for t in gives(graph, kernel)):
            givers.subtract(gives(graph, kernel))
        else:
            waiting.append(kernel)

    def first(unit: Kernel | int) -> int:
        return unit if isinstance(unit, int) else unit.assignment.group.members[-1]

    waiting.sort(key=first)
    ordered: list[Kernel | int] = []
    while waiting:
        later: list[Kernel | int] = []
        before = len(ordered)
        for unit in waiting:
            if all(t in made for t in _needs(graph, unit)):
                ordered.append(unit)
                made.update(gives(graph, unit))
            else:
                later.append(unit)
        if len(ordered) == before:
            raise ValueError("the groups depend on each other in a cycle")
        waiting = later
    return ordered


def assemble(
    lowered: tvm.IRModule,
    graph: Graph,
    kernels: Sequence[Kernel],
    opaque: Sequence[int],
    calls: Any,
    constants: Any,
) -> Program:
    """The program. `calls[i]` is the Relax call of operator i in the lowered module; `constants[t]` a constant.

    Opaque operators keep their call, and the function that it calls, with their operands replaced.
    """
    source = lowered["main"]
    builder = relax.BlockBuilder()
    params = [relax.Var(p.name, p.ty) for p in source.params]
    values: dict[int, Any] = dict(zip(graph.inputs, params, strict=True))
    ordered = order_kernels(kernels, opaque, graph)
    used = weights_of(graph, ordered)
    weights = [relax.Var(f"weight{n}", _weight_type(graph.tensors[t], form)) for n, (t, form) in enumerate(used)]
    prepared = {item: weight for item, weight in zip(used, weights, strict=True) if item[1]}
    values.update({t: weight for (t, form), weight in zip(used, weights, strict=True) if not form})
    functions: dict[str, Any] = {}
    with builder.function("main", [*params, *weights], attrs={"num_input": len(params)}):
        with builder.dataflow():
            for unit in ordered:
                if isinstance(unit, int):
                    _emit_opaque(builder, lowered, graph, unit, calls[unit], values)
                    continue
                group = unit.assignment.group
                if unit.func is None:
                    target = group.outputs[0]
                    shape = list(graph.tensors[target].shape)
                    values[target] = builder.emit(relax.op.reshape(values[group.inputs[0]], shape))
                    continue
                if unit.name not in functions:
                    functions[unit.name] = builder.add_func(unit.func, unit.name)
                types = [kernel_type(graph.tensors[t]) for t in group.outputs]
                args = [prepared[t, form] if form else values[t] for t, form in reads(graph, unit)]
                call = builder.emit(relax.call_tir(functions[unit.name], args, types[0] if len(types) == 1 else types))
                if len(types) == 1:
                    values[group.outputs[0]] = call
                else:
                    for n, t in enumerate(group.outputs):
                        values[t] = builder.emit(relax.TupleGetItem(call, n))
            results = [values[t] for t in graph.outputs]
            single = isinstance(source.body.body.ty, relax.TensorType)
            output = builder.emit_output(results[0] if single else builder.normalize(relax.Tuple(results)))
        builder.emit_func_output(output)
    return Program(builder.get(), tuple(weight(constants[t], form) for t, form in used), tuple(ordered))


def weights_of(graph: Graph, ordered: Sequence[Kernel | int]) -> list[tuple[int, str]]:
    """The constants that a program reads, each with the form in which it does, once each."""
    read = [item for unit in ordered for item in reads(graph, unit)] + [(t, "") for t in graph.outputs]
    return [(t, form) for t, form in dict.fromkeys(read) if graph.tensors[t].role is Role.CONSTANT]


def weight(constant: Any, form: str) -> Any:
    """A constant in the form in which it is read, as TVM's tensor."""
    return tvm.runtime.tensor(prepare(form, constant.numpy())) if form else constant


def _emit_opaque(
    builder: Any, lowered: tvm.IRModule, graph: Graph, index: int, call: Any, values: dict[int, Any]
) -> None:
    op = graph.operators[index]
    replaced = iter(op.inputs)
    args = []
    for arg in call.args:
        ty = getattr(arg, "ty", None)
        if isinstance(ty, relax.TensorType):
            args.append(values[next(replaced)])
        elif isinstance(arg, tvm.ir.GlobalVar):
            args.append(builder.add_func(lowered[arg], arg.name_hint))
        elif isinstance(arg, relax.Tuple):
            args.append(
                relax.Tuple([values[next(replaced)] if isinstance(f.ty, relax.TensorType) else f for f in arg.fields])
            )
        else:
            args.append(arg)
    result = builder.emit(relax.Call(call.op, args, call.attrs, call.ty_args))
    if len(op.outputs) == 1 and isinstance(result.ty, relax.TensorType):
        values[op.outputs[0]] = result
    else:
        for n, t in enumerate(op.outputs):
            values[t] = builder.emit(relax.TupleGetItem(result, n))
