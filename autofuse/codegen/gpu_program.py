"""Kernels in order → what a GPU runs: launches on buffers, with a place in the device's memory for every tensor.

Buffers of intermediates are used again when nothing reads them any more; a view is the buffer of what it views. Plain
data, so that a compiled model can be read and run without TVM.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autofuse.errors import TargetError
from autofuse.graph.model import Graph

if TYPE_CHECKING:
    from autofuse.codegen.kernels import Kernel
    from autofuse.codegen.program import Program

Key = tuple[int, str]


@dataclass(frozen=True)
class Step:
    """One call of a kernel: `kernel` is its name, `arguments` the buffers of its parameters."""

    kernel: str
    arguments: tuple[int, ...]


@dataclass(frozen=True)
class Result:
    """A tensor of the model's own: its buffer, shape and dtype."""

    buffer: int
    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class GpuProgram:
    """`sizes`: bytes of each buffer. `inputs` and `outputs` in the model's order, `weights` the buffers of its weights.

    `launches`: kernel → how the launches that it consists of are made (`device.session.LaunchSpec`), arguments counted
    among its parameters. `resources`: kernel → what each of its launches takes of the card (none where nothing says).
    """

    sizes: tuple[int, ...]
    inputs: tuple[int, ...]
    outputs: tuple[Result, ...]
    weights: tuple[int, ...]
    steps: tuple[Step, ...]
    launches: Mapping[str, Sequence[Mapping[str, Any]]]
    resources: Mapping[str, Sequence[Mapping[str, Any]]]

    def to_json(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "sizes": list(self.sizes),
            "inputs": list(self.inputs),
            "outputs": [{"buffer": o.buffer, "shape": list(o.shape), "dtype": o.dtype} for o in self.outputs],
            "weights": list(self.weights),
            "steps": [[s.kernel, *s.arguments] for s in self.steps],
            "launches": {name: [dict(launch) for launch in made] for name, made in self.launches.items()},
            "resources": {name: [dict(kernel) for kernel in made] for name, made in self.resources.items()},
        }

    @classmethod
    def from_json(cls, content: Any) -> GpuProgram:
        """The inverse of `to_json`. ValueError where it is damaged."""
        try:
            made = cls(
                tuple(int(size) for size in content["sizes"]),
                tuple(int(b) for b in content["inputs"]),
                tuple(
                    Result(int(o["buffer"]), tuple(int(e) for e in o["shape"]), str(o["dtype"]))
                    for o in content["outputs"]
                ),
                tuple(int(b) for b in content["weights"]),
                tuple(Step(str(name), tuple(int(b) for b in rest)) for name, *rest in content["steps"]),
                {str(name): tuple(launches) for name, launches in content["launches"].items()},
                {str(name): tuple(kernels) for name, kernels in content["resources"].items()},
            )
            used = {b for s in made.steps for b in s.arguments} | {*made.inputs, *made.weights}
            used |= {o.buffer for o in made.outputs}
            if any(not 0 <= b < len(made.sizes) for b in used) or any(
                s.kernel not in made.launches for s in made.steps
            ):
                raise ValueError("it names buffers or kernels that it has not")
        except (KeyError, TypeError, AttributeError) as error:
            raise ValueError(f"{type(error).__name__}: {error}") from None
        return made


def arrange(graph: Graph, kernels: Sequence[Kernel], opaque: Sequence[int], constants: Mapping[int, Any]) -> Program:
    """The kernels in the order in which they run, and their weights. TargetError where an operator is no kernel."""
    import tvm

    from autofuse.codegen.program import Program, order_kernels, weight, weights_of

    if opaque:
        names = ", ".join(f"{graph.operators[i].name} ({graph.operators[i].kind})" for i in opaque[:3])
        raise TargetError(f"operators that are no tensor programs do not run on a GPU: {names}; compile for llvm")
    ordered = order_kernels(kernels, opaque, graph)
    functions = {unit.name: unit.func for unit in ordered if not isinstance(unit, int) and unit.func is not None}
    weights = [weight(constants[t], form) for t, form in weights_of(graph, ordered)]
    return Program(tvm.IRModule(functions), tuple(weights), tuple(ordered))


