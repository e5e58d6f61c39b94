"""Kernels for instruction sets other than this machine's: made, looked at as assembly, run natively or in an emulator.

`CASES` are groups of real lowered operators for every schedule family, in sizes that tiles divide and in sizes that
nothing divides. `Kernels` schedules and compiles them for a target; `errors` runs kernels by a small C driver
(tests/isa_driver.c) that stands in for TVM's runtime, in qemu where the machine is another.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import tvm
import tvm_ffi.libinfo
from built_kernels import build_kernels
from lowered_groups import LoweredGroup
from tvm import relax
from tvm.relax import op as R

from autofuse.codegen.build import PASS_CONFIG
from autofuse.codegen.intrinsics import register_intrinsics
from autofuse.codegen.link import linker
from autofuse.codegen.stack import pipeline
from autofuse.graph.model import Group, Role
from autofuse.measure.oracle import NotEvaluated, evaluate
from autofuse.schedule.family import Configuration
from autofuse.schedule.preparations import prepare
from autofuse.schedule.registry import family
from autofuse.target import Hardware, Target, default_hardware, resolve
from autofuse.target.architecture import architecture_of

TARGETS = {
    "sse4": "llvm -mcpu=nehalem -mtriple=x86_64-linux-gnu",
    "avx2": "llvm -mcpu=haswell -mtriple=x86_64-linux-gnu",
    "avx512": "llvm -mcpu=skylake-avx512 -mtriple=x86_64-linux-gnu",
    "neon": "llvm -mcpu=cortex-a72 -mtriple=aarch64-linux-gnu",
}


def target(isa: str) -> Target:
    """The target of an instruction set, two threads."""
    return resolve(TARGETS[isa], 2)


def hardware(isa: str) -> Hardware:
    """Its description, nothing of this machine in it."""
    return default_hardware(target(isa))


@dataclass(frozen=True)
class IsaCase:
    """A program whose operators, but for layout changes at its borders, are a group for one family."""

    family: str
    label: str
    emit: Callable[..., Any]
    shapes: tuple[tuple[int, ...], ...]
    behind: str = ""


def constant(*shape: int, seed: int = 3) -> Any:
    """Random weights, small enough that sums stay near one."""
    scale = float(np.prod(shape[1:] if len(shape) == 4 else shape[:1])) ** -0.5
    return relax.const(((np.random.default_rng(seed).random(shape) * 2 - 1) * scale).astype("float32"))


def _conv(outputs: int, inputs: int, kernel: int, **how: Any) -> Callable[..., Any]:
    def emit(bb: Any, x: Any) -> Any:
        return R.nn.relu(bb(R.nn.conv2d(x, constant(outputs, inputs, kernel, kernel), **how)))

    return emit


def _transposed(bb: Any, x: Any) -> Any:
    return R.nn.relu(bb(R.nn.conv2d_transpose(x, constant(20, 12, 4, 4), strides=2, padding=1)))


def _group_norm(bb: Any, x: Any) -> Any:
    y = bb(R.nn.conv2d(x, constant(32, 16, 1, 1)))
    return R.nn.relu(bb(R.nn.group_norm(y, constant(32), constant(32, seed=4), 2, 1, [2, 3])))


def _resized(size: tuple[int, int], method: str) -> Callable[..., Any]:
    rounding = "floor" if method == "nearest_neighbor" else ""
    return lambda bb, x: R.image.resize2d(
        x, size, method=method, coordinate_transformation_mode="asymmetric", rounding_method=rounding
    )


def _conv_pool(bb: Any, x: Any) -> Any:
    y = bb(R.nn.relu(bb(R.nn.conv2d(x, constant(32, 16, 3, 3), padding=1))))
    return R.nn.max_pool2d(y, (2, 2), (2, 2))


def _depthwise(channels: int, stride: int) -> Callable[..., Any]:
    def emit(bb: Any, x: Any) -> Any:
        y = bb(R.nn.conv2d(x, constant(channels, 16, 1, 1)))
        y = bb(R.nn.conv2d(y, constant(channels, 1, 3, 3), groups=channels, padding=1, strides=stride))
        return R.clip(y, 0, 6)

    return emit


def _depthwise_pointwise(bb: Any, x: Any) -> Any:
    y = bb(R.clip(bb(R.nn.conv2d(x, constant(20, 1, 3, 3), groups=20, padding=1, strides=2)), 0, 6))
    return R.nn.relu(bb(R.nn.conv2d(y, constant(28, 20, 1, 1))))


def _pointwise_depthwise(bb: Any, x: Any) -> Any:
    y = bb(R.clip(bb(R.nn.conv2d(x, constant(28, 20, 1, 1))), 0, 6))
    return R.nn.relu(bb(R.nn.conv2d(y, constant(28, 1, 3, 3), groups=28, padding=1)))


def _inside(emit: Callable[..., Any]) -> Callable[..., Any]:
    """Behind a convolution that blocks the channels."""
    return lambda bb, x: emit(bb, bb(R.nn.conv2d(x, constant(20, 16, 3, 3), padding=1)))


def _pool(bb: Any, x: Any) -> Any:
    return R.nn.avg_pool2d(bb(R.nn.conv2d(x, constant(20, 16, 1, 1))), (3, 3), (2, 2), padding=1)


def _affine(depth: int, columns: int) -> Callable[..., Any]:
    def emit(bb: Any, x: Any) -> Any:
        return R.tanh(bb(R.add(bb(R.matmul(x, constant(depth, columns))), constant(columns))))

    return emit


def _attention(bb: Any, q: Any, k: Any, v: Any) -> Any:
    def heads(x: Any, axes: list[int]) -> Any:
        return bb(R.permute_dims(bb(R.reshape(x, (1, x.ty.shape[1], 3, 12))), axes))

    scores = bb(R.matmul(heads(q, [0, 2, 1, 3]), heads(k, [0, 2, 3, 1])))
    mixed = bb(R.matmul(bb(R.nn.softmax(scores)), heads(v, [0, 2, 1, 3])))
    return R.reshape(bb(R.permute_dims(mixed, [0, 2, 1, 3])), (1, 21, 36))


def _squeeze(bb: Any, x: Any) -> Any:
    y = bb(R.nn.conv2d(x, constant(32, 16, 1, 1)))
    small = bb(R.nn.relu(bb(R.nn.conv2d(bb(R.mean(y, [2, 3], keepdims=True)), constant(16, 32, 1, 1)))))
    return R.multiply(y, bb(R.sigmoid(bb(R.nn.conv2d(small, constant(32, 16, 1, 1))))))


def _chain(bb: Any, x: Any) -> Any:
    y = bb(R.add(bb(R.tanh(x)), bb(R.erf(x))))
    return R.log(bb(R.add(bb(R.exp(y)), bb(R.sigmoid(x)))))


IMAGE, ODD = (1, 16, 12, 12), (1, 16, 13, 11)
CASES = (
    IsaCase("conv2d", "3x3", _conv(32, 16, 3, padding=1, strides=2), (IMAGE,)),
    IsaCase("conv2d", "3x3 odd", _conv(20, 16, 3, padding=1), (ODD,)),
    IsaCase("conv2d", "1x1", _conv(48, 32, 1), ((1, 32, 7, 7),)),
    IsaCase("conv2d", "first layer", _conv(32, 3, 3, padding=1, strides=2), ((1, 3, 25, 23),)),
    IsaCase("conv2d", "groups", _conv(64, 32, 3, padding=1, groups=2), ((1, 64, 9, 9),)),
    IsaCase("conv2d", "5x5 odd", _conv(32, 16, 5, padding=2), (ODD,)),
    IsaCase("conv2d_pool", "3x3 max", _conv_pool, (IMAGE,)),
    IsaCase("winograd", "3x3", _conv(32, 16, 3, padding=1), (IMAGE,)),
    IsaCase("winograd", "3x3 odd", _conv(20, 16, 3, padding=1), (ODD,)),
    IsaCase("depthwise", "stride 1", _depthwise(32, 1), (IMAGE,), behind="nn.conv2d"),
    IsaCase("depthwise", "stride 2 odd", _depthwise(20, 2), (ODD,), behind="nn.conv2d"),
    IsaCase("depthwise_pointwise", "odd", _inside(_depthwise_pointwise), (ODD,), behind="nn.conv2d"),
    IsaCase("pointwise_depthwise", "odd", _inside(_pointwise_depthwise), (ODD,), behind="nn.conv2d"),
    IsaCase("grouped", "odd", _conv(20, 5, 3, padding=1, groups=4), ((1, 20, 9, 11),)),
    IsaCase("transposed", "odd", _transposed, ((1, 20, 7, 9),)),
    IsaCase("group_norm", "odd", _group_norm, ((2, 16, 7, 5),), behind="nn.conv2d"),
    IsaCase("resize", "nearest odd", _resized((22, 26), "nearest_neighbor"), ((1, 3, 11, 13),)),
    IsaCase("resize", "linear odd", _resized((21, 27), "linear"), ((1, 3, 11, 13),)),
    IsaCase("pool", "blocked odd", _pool, (ODD,), behind="nn.conv2d"),
    IsaCase("pool", "plain odd", lambda bb, x: R.nn.max_pool2d(x, (3, 3), (1, 1), padding=1), ((1, 3, 13, 21),)),
    IsaCase("matmul", "even", _affine(64, 96), ((16, 64),)),
    IsaCase("matmul", "odd", _affine(37, 45), ((13, 37),)),
    IsaCase("matmul", "one row", _affine(37, 45), ((1, 37),)),
    IsaCase("matmul", "batched odd", lambda bb, x, y: R.matmul(x, y), ((3, 13, 21), (3, 21, 19))),
    IsaCase("attention", "odd", _attention, ((1, 21, 36), (1, 19, 36), (1, 19, 36))),
    IsaCase("rows", "softmax odd", lambda bb, x: R.nn.softmax(x), ((6, 51),)),
    IsaCase("rows", "layer norm odd", lambda bb, x, g, b: R.nn.layer_norm(x, g, b, [-1]), ((5, 77), (77,), (77,))),
    IsaCase("rows", "columns odd", lambda bb, x: R.mean(x, [0]), ((33, 51),)),
    IsaCase("staged", "squeeze and excitation", _squeeze, ((1, 16, 7, 5),), behind="nn.conv2d"),
    IsaCase("elementwise", "functions", _chain, ((3, 7, 64),)),
    IsaCase("elementwise", "functions odd", _chain, ((3, 7, 41),)),
    IsaCase("elementwise", "transpose odd", lambda bb, x: R.permute_dims(x, [0, 2, 1]), ((2, 9, 21),)),
    IsaCase("elementwise", "concat odd", lambda bb, x, y: R.concat([x, y], 2), ((2, 3, 9), (2, 3, 11))),
    IsaCase("plain", "conv3d odd", lambda bb, x, w: R.nn.conv3d(x, w), ((1, 4, 5, 6, 7), (5, 4, 3, 3, 3))),
)


@lru_cache
def grouped(case: IsaCase, lanes: int) -> tuple[LoweredGroup, Group]:
    """The case lowered for vectors of `lanes`, and the group in question."""
    made = LoweredGroup(case.emit, case.shapes, lanes=lanes)
    kinds = [op.kind for op in made.graph.operators]
    first = kinds.index(case.behind) + 1 if case.behind else int(kinds[0] == "layout_change" and len(kinds) > 1)
    last = len(kinds) - (kinds[-1] == "layout_change")
    return made, Group.of(made.graph, range(first, last))


@dataclass(frozen=True)
class Built:
    """A scheduled kernel with operands and numpy's results."""

    name: str
    func: Any
    inputs: tuple[np.ndarray, ...]
    expected: tuple[np.ndarray, ...]


