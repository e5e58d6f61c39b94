"""The walk that every frontend pass is written with: a Relax module and a rule → a rewritten Relax module.

`rewrite` goes through the bindings of `main` in order and gives each call, with its arguments already rewritten, to
the rule; the rule answers with a replacement or with None to keep the call. What comes out is one dataflow block,
whatever blocks went in. Aliases, tuples and fields of known tuples disappear on the way.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import tvm
import tvm_ffi
from tvm import relax

from autofuse.errors import ModelError

Expr = Any
Rule = Callable[["Scope", Any], Any]

_MANY = 1 << 20


def op_name(expr: Expr) -> str:
    """`relax.add` and the like for a call of an operator; the empty string for anything else."""
    if isinstance(expr, relax.Call) and isinstance(expr.op, tvm.ir.Op):
        return str(expr.op.name)
    return ""


def static_shape(expr: Expr) -> tuple[int, ...] | None:
    """The shape of a tensor expression when it is known and has no symbol in it."""
    ty = getattr(expr, "ty", None)
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    values = list(ty.shape.values)
    if not all(isinstance(value, tvm.tirx.IntImm) for value in values):
        return None
    return tuple(int(value) for value in values)


def dtype_of(expr: Expr) -> str:
    """The numpy-style dtype name of a tensor expression, the empty string when unknown."""
    dtype = getattr(getattr(expr, "ty", None), "dtype", None)
    if dtype is None:
        return ""
    return str(getattr(dtype, "dtype", dtype))


def bindings(function: Any) -> Iterator[Any]:
    """Every binding of a function's body, in order."""
    for block in function.body.blocks:
        yield from block.bindings


class Scope:
    """What a rule may ask about the code written so far, and how it writes more."""

    def __init__(self, builder: Any, use_counts: Counter[Any]) -> None:
        self._builder = builder
        self._uses = use_counts
        self._values: dict[Any, Expr] = {}
        self._fields: dict[tuple[Any, int], Any] = {}

    def emit(self, expr: Expr, uses: int = 1) -> Expr:
        """Binds `expr` to a new variable which the rule is about to use `uses` times."""
        if not isinstance(expr, relax.Call):
            return expr
        var = self._builder.emit(expr)
        self._record(var, expr, uses)
        return var

    def value(self, expr: Expr) -> Expr:
        """What a variable is bound to; `expr` itself when it is no bound variable."""
        return self._values.get(expr, expr) if isinstance(expr, relax.Var) else expr

    def used_once(self, expr: Expr) -> bool:
        """Whether nothing but the call being looked at reads this variable."""
        return self._uses[expr] <= 1

    def _record(self, var: Any, value: Expr, uses: int) -> None:
        self._values[var] = value
        self._uses[var] = uses


def abandon(builder: Any) -> None:
    """Closes the block that a function left open by an error; a builder that goes with one open says so on stderr."""
    with contextlib.suppress(Exception):
        builder._end_block()


def rewrite(module: tvm.IRModule, rule: Rule) -> tvm.IRModule:
    """Applies `rule` to each call of `main`.

    The rule gets `(scope, call)` and returns None (keep), an existing variable or constant (the call's value), a
    new call (emitted in its place) or a tuple of such. Other functions of the module are carried over as they are.

    Raises:
        ModelError: the body has control flow, which a dataflow block cannot hold.
    """
    function = module["main"]
    uses = _count_uses(function)
    builder = relax.BlockBuilder()
    scope = Scope(builder, uses)
    known: dict[Any, Expr] = {}

    def mapped(expr: Expr) -> Expr:
        if isinstance(expr, relax.Var):
            return known.get(expr, expr)
        if isinstance(expr, relax.Tuple):
            fields = [mapped(item) for item in expr.fields]
            same = all(new.same_as(old) for new, old in zip(fields, expr.fields, strict=True))
            return expr if same else relax.Tuple(fields)
        if isinstance(expr, relax.TupleGetItem):
            return _field(scope, mapped(expr.tuple_value), expr.index, expr)
        return expr

    try:
        with builder.function("main", params=list(function.params)):
            with builder.dataflow():
                for binding in bindings(function):
                    known[binding.var] = _rewrite_binding(scope, binding, mapped, rule)
                result = mapped(function.body.body)
                output = builder.emit_output(_normal(builder, result))
            builder.emit_func_output(output)
    except Exception:
        abandon(builder)
        raise
    return with_main(module, builder)


