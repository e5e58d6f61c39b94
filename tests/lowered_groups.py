"""Groups of real lowered operators for tests of schedule families: a Relax expression, its group and numpy's answer.

`LoweredGroup` prepares and lowers a small program, takes all its operators as one group, and runs any configuration of
a family against the expected arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tvm
from built_kernels import build_kernels
from tvm import relax

from autofuse.codegen.fuse import GroupFuser
from autofuse.codegen.intrinsics import register_intrinsics
from autofuse.frontend import prepare
from autofuse.graph.build import build_graph
from autofuse.graph.model import Group
from autofuse.graph.reasons import Refusal
from autofuse.lower import lower
from autofuse.schedule.family import Configuration, ScheduleFamily
from autofuse.schedule.registry import families
from autofuse.target import Hardware

HARDWARE = Hardware()


class LoweredGroup:
    """`build(emit, *inputs)` gives the program's result or a list of results; `emit` binds an intermediate.

    `whole`: input → dtype, lowest and highest number of one that holds whole numbers.
    """

    def __init__(
        self, build: Callable[..., Any], shapes: Sequence[Sequence[int]], seed: int = 0, lanes: int = HARDWARE.lanes,
        whole: Mapping[int, tuple[str, int, int]] | None = None,
    ) -> None:  # fmt: skip
        register_intrinsics()
        builder = relax.BlockBuilder()
        kinds = {i: dtype for i, (dtype, _, _) in (whole or {}).items()}
        params = [relax.Var(f"x{i}", relax.TensorType(list(s), kinds.get(i, "float32"))) for i, s in enumerate(shapes)]
        with builder.function("main", params):
            with builder.dataflow():
                result = build(builder.emit, *params)
                if isinstance(result, list):
                    result = relax.Tuple([builder.emit(r) if isinstance(r, relax.Call) else r for r in result])
                output = builder.emit_output(result)
            builder.emit_func_output(output)
        lowered = lower(prepare(builder.get()), lanes)
        built = build_graph(lowered.module, "case")
        bound = {b.var: b.value for b in lowered.module["main"].body.blocks[0].bindings}
        self.graph, self.values = built.graph, built.values
        self.fuser = GroupFuser(lowered.module, {i: bound[v] for i, v in enumerate(built.variables)})
        self.group = Group.of(self.graph, range(len(self.graph.operators)))
        self._built: dict[tuple[str, str], Callable[..., Any]] = {}
        random = np.random.default_rng(seed)
        self.arrays = [(random.random(tuple(s)) * 2 - 1).astype("float32") for s in shapes]
        for i, (dtype, low, high) in (whole or {}).items():
            self.arrays[i] = random.integers(low, high, tuple(shapes[i]), endpoint=True).astype(dtype)

    def refusal(self, family: ScheduleFamily) -> Refusal | None:
        """Why the family refuses the group, None if it does not."""
        return family.match(self.group, HARDWARE)

    def family(self) -> str:
        """The name of the first family that takes the whole group, "" if none does."""
        return next((f.name for f in families() if f.match(self.group, HARDWARE) is None), "")

    def run(self, kernel: Callable[..., Any]) -> list[np.ndarray]:
        """What a kernel computes, in the order of the program's results."""
        device = tvm.cpu()
        given = []
        for t in self.group.inputs:
            if t in self.graph.inputs:
                array = self.arrays[list(self.graph.inputs).index(t)]
            else:
                array = self.values[t].value.numpy()
            given.append(tvm.runtime.tensor(array, device))
        tensors = [self.graph.tensors[t] for t in self.group.outputs]
        empty = {t.index: tvm.runtime.tensor(np.full(t.shape, np.nan, t.dtype), device) for t in tensors}
        kernel(*given, *empty.values())
        return [empty[t].numpy() for t in self.graph.outputs]

    def agrees(
        self, family: ScheduleFamily, members: Sequence[int], tolerance: float = 1e-6,
        outputs: Sequence[int] | None = None,
    ) -> None:  # fmt: skip
        """Assert that a part of the group gives what TVM's own loops give, on random operands, in any configuration.

        It writes `outputs`, by default all results of its members.
        """
        if outputs is None:
            outputs = [t for m in members for t in self.graph.operators[m].outputs]
        group = Group.of(self.graph, members, outputs)
        assert family.match(group, HARDWARE) is None
        device, random = tvm.cpu(), np.random.default_rng(1)
        shapes = [self.graph.tensors[t].shape for t in group.inputs]
        given = [tvm.runtime.tensor(random.random(s).astype("float32"), device) for s in shapes]
        plain = self.fuser.fuse(group)
        answers = []
        scheduled = [family.apply(plain, group, c, HARDWARE) for c in family.configs(group, HARDWARE)]
        for kernel in build_kernels([plain, *scheduled]):
            outs = [self.graph.tensors[t].shape for t in group.outputs]
            empty = [tvm.runtime.tensor(np.full(s, np.nan, "float32"), device) for s in outs]
            kernel(*given, *empty)
            answers.append([e.numpy() for e in empty])
        assert np.isfinite(answers[0][0]).all()
        for answer in answers[1:]:
            for have, want in zip(answer, answers[0], strict=True):
                np.testing.assert_allclose(have, want, rtol=tolerance, atol=tolerance)

    def unscheduled(self) -> list[np.ndarray]:
        """What the fused function computes as TVM made it."""
        return self.run(*build_kernels([self.fuser.fuse(self.group)]))

    def kernels(self, family: ScheduleFamily, configs: Sequence[Configuration]) -> list[Callable[..., Any]]:
        """The group in configurations of a family, each built once."""
        keys = [(family.name, config.text) for config in configs]
        left = {k: c for k, c in zip(keys, configs, strict=True) if k not in self._built}
        if left:
            plain = self.fuser.fuse(self.group)
            funcs = [family.apply(plain, self.group, config, HARDWARE) for config in left.values()]
            self._built.update(zip(left, build_kernels(funcs), strict=True))
        return [self._built[key] for key in keys]

    def check(
        self,
        family: ScheduleFamily,
        expected: Any,
        configs: Sequence[Configuration] | None = None,
        tolerance: float = 2e-5,
    ) -> list[Configuration]:
        """Assert that the family takes the group and that configurations (by default all) are right; those offered."""
        refusal = self.refusal(family)
        assert refusal is None, str(refusal)
        offered = list(family.configs(self.group, HARDWARE))
        assert offered and len(set(offered)) == len(offered) <= 12
        arrays = expected if isinstance(expected, list) else [expected]
        chosen = offered if configs is None else configs
        for config in chosen:
            assert type(config).parse(config.text) == config
            shape = family.shape(self.group, config, HARDWARE)
            assert shape.tasks >= 1 and shape.recompute >= 1 and 0 < shape.vector_fill <= 1 and shape.memory_bytes > 0
        for config, kernel in zip(chosen, self.kernels(family, chosen), strict=True):
            found = self.run(kernel)
            for have, want in zip(found, arrays, strict=True):
                assert np.isfinite(have).all(), f"{family.name} {config.text}: results are missing"
                error = float(np.abs(have - want).max()) / max(1e-6, float(np.abs(want).max()))
                assert error < tolerance, f"{family.name} {config.text}: error {error:.2e}"
        return offered


def softmax(x: np.ndarray, axis: int = -1) -> np.ndarray:
    """exp(x) over its sum along an axis."""
    e = np.exp(x - x.max(axis, keepdims=True))
    return e / e.sum(axis, keepdims=True)


def layer_norm(x: np.ndarray, gamma: np.ndarray, beta: np.ndarray, axes: tuple[int, ...] = (-1,)) -> np.ndarray:
    """(x - mean) / deviation · gamma + beta along the last axes."""
    mean, variance = x.mean(axes, keepdims=True), x.var(axes, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-5) * gamma + beta