def configurations(case: IsaCase, isa: str) -> list[Configuration]:
    """What the case's family offers on an instruction set."""
    machine = hardware(isa)
    _, group = grouped(case, machine.lanes)
    which = family(case.family)
    refusal = which.match(group, machine)
    assert refusal is None, f"{case.family} does not take {case.label!r} on {isa}: {refusal}"
    return list(which.configs(group, machine))


def build(case: IsaCase, isa: str, config: Configuration, name: str) -> Built:
    """Schedule a case and compute what it must give."""
    machine = hardware(isa)
    made, group = grouped(case, machine.lanes)
    which = family(case.family)
    func = which.apply(made.fuser.fuse(group), group, config, machine).with_attr("global_symbol", name)
    random = np.random.default_rng(7)
    inputs = []
    for t in group.inputs:
        tensor = made.graph.tensors[t]
        if tensor.role is Role.CONSTANT:
            array = made.values[t].value.numpy()
        else:
            array = (random.random(tensor.shape) * 2 - 1).astype(tensor.dtype)
        inputs.append(np.ascontiguousarray(array))
    expected = tuple(np.asarray(e) for e in _answers(made, group, inputs))
    forms = which.prepared(group, config)
    given = tuple(np.ascontiguousarray(prepare(forms[i], a)) if i in forms else a for i, a in enumerate(inputs))
    return Built(name, func, given, expected)