def with_main(module: tvm.IRModule, builder: Any) -> tvm.IRModule:
    """The module with the `main` that a block builder holds in place of its own, whose attributes it gets."""
    rewritten, attrs = builder.get(), module["main"].attrs
    main = rewritten["main"] if attrs is None else rewritten["main"].with_attrs(dict(attrs))
    functions = {var: func for var, func in module.functions.items() if var.name_hint != "main"}
    functions[rewritten.get_global_var("main")] = main
    return tvm.IRModule(functions, attrs=module.attrs)


def _normal(builder: Any, expr: Expr) -> Expr:
    return builder.normalize(expr) if isinstance(expr, relax.Tuple) else expr


def _rewrite_binding(scope: Scope, binding: Any, mapped: Callable[[Expr], Expr], rule: Rule) -> Expr:
    value = binding.value
    uses = scope._uses[binding.var]
    if isinstance(value, relax.If):
        raise ModelError(
            "the model has control flow (If) that depends on run-time values; only straight-line graphs compile"
        )
    if not isinstance(value, relax.Call):
        # Aliases, tuples, constants, shapes: nothing to compute, so nothing to bind. (A match_cast checks what
        # static shapes already say.)
        return mapped(value)
    args = [mapped(arg) for arg in value.args]
    call = value
    if not all(new.same_as(old) for new, old in zip(args, value.args, strict=True)):
        call = scope._builder.normalize(relax.Call(value.op, args, value.attrs, value.ty_args))
    replaced = rule(scope, call)
    if replaced is None:
        replaced = call
    if isinstance(replaced, relax.Call):
        var = _bind(scope._builder, binding, replaced)
        scope._record(var, replaced, uses)
        return var
    if isinstance(replaced, relax.Var):
        # The surviving variable takes over the readers of the one that went; the read by the call itself is gone.
        scope._uses[replaced] += uses - 1
    return replaced


def _bind(builder: Any, binding: Any, call: Any) -> Any:
    """Keeps the variable where it can: then what reads it is unchanged, and its type need not be inferred again."""
    var = binding.var
    if not isinstance(var, relax.DataflowVar):
        return builder.emit(call, name_hint=var.name)
    if call.same_as(binding.value):
        builder.emit_normalized(binding)
        return var
    call = builder.normalize(call)
    if isinstance(call, relax.Call) and tvm_ffi.structural_equal(call.ty, var.ty):
        builder.emit_normalized(relax.VarBinding(var, call))
        return var
    return builder.emit(call, name_hint=var.name)


def _field(scope: Scope, tuple_value: Expr, index: int, original: Expr) -> Expr:
    inner = scope.value(tuple_value)
    if isinstance(inner, relax.Tuple):
        return inner.fields[index]
    key = (tuple_value, index)
    if key not in scope._fields:
        item = original if original.tuple_value.same_as(tuple_value) else relax.TupleGetItem(tuple_value, index)
        var = scope._builder.emit(item)
        scope._record(var, item, _MANY)
        scope._fields[key] = var
    return scope._fields[key]


def _count_uses(function: Any) -> Counter[Any]:
    counts: Counter[Any] = Counter()

    def visit(expr: Expr, times: int) -> None:
        if isinstance(expr, relax.Var):
            counts[expr] += times
        elif isinstance(expr, relax.Tuple):
            for item in expr.fields:
                visit(item, times)
        elif isinstance(expr, relax.TupleGetItem):
            visit(expr.tuple_value, times)
        elif isinstance(expr, relax.Call):
            for arg in expr.args:
                visit(arg, times)

    for binding in bindings(function):
        # An alias or a tuple is inlined wherever it is read, which may be in many places.
        visit(binding.value, 1 if isinstance(binding.value, relax.Call) else _MANY)
    visit(function.body.body, _MANY)
    return counts
