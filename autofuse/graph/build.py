"""Lowered Relax module → operator graph, with the Relax variable behind every operator.

`build_graph` takes a module whose `main` is straight-line code of `call_tir` calls; other calls become operators that
stay outside every group. Functions that carry "autofuse.*" attributes keep their kind, form, layouts and logical
shapes; others (plain LegalizeOps) get the kind from the function's name and the form from its canonical text.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import tvm
from tvm import relax

from autofuse.errors import ModelError
from autofuse.graph.analysis import Analysis, analyse
from autofuse.graph.collector import paused_collector
from autofuse.graph.model import Access, Graph, MappingType, Operator, Role, Tensor
from autofuse.graph.text import call_text


@dataclass(frozen=True)
class BuiltGraph:
    """A graph and, per operator index, the variable of `main` that its call is bound to (a tuple's for several
    results); per tensor index, the Relax value: parameter, constant, binding variable, None for a field of a tuple."""

    graph: Graph
    variables: tuple[Any, ...]
    values: tuple[Any, ...] = field(default=(), repr=False)


@paused_collector()
def build_graph(module: tvm.IRModule, name: str) -> BuiltGraph:
    """Builds the operator graph of `module["main"]`.

    Raises:
        ModelError: no `main`, control flow, or shapes that are not static.
    """
    if "main" not in [var.name_hint for var in module.get_global_vars()]:
        raise ModelError(f"model {name!r}: the module has no function 'main'; give one that was prepared and lowered")
    return _Builder(module, name).build()


# A value of the program: a tensor's number, or a tuple of values. None stands for what is no tensor.
_Value = Any


class _Builder:
    def __init__(self, module: tvm.IRModule, name: str) -> None:
        self.module = module
        self.name = name
        self.tensors: list[Tensor] = []
        self.relax_values: list[Any] = []
        self.operators: list[Operator] = []
        self.variables: list[Any] = []
        self.known: dict[Any, _Value] = {}
        self.constants: dict[Any, int] = {}
        self.analyses: dict[Any, tuple[Analysis, dict[str, Any], str, str]] = {}

    def build(self) -> BuiltGraph:
        main = self.module["main"]
        inputs = []
        for param in main.params:
            value = self.declare(param.ty, str(param.name), Role.INPUT, param)
            self.known[param] = value
            inputs.extend(_flat(value))
        for block in main.body.blocks:
            for binding in block.bindings:
                self.known[binding.var] = self.bind(binding.var, binding.value)
        outputs = tuple(_flat(self.value(main.body.body)))
        graph = Graph(self.name, tuple(self.tensors), tuple(self.operators), tuple(inputs), outputs)
        return BuiltGraph(graph, tuple(self.variables), tuple(self.relax_values))

    # -- values -------------------------------------------------------------------------------------------------

    def declare(self, ty: Any, name: str, role: Role, value: Any) -> _Value:
        """New tensors of a Relax type; a tuple type gives a tuple."""
        if isinstance(ty, relax.TupleType):
            return tuple(self.declare(f, f"{name}.{i}", role, None) for i, f in enumerate(ty.fields))
        if not isinstance(ty, relax.TensorType):
            return None
        shape, dtype = self.static(ty, name)
        index = len(self.tensors)
        self.tensors.append(Tensor(index, name, shape, dtype, role, "", shape))
        self.relax_values.append(value)
        return index

    def static(self, ty: Any, name: str) -> tuple[tuple[int, ...], str]:
        values = getattr(ty.shape, "values", None)
        extents = [] if values is None else values[:]
        if values is None or not all(isinstance(v, tvm.tirx.IntImm) for v in extents):
            raise ModelError(
                f"model {self.name!r}: the shape of {name!r} is not static; give every input a fixed shape"
            )
        return tuple(int(v.value) for v in extents), _dtype(ty)

    def value(self, expr: Any) -> _Value:
        """The value of an argument: known variable, constant, tuple."""
        if isinstance(expr, relax.Var):
            return self.known.get(expr)
        if isinstance(expr, relax.Tuple):
            return tuple([self.value(item) for item in expr.fields[:]])
        if isinstance(expr, relax.TupleGetItem):
            whole = self.value(expr.tuple_value)
            return whole[expr.index] if isinstance(whole, tuple) else None
        if isinstance(getattr(expr, "ty", None), relax.TensorType) and not isinstance(expr, relax.Call):
            if expr not in self.constants:
                name = f"constant{len(self.constants)}"
                self.constants[expr] = self.declare(expr.ty, name, Role.CONSTANT, expr)
            return self.constants[expr]
        return None

    def bind(self, var: Any, value: Any) -> _Value:
        if isinstance(value, relax.If):
            raise ModelError(
                f"model {self.name!r}: {var.name!r} is a branch (If) on run-time values; "
                "only straight-line code compiles"
            )
        if isinstance(value, relax.Call):
            return self.call(var, value)
        if isinstance(value, relax.Function):
            return None
        return self.value(value)

    # -- operators ----------------------------------------------------------------------------------------------

    def call(self, var: Any, call: Any) -> _Value:
        function = self.tensor_function(call)
        arguments = call.args[1] if function is not None else relax.Tuple(list(call.args))
        inputs = tuple(_flat(self.value(arguments)))
        result = self.declare(var.ty, str(var.name), Role.VALUE, var)
        outputs = tuple(_flat(result))
        if not outputs:
            # A shape or a check: nothing that flows in memory.
            return result
        if function is None:
            self.add(var, self.outside(call, inputs, outputs))
            return result
        name, func = function
        if name not in self.analyses:
            analysis = analyse(func, len(outputs))
            attrs = func.attrs or {}
            kind = str(attrs["autofuse.kind"]) if "autofuse.kind" in attrs else kind_of(name)
            form = str(attrs["autofuse.form"]) if "autofuse.form" in attrs else analysis.text
            details = json.loads(str(attrs["autofuse.attrs"])) if "autofuse.attrs" in attrs else {}
            self.analyses[name] = (analysis, details, kind, form)
        analysis, details, kind, form = self.analyses[name]
        if len(analysis.accesses) != len(inputs):
            # Scalars among the arguments: what is read cannot be matched with what is passed.
            accesses = tuple(
                Access(i, t, MappingType.OPAQUE, 0, 0, -1, "its arguments are not all tensors")
                for i, t in enumerate(inputs)
            )
        else:
            accesses = tuple([_moved(a, t) for a, t in zip(analysis.accesses, inputs, strict=True)])
        self.lay_out(details, inputs, outputs)
        self.add(
            var,
            Operator(
                index=len(self.operators),
                name=str(var.name),
                kind=kind,
                form=form,
                inputs=inputs,
                outputs=outputs,
                accesses=accesses,
                work=analysis.work,
                attrs=details,
                spatial=analysis.spatial,
                reduction=analysis.reduction,
                blocks=analysis.blocks,
            ),
        )
        return result

    def add(self, var: Any, operator: Operator) -> None:
        self.operators.append(operator)
        self.variables.append(var)

    def tensor_function(self, call: Any) -> tuple[str, Any] | None:
        """Name and PrimFunc of a `call_tir`, None for every other call."""
        if not isinstance(call.op, tvm.ir.Op) or call.op.name != "relax.call_tir":
            return None
        target = call.args[0]
        if not isinstance(target, tvm.ir.GlobalVar):
            return None
        func = self.module[target]
        return (str(target.name_hint), func) if isinstance(func, tvm.tirx.PrimFunc) else None

    def outside(self, call: Any, inputs: tuple[int, ...], outputs: tuple[int, ...]) -> Operator:
        """An operator that is no tensor program of this module."""
        name = str(getattr(call.op, "name", "") or getattr(call.op, "name_hint", "") or "function")
        extra = [str(a) for a in call.args if self.value(a) is None and not isinstance(a, relax.Var)]
        types = [self.type_text(t) for t in inputs] + extra
        result = ";".join(self.type_text(t) for t in outputs)
        reason = f"{name} is no tensor program"
        # An operator without operands has no access that could say that it is opaque, so it points at its result.
        accesses = tuple(Access(i, t, MappingType.OPAQUE, 0, 0, -1, reason) for i, t in enumerate(inputs)) or (
            Access(0, outputs[0], MappingType.OPAQUE, 0, 0, -1, reason),
        )
        return Operator(
            index=len(self.operators),
            name=self.tensors[outputs[0]].name,
            kind=name.removeprefix("relax."),
            form=call_text(name, call.attrs, types, result),
            inputs=inputs,
            outputs=outputs,
            accesses=accesses,
            spatial=self.tensors[outputs[0]].shape,
        )

    def type_text(self, tensor: int) -> str:
        return f"{self.tensors[tensor].dtype}{list(self.tensors[tensor].shape)}"

    def lay_out(self, details: Mapping[str, Any], inputs: Iterable[int], outputs: tuple[int, ...]) -> None:
        """Records layouts and logical shapes; a tensor's maker knows best, users say it for inputs and constants."""
        layouts = details.get("in_layouts", ())
        shapes = details.get("in_logical", ())
        for position, tensor in enumerate(inputs):
            if self.tensors[tensor].role is not Role.VALUE:
                layout = layouts[position] if position < len(layouts) else None
                shape = shapes[position] if position < len(shapes) else None
                self.set_layout(tensor, layout, shape)
        if len(outputs) == 1:
            self.set_layout(outputs[0], details.get("out_layout"), details.get("out_logical"))

    def set_layout(self, tensor: int, layout: str | None, shape: Iterable[int] | None) -> None:
        old = self.tensors[tensor]
        layout = old.layout if layout is None else layout
        logical_shape = old.logical_shape if shape is None else tuple([int(e) for e in shape])
        if (layout, logical_shape) != (old.layout, old.logical_shape):
            self.tensors[tensor] = Tensor(tensor, old.name, old.shape, old.dtype, old.role, layout, logical_shape)