def _answers(made: LoweredGroup, group: Group, inputs: Sequence[np.ndarray]) -> Sequence[np.ndarray]:
    """numpy's results; where it has no form of an operator, those of TVM's own loops on this machine."""
    try:
        return evaluate(group, inputs)
    except NotEvaluated:
        (plain,) = build_kernels([made.fuser.fuse(group)])
        outs = [made.graph.tensors[t] for t in group.outputs]
        empty = [tvm.runtime.empty(t.shape, t.dtype) for t in outs]
        plain(*map(tvm.runtime.tensor, inputs), *empty)
        return [e.numpy() for e in empty]


class Kernels:
    """The kernels of one instruction set, each compiled once. `folder` for object files."""

    def __init__(self, isa: str, folder: Path) -> None:
        self.isa, self.folder = isa, folder
        self._first: dict[IsaCase, Compiled] = {}
        self._count = 0

    def first(self, case: IsaCase) -> Compiled:
        """A case in its first configuration."""
        if case not in self._first:
            self._first[case] = self.compile(case, configurations(case, self.isa)[0])
        return self._first[case]

    def compile(self, case: IsaCase, config: Configuration) -> Compiled:
        """A case in any configuration, under a name that no other kernel has."""
        name = f"k{self._count}"
        self._count += 1
        kernel = build(case, self.isa, config, name)
        register_intrinsics()
        with tvm.transform.PassContext(opt_level=3, config=PASS_CONFIG):
            module = tvm.compile(
                tvm.IRModule({name: kernel.func}), target(self.isa).tvm_target(), tir_pipeline=pipeline()
            )
        return Compiled(kernel, f"{case.family} {case.label} [{config.text}]", module.mod, self.folder / f"{name}.o")


