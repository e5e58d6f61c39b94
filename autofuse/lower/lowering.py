"""The walk that lowers a prepared module: rules choose layouts, every operator becomes one `call_tir`.

Takes a `PreparedModel`'s module, gives a `LoweredModel` whose `main` is one dataflow block of `call_tir` bindings. Each
PrimFunc carries "autofuse.kind", "autofuse.form" (what it computes, on logical shapes: what workload keys hash) and
"autofuse.attrs" (what schedules need, and the layouts).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray
from tvm import relax

from autofuse.lower import operators
from autofuse.lower.values import PLAIN, Value, block_array, blocked

# Bytes from which on a constant's copies matter.
_LARGE = 1 << 20


@dataclass(frozen=True)
class LoweredModel:
    """`module["main"]` holds the operators; names are in the order of its parameters and results."""

    name: str
    module: tvm.IRModule
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    lanes: int


def shape_of(expr: Any) -> tuple[int, ...]:
    """Static shape of a Relax tensor expression."""
    return tuple(int(extent) for extent in expr.ty.shape.values)


def dtype_of(expr: Any) -> str:
    """dtype of a Relax tensor expression, e.g. "float32"."""
    dtype = expr.ty.dtype
    return str(getattr(dtype, "dtype", dtype))


def _is_tensor(expr: Any) -> bool:
    return isinstance(getattr(expr, "ty", None), relax.TensorType)


def _is_constant(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.GenericConst) and _is_tensor(expr)


def constant_of(array: NDArray[Any]) -> Any:
    """A Relax constant of any array, transposed views included.

    Large ones are written straight to where TVM keeps them: a contiguous copy in between would double the peak.
    """
    if array.nbytes >= _LARGE and array.dtype == np.float32:
        stored = tvm.runtime.empty(array.shape, "float32")
        np.copyto(np.from_dlpack(stored), array)
        return relax.const(stored)
    # Without the dtype, int64 without axes would become int32.
    return relax.const(np.asarray(array, order="C"), str(array.dtype))


def _array_of(constant: Any) -> NDArray[Any]:
    """The data of a Relax constant, not copied: weights are large."""
    try:
        return np.from_dlpack(constant.value)
    except (BufferError, RuntimeError, TypeError):  # a type that numpy does not know by itself
        return np.asarray(constant.value.numpy())


class Lowering:
    """State of one walk: the builder, the values made so far, the kernels by what they compute."""

    def __init__(self, lanes: int, module: tvm.IRModule, norms_by_lanes: bool) -> None:
        self.lanes = lanes
        self.norms_by_lanes = norms_by_lanes
        self._module = module
        self.blocked = blocked(lanes)
        self.builder = relax.BlockBuilder()
        self._kernels: dict[str, tuple[Any, Any, list[int]]] = {}
        self._values: dict[Any, Value | tuple[Value, ...]] = {}
        self._packed: dict[tuple[Any, str], Value] = {}

    # -- values ------------------------------------------------------------------------------------------------

    def bind(self, var: Any, value: Value | tuple[Value, ...]) -> None:
        """Remember what a variable of the source module holds."""
        self._values[var] = value

    def value(self, expr: Any) -> Value:
        """The value of a tensor-typed operand of the source module."""
        if _is_constant(expr):
            array = _array_of(expr)
            return Value(tuple(array.shape), str(array.dtype), PLAIN, {PLAIN: expr}, array)
        if isinstance(expr, relax.TupleGetItem):
            fields = self._values[expr.tuple_value]
            assert isinstance(fields, tuple)
            picked = fields[expr.index]
            assert isinstance(picked, Value)
            return picked
        found = self._values[expr]
        assert isinstance(found, Value)
        return found

    def fields(self, expr: Any) -> tuple[Value, ...]:
        """The values of a tuple-typed operand."""
        if isinstance(expr, relax.Tuple):
            return tuple(self.value(f) for f in expr.fields)
        found = self._values[expr]
        return found if isinstance(found, tuple) else (found,)

    def packed(self, source: Any, how: str, pack: Callable[[], NDArray[Any]]) -> Value:
        """The constant `source` rearranged: `pack` is called once for each `how`, however many operators share it."""
        key = (source, how)
        if key not in self._packed:
            self._packed[key] = self.constant(pack())
        return self._packed[key]

    def constant(self, array: NDArray[Any]) -> Value:
        """A new constant in the plain layout."""
        expr = constant_of(array)
        return Value(tuple(array.shape), str(array.dtype), PLAIN, {PLAIN: expr}, _array_of(expr))

    def plain(self, value: Value) -> Any:
        """The value as the model has it; a layout change is emitted where it exists only in blocks."""
        if PLAIN not in value.forms and value.wide is not None:
            value.forms[PLAIN] = self._narrow(value, value.wide)
        if PLAIN not in value.forms:
            source = value.forms[self.blocked]
            channels = value.shape[1]
            made = self.emit_te(
                "layout_change",
                lambda t: operators.unblock_channels(t, channels=channels),
                [(value, self.blocked)],
                [source],
                shape=value.shape,
                dtype=value.dtype,
                layout=PLAIN,
                attrs={"from": self.blocked, "to": PLAIN},
                hint="to_plain",
                logical="identity",
            )
            value.forms[PLAIN] = made.forms[PLAIN]
        return value.forms[PLAIN]

    def _narrow(self, value: Value, wide: Value) -> Any:
        source = self.plain(wide)
        call = self.builder.normalize(relax.op.reshape(source, value.shape))
        made = self.emit_call(
            call, [(wide, PLAIN)], [source, call.args[1]], [source], shape=value.shape, dtype=value.dtype, layout=PLAIN,
            hint="narrow", literals=[str(call.args[1])],
        )  # fmt: skip
        assert made is not None
        return made.forms[PLAIN]

    def in_blocks(self, value: Value) -> Any:
        """The rank-4 value with its channels in blocks; constants are rearranged at compile time."""
        if self.blocked not in value.forms:
            if value.array is not None:
                value.forms[self.blocked] = constant_of(block_array(value.array, self.lanes))
            else:
                made = self.emit_te(
                    "layout_change",
                    lambda t: operators.block_channels(t, lanes=self.lanes),
                    [(value, PLAIN)],
                    [value.forms[PLAIN]],
                    shape=value.shape,
                    dtype=value.dtype,
                    layout=self.blocked,
                    attrs={"from": PLAIN, "to": self.blocked},
                    hint="to_blocks",
                    logical="identity",
                )
                value.forms[self.blocked] = made.forms[self.blocked]
        return value.forms[self.blocked]

    def adopt(self, kernel: Any) -> Any:
        """A tensor program that the source module calls already, taken over as it is."""
        return self.builder.add_func(self._module[kernel], kernel.name_hint)

    # -- kernels -----------------------------------------------------------------------------------------------

    def emit_te(
        self,
        kind: str,
        compute: Callable[..., Any],
        operands: Sequence[tuple[Value, str]],
        args: Sequence[Any],
        *,
        shape: tuple[int, ...],
        dtype: str,
        layout: str,
        attrs: Mapping[str, object],
        hint: str,
        logical: str | None = None,
    ) -> Value:
        """Emit one kernel made from a tensor expression over `args` (the operands in the layouts named)."""

        def make() -> tuple[Any, list[int]]:
            return relax.utils.gen_call_tir_inputs(compute, *args)[0], list(range(len(args)))

        made = self._emit(kind, make, operands, args, shape, dtype, layout, attrs, hint, logical)
        assert made is not None
        return made

    def emit_call(
        self,
        call: Any,
        operands: Sequence[tuple[Value, str]],
        args: Sequence[Any],
        tensors: Sequence[Any],
        *,
        shape: tuple[int, ...],
        dtype: str,
        layout: str,
        hint: str,
        literals: Sequence[str] = (),
        attrs: Mapping[str, object] | None = None,
    ) -> Value | None:
        """Emit one kernel by TVM's own legalisation of `call` with its arguments replaced by `args`.

        `tensors` are the tensor arguments, flattened, one for each of `operands`. None if the operator has no
        legalisation into a single kernel over them.
        """
        legalize = call.op.get_attr("FLegalize")
        if legalize is None:
            return None
        kind = call.op.name.removeprefix("relax.")
        scratch = relax.BlockBuilder()

        def make() -> tuple[Any, list[int]] | None:
            physical = scratch.normalize(relax.Call(call.op, list(args), call.attrs, call.ty_args))
            result = legalize(scratch, physical)
            if not (isinstance(result, relax.Call) and getattr(result.op, "name", "") == "relax.call_tir"):
                return None
            taken = _positions(list(result.args[1].fields), tensors)
            return None if taken is None else (scratch.get()[result.args[0]], taken)

        text = "; ".join([str(call.attrs) if call.attrs is not None else "", *literals])
        logical = json.dumps([kind, text, [_operand(v) for v, _ in operands]])
        return self._emit(kind, make, operands, tensors, shape, dtype, layout, dict(attrs or {}), hint, logical)

    def _emit(
        self,
        kind: str,
        make: Callable[[], tuple[Any, list[int]] | None],
        operands: Sequence[tuple[Value, str]],
        tensors: Sequence[Any],
        shape: tuple[int, ...],
        dtype: str,
        layout: str,
        attrs: Mapping[str, object],
        hint: str,
        logical: str | None,
    ) -> Value | None:
        """`make` gives the kernel and the positions of the tensors that it takes (scalars may be folded into it)."""
        what = logical if logical is not None else kind
        described = {k: v for k, v in attrs.items() if k not in ("variant", "in_block", "from", "to")}
        stored = [[e, list(shape_of(t)), dtype_of(t)] for (_, e), t in zip(operands, tensors, strict=True)]
        result = [dtype, list(shape), layout]
        key = json.dumps([kind, what, attrs, [_operand(v) for v, _ in operands], stored, result], sort_keys=True)
        known = self._kernels.get(key)
        if known is None:
            made = make()
            if made is None:
                return None
            func, taken = made
            used = [operands[i] for i in taken]
            form = {
                "op": what,
                # A text of the call itself says all; the attributes beside it depend on the layout that was chosen.
                "attrs": described if logical is None else {},
                "in": [_operand(v) for v, _ in used],
                "out": [dtype, list(shape)],
            }
            extra = {
                **attrs,
                "in_layouts": [e for _, e in used],
                "out_layout": layout,
                "in_logical": [list(v.shape) for v, _ in used],
                "out_logical": list(shape),
            }
            func = func.with_attr("autofuse.kind", kind)
            func = func.with_attr("autofuse.form", json.dumps(form, sort_keys=True))
            func = func.with_attr("autofuse.attrs", json.dumps(extra, sort_keys=True))
            ty = relax.TensorType([int(extent) for extent in func.params[-1].shape], dtype)
            known = (self.builder.add_func(func, kind.replace(".", "_")), ty, taken)
            self._kernels[key] = known
        kernel, ty, taken = known
        var = self.builder.emit(relax.call_tir(kernel, [tensors[i] for i in taken], ty), name_hint=hint)
        return Value(shape, dtype, layout, {layout: var})


def _positions(args: Sequence[Any], tensors: Sequence[Any]) -> list[int] | None:
    """Where each of `args` stands among `tensors`, each place once; None if one is not among them."""
    free = list(range(len(tensors)))
    positions: list[int] = []
    for arg in args:
        found = next((i for i in free if arg.same_as(tensors[i])), None)
        if found is None:
            return None
        free.remove(found)
        positions.append(found)
    return positions


def _operand(value: Value) -> list[object]:
    if value.scalar:
        assert value.array is not None
        return [value.dtype, list(value.shape), value.array.reshape(()).item()]
    return [value.dtype, list(value.shape)]


def lower(prepared: Any, lanes: int, *, norms_by_lanes: bool = True) -> LoweredModel:
    """Lower a `PreparedModel` for vectors of `lanes` float32.

    norms_by_lanes: whether group normalisations of images in blocks are one operator also where groups do not fill
    blocks; else these are taken apart. There are schedules for a CPU alone.

    An operator that TVM cannot legalise stays a plain Relax call, outside every group.
    """
    from autofuse.lower.channel_routes import route_channels
    from autofuse.lower.rules import lower_call

    module = route_channels(prepared.module, lanes)
    function = module["main"]
    state = Lowering(lanes, module, norms_by_lanes)
    builder = state.builder
    with builder.function("main", params=list(function.params)):
        with builder.dataflow():
            for param in function.params:
                state.bind(param, Value(shape_of(param), dtype_of(param), PLAIN, {PLAIN: param}))
            for block in function.body.blocks:
                for binding in block.bindings:
                    _lower_binding(state, binding, lower_call)
            body = function.body.body
            single = _is_tensor(body)
            values = [state.value(body)] if single else list(state.fields(body))
            results = [state.plain(v) for v in values]
            output = builder.emit_output(results[0] if single else builder.normalize(relax.Tuple(results)))
        builder.emit_func_output(output)
    module = builder.get()
    return LoweredModel(prepared.name, module, prepared.input_names, prepared.output_names, lanes)


def _lower_binding(state: Lowering, binding: Any, lower_call: Callable[..., Any]) -> None:
    value = binding.value
    if isinstance(value, relax.Tuple):
        state.bind(binding.var, state.fields(value))
    elif isinstance(value, relax.Call):
        state.bind(binding.var, lower_call(state, value, str(binding.var.name)))
    elif _is_tensor(value):
        state.bind(binding.var, state.value(value))
    else:
        state.bind(binding.var, state.fields(value))


def as_numpy(value: Value) -> NDArray[Any]:
    """The array of a constant value."""
    assert value.array is not None
    return np.asarray(value.array)