def gpu_program(
    graph: Graph,
    program: Program,
    launches: Mapping[str, Sequence[Mapping[str, Any]]],
    resources: Mapping[str, Sequence[Mapping[str, Any]]],
) -> GpuProgram:
    """What the units of a program come to on a GPU. launches, resources: of each kernel by name, see `GpuProgram`."""
    from autofuse.codegen.program import reads, weights_of

    units = [unit for unit in program.units if not isinstance(unit, int)]
    views = {unit.assignment.group.outputs[0]: unit.assignment.group.inputs[0] for unit in units if unit.func is None}

    def key(tensor: int, form: str = "") -> Key:
        while tensor in views:
            tensor = views[tensor]
        return tensor, form

    constants = weights_of(graph, program.units)
    memory = _Memory()
    inputs = [memory.keep((t, ""), graph.tensors[t].bytes) for t in graph.inputs]
    weights = [
        memory.keep(item, int(array.numpy().nbytes)) for item, array in zip(constants, program.weights, strict=True)
    ]
    called = [unit for unit in units if unit.func is not None]
    last: dict[Key, int] = {}
    for number, unit in enumerate(called):
        for t, form in reads(graph, unit):
            last[key(t, form)] = number
        for t in unit.assignment.group.outputs:
            last.setdefault(key(t), number)
    for t in graph.outputs:
        last[key(t)] = len(called)
    steps = []
    for number, unit in enumerate(called):
        given = [memory.place[key(t, form)] for t, form in reads(graph, unit)]
        made = [memory.take(key(t), graph.tensors[t].bytes) for t in unit.assignment.group.outputs]
        steps.append(Step(unit.name, (*given, *made)))
        for item in {key(t, form) for t, form in reads(graph, unit)} | {key(t) for t in unit.assignment.group.outputs}:
            if last[item] == number:
                memory.leave(item)
    outputs = [
        Result(memory.place[key(t)], tuple(graph.tensors[t].shape), graph.tensors[t].dtype) for t in graph.outputs
    ]
    names = {step.kernel for step in steps}
    return GpuProgram(
        tuple(memory.sizes), tuple(inputs), tuple(outputs), tuple(weights), tuple(steps),
        {name: tuple(launches[name]) for name in sorted(names)},
        {name: tuple(resources.get(name, ())) for name in sorted(names)},
    )  # fmt: skip


class _Memory:
    """Buffers by number: `sizes` in bytes, `place` of what is in memory now."""

    def __init__(self) -> None:
        self.sizes: list[int] = []
        self.place: dict[Key, int] = {}
        self._free: list[int] = []
        self._own: set[Key] = set()

    def keep(self, item: Key, size: int) -> int:
        """A buffer that is this tensor's for good."""
        self._own.add(item)
        self.sizes.append(size)
        self.place[item] = len(self.sizes) - 1
        return self.place[item]

    def take(self, item: Key, size: int) -> int:
        """A buffer for a tensor until it leaves: the free one that fits best, else the largest, made larger."""
        if item in self.place:  # made again by another kernel, which recomputes it
            return self.place[item]
        fitting = [b for b in self._free if self.sizes[b] >= size]
        if fitting:
            chosen = min(fitting, key=lambda b: self.sizes[b])
        elif self._free:
            chosen = max(self._free, key=lambda b: self.sizes[b])
            self.sizes[chosen] = size
        else:
            self.sizes.append(size)
            self.place[item] = len(self.sizes) - 1
            return self.place[item]
        self._free.remove(chosen)
        self.place[item] = chosen
        return chosen

    def leave(self, item: Key) -> None:
        """Nothing reads the tensor any more."""
        if item not in self._own:
            self._free.append(self.place.pop(item))


def counted(program: GpuProgram) -> dict[str, int]:
    """Sizes for people: bytes of weights, of intermediates and results, and launches of a call."""
    fixed = {*program.inputs, *program.weights}
    return {
        "weight_bytes": sum(program.sizes[b] for b in program.weights),
        "buffer_bytes": sum(size for b, size in enumerate(program.sizes) if b not in fixed),
        "launches": sum(len(program.launches[step.kernel]) for step in program.steps),
    }