@dataclass(frozen=True)
class Compiled:
    """A kernel as LLVM made it. `label` says which it is, `path` where its object file is to be."""

    kernel: Built
    label: str
    module: Any
    path: Path

    @cached_property
    def assembly(self) -> str:
        """LLVM's text."""
        return str(self.module.inspect_source("asm"))

    @cached_property
    def object(self) -> str:
        """The path of its object file."""
        self.module.write_to_file(str(self.path))
        return str(self.path)


def emulator(isa: str) -> list[str] | str:
    """The command that runs a target's programs here ([] if the machine does by itself), or why there is none."""
    from autofuse.target.registry import missing_features

    chosen = target(isa)
    wanted = architecture_of(chosen.triple)
    if wanted == architecture_of():
        missing = missing_features(chosen.features)
        return f"this CPU lacks {', '.join(missing)}" if missing else []
    if not shutil.which(f"{wanted}-linux-gnu-gcc"):
        return f"gcc-{wanted}-linux-gnu is not installed"
    found = shutil.which(f"qemu-{wanted}")
    return [found, "-L", f"/usr/{wanted}-linux-gnu"] if found else "qemu-user is not installed"


def driver(isa: str, folder: Path) -> Path:
    """The C driver, compiled for a target's architecture."""
    wanted = architecture_of(target(isa).triple)
    compiler = "gcc" if wanted == architecture_of() else f"{wanted}-linux-gnu-gcc"
    made = folder / f"driver-{wanted}"
    if not made.exists():
        source = Path(__file__).with_name("isa_driver.c")
        include = f"-I{tvm_ffi.libinfo.find_include_path()}"
        subprocess.run([compiler, "-O1", "-rdynamic", include, str(source), "-o", str(made), "-ldl"], check=True)
    return made


