"""A group of operators → one unscheduled PrimFunc, by way of a private Relax function and TVM's FuseTIR."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tvm
from tvm import relax

from autofuse.graph.model import Group, Tensor


def kernel_type(tensor: Tensor) -> Any:
    """Relax type of a tensor of the graph."""
    return relax.TensorType(list(tensor.shape), tensor.dtype)


class GroupFuser:
    """Fuses groups of one lowered module. Equal groups (same kernels, same wiring) give the same function.

    `calls` maps an operator's index to its `call_tir`; operators that are none are kept out of groups by legality.
    """

    def __init__(self, module: tvm.IRModule, calls: Mapping[int, Any]) -> None:
        self._module = module
        self._calls = calls
        self._fused: dict[str, Any] = {}

    def structure(self, group: Group) -> str:
        """Text that is equal for two groups exactly if they run the same code, whatever constants they are given."""
        place = {t: f"i{n}" for n, t in enumerate(group.inputs)}
        lines = []
        for op in group.operators:
            args = ",".join(place[t] for t in op.inputs)
            lines.append(f"{self._calls[op.index].args[0].name_hint}({args})")
            for t in op.outputs:
                place[t] = f"v{len(place)}"
        shapes = ",".join(str(group.graph.tensors[t].shape) for t in group.inputs)
        return ";".join([*lines, shapes, ",".join(place[t] for t in group.outputs)])

    def fuse(self, group: Group) -> Any:
        """The group as one PrimFunc: parameters are `group.inputs`, then `group.outputs`."""
        key = self.structure(group)
        if key not in self._fused:
            self._fused[key] = self._fuse(group)
        return self._fused[key]

    def _fuse(self, group: Group) -> Any:
        tensors = group.graph.tensors
        builder = relax.BlockBuilder()
        inner = {t: relax.Var(f"p{n}", kernel_type(tensors[t])) for n, t in enumerate(group.inputs)}
        outer = [relax.Var(f"a{n}", kernel_type(tensors[t])) for n, t in enumerate(group.inputs)]
        with builder.function("fused", list(inner.values()), attrs={"Primitive": 1}, private=True):
            with builder.dataflow():
                values: dict[int, Any] = dict(inner)
                for op in group.operators:
                    call = self._calls[op.index]
                    source = call.args[0]
                    kernel = builder.add_func(self._module[source], source.name_hint)
                    args = [values[t] for t in op.inputs]
                    values[op.outputs[0]] = builder.emit(
                        relax.call_tir(kernel, args, kernel_type(tensors[op.outputs[0]]))
                    )
                results = [values[t] for t in group.outputs]
                whole = results[0] if len(results) == 1 else builder.normalize(relax.Tuple(results))
                output = builder.emit_output(whole)
            fused = builder.emit_func_output(output)
        with builder.function("main", outer):
            with builder.dataflow():
                output = builder.emit_output(relax.Call(fused, outer))
            builder.emit_func_output(output)
        module = relax.transform.FuseTIR()(builder.get())
        return module["fused"]