def _moved(a: Access, tensor: int) -> Access:
    """The same access of another tensor: `replace` takes three times as long."""
    return Access(a.operand, tensor, a.mapping, a.reads_per_output, a.uses_per_element, a.stride, a.reason)


def _flat(value: _Value) -> list[int]:
    if value is None:
        return []
    if isinstance(value, tuple):
        return [t for item in value for t in _flat(item)]
    return [value]


def _dtype(ty: Any) -> str:
    dtype = ty.dtype
    return str(getattr(dtype, "dtype", dtype))


@lru_cache(maxsize=1024)
def kind_of(function: str) -> str:
    """The Relax operator that a legalised function's name comes from: "conv2d3" → "nn.conv2d".

    The name itself, without a trailing number, when no operator is called that.
    """
    base = function.removeprefix("tir_").removeprefix("te_")
    stem = base
    while stem:
        for prefix in ("", "nn.", "image."):
            if _is_operator(f"relax.{prefix}{stem}"):
                return prefix + stem
        if not stem[-1].isdigit():
            break
        stem = stem[:-1]
    return _ALIASES.get(base.rstrip("0123456789_"), base.rstrip("0123456789_") or function)


_ALIASES = {"transpose": "permute_dims", "concatenate": "concat", "cast": "astype", "leaky_relu": "nn.leakyrelu",
            "gather": "gather_elements"}  # fmt: skip


@lru_cache(maxsize=4096)
def _is_operator(name: str) -> bool:
    try:
        tvm.ir.Op.get(name)
    except Exception:
        return False
    return True