Call = tuple[str, list[int]]


def drive(
    isa: str, library: Path, folder: Path, tensors: Sequence[np.ndarray | tuple[tuple[int, ...], str]],
    calls: Sequence[Call], wanted: Sequence[int],
) -> list[np.ndarray]:  # fmt: skip
    """Call kernels of a library one after another: tensors are arrays or, to be made, (shape, dtype).

    A call is (kernel, numbers of its tensors); `wanted` are the numbers of the tensors that come back.
    """
    command = emulator(isa)
    assert not isinstance(command, str), command
    codes = {"i": 0, "u": 1, "f": 2, "b": 6}
    script, data, results = folder / "script", folder / "data", folder / "results"
    lines, shapes, offset = [], [], 0
    with data.open("wb") as out:
        for tensor in tensors:
            given = isinstance(tensor, np.ndarray)
            shape, dtype = (tensor.shape, tensor.dtype) if given else (tensor[0], np.dtype(tensor[1]))
            shapes.append((shape, dtype))
            extents = " ".join(map(str, shape))
            place = offset if given else -1
            lines.append(f"t {codes[dtype.kind]} {8 * dtype.itemsize} {len(shape)} {extents} {place}")
            if given:
                offset += out.write(np.ascontiguousarray(tensor).tobytes())
    lines += [f"c __tvm_ffi_{name} {len(at)} {' '.join(map(str, at))}" for name, at in calls]
    lines += [f"d {t}" for t in wanted]
    script.write_text("\n".join(lines) + "\n")
    program = [*command, str(driver(isa, folder)), str(library), str(script), str(data), str(results)]
    done = subprocess.run(program, capture_output=True, text=True, timeout=280)
    assert done.returncode == 0, f"{isa}: exit status {done.returncode}: {done.stderr.strip()[-500:]}"
    found, content, at = [], results.read_bytes(), 0
    for t in wanted:
        shape, dtype = shapes[t]
        size = int(np.prod(shape)) * dtype.itemsize
        found.append(np.frombuffer(content[at : at + size], dtype).reshape(shape))
        at += size
    return found


def errors(kernels: Sequence[Compiled], isa: str, folder: Path) -> dict[str, float]:
    """Label of a kernel → largest error relative to its largest result; all in one library and one run."""
    library = folder / f"{isa}.so"
    linker(target(isa).triple)(str(library), [made.object for made in kernels])
    tensors: list[Any] = []
    calls: list[Call] = []
    owners: list[tuple[str, int, np.ndarray]] = []
    for made in kernels:
        kernel, first = made.kernel, len(tensors)
        tensors += [*kernel.inputs, *((e.shape, str(e.dtype)) for e in kernel.expected)]
        calls.append((kernel.name, list(range(first, len(tensors)))))
        start = first + len(kernel.inputs)
        owners += [(made.label, start + i, e) for i, e in enumerate(kernel.expected)]
    found: dict[str, float] = {}
    results = drive(isa, library, folder, tensors, calls, [t for _, t, _ in owners])
    for (label, _, want), have in zip(owners, results, strict=True):
        error = float(np.max(np.abs(have - want))) / max(1e-6, float(np.max(np.abs(want))))
        found[label] = max(found.get(label, 0.0), error if np.isfinite(have).all() else float("inf"))
    return found
