"""GPU kernels without a GPU: groups lowered for GPU targets, their schedules as OpenCL C on PoCL, numpy's answers.

PoCL runs the same schedule on the CPU, in a child process with a timeout. It checks indices and arithmetic: not races,
not speed, and not the code for the GPU itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from lowered_groups import LoweredGroup

from autofuse.codegen.amdgpu import opencl_source
from autofuse.device.opencl import devices
from autofuse.graph.model import Group, Role
from autofuse.measure.oracle import evaluate
from autofuse.measure.process import ChildProcess
from autofuse.schedule.family import Configuration, ScheduleFamily
from autofuse.target import GpuHardware, resolve

TARGET = "dcu-z100"
POCL = "portable computing language"
HARDWARE = resolve(TARGET).gpu_hardware
WAVE32 = resolve("rocm -mcpu=gfx1030").gpu_hardware


@lru_cache
def pocl_missing() -> str:
    """Why kernels cannot be run on this machine, "" if they can."""
    from autofuse.errors import TargetError

    try:
        found = devices()
    except TargetError as error:
        return str(error)
    return "" if any(POCL in d.platform.lower() for d in found) else "PoCL is not installed"


class Pocl:
    """A child process that runs OpenCL kernels, on PoCL unless another device's name is given."""

    def __init__(self, folder: Path, device: str = POCL) -> None:
        self.folder = folder
        # PoCL optimises nothing: kernels here are run once.
        environment = {"POCL_CACHE_DIR": str(folder / "cache"), "POCL_EXTRA_BUILD_FLAGS": "-cl-opt-disable"}
        self.child = ChildProcess("autofuse.measure.gpu_worker:kernels", (f"opencl:{device}",), environment)
        self.target = resolve(TARGET).tvm_target()

    def run(
        self, func: Any, inputs: Sequence[np.ndarray], outputs: Sequence[tuple[tuple[int, ...], str]]
    ) -> list[np.ndarray]:
        """What a scheduled function computes; results are filled with NaN before."""
        source, launches = opencl_source(func, self.target)
        arrays = [*inputs, *(np.full(shape, np.nan if "float" in dtype else 7, dtype) for shape, dtype in outputs)]
        paths = [str(self.folder / f"array{i}.npy") for i in range(len(arrays))]
        for path, array in zip(paths, arrays, strict=True):
            np.save(path, array)
        request = {"source": source, "launches": [asdict(launch) for launch in launches], "arrays": paths}
        outcome = self.child.request(request, 60.0)
        assert outcome.status == "ok", f"{outcome.status}: {outcome.message}\n{source}"
        return [np.load(path) for path in paths[len(inputs) :]]

    def close(self) -> None:
        """End the child."""
        self.child.close()


@dataclass
class GpuCase:
    """A group lowered for a GPU, `family`'s to take; layout changes at the program's borders are left out."""

    family: ScheduleFamily
    emit: Callable[..., Any]
    shapes: Sequence[Sequence[int]]
    behind: str = ""
    borders: bool = False
    hardware: GpuHardware = HARDWARE

    def __post_init__(self) -> None:
        self.made = LoweredGroup(self.emit, self.shapes, lanes=self.hardware.lanes)
        kinds = [op.kind for op in self.made.graph.operators]
        first = kinds.index(self.behind) + 1 if self.behind else 0
        last = len(kinds)
        if not self.borders and len(kinds) > 1:
            first += not self.behind and kinds[0] == "layout_change"
            last -= kinds[-1] == "layout_change"
        self.group = Group.of(self.made.graph, range(first, last))
        random = np.random.default_rng(5)
        self.inputs = []
        for t in self.group.inputs:
            tensor = self.made.graph.tensors[t]
            if tensor.role is Role.CONSTANT:
                array = self.made.values[t].value.numpy()
            else:
                array = (random.random(tensor.shape) * 2 - 1).astype(tensor.dtype)
            self.inputs.append(np.ascontiguousarray(array))

    @property
    def func(self) -> Any:
        """The fused, unscheduled function."""
        return self.made.fuser.fuse(self.group)

    def configs(self) -> list[Configuration]:
        """What the family offers; asserts that it takes the group and that its shapes make sense."""
        refusal = self.family.match(self.group, self.hardware)
        assert refusal is None, str(refusal)
        offered = list(self.family.configs(self.group, self.hardware))
        assert offered and len(set(offered)) == len(offered)
        for config in offered:
            assert type(config).parse(config.text) == config
            shape: Any = self.family.shape(self.group, config, self.hardware)
            assert shape.tasks >= 1 and shape.memory_bytes > 0 and 0 < shape.vector_fill <= 1, config.text
            assert shape.fits(self.hardware) and shape.threads <= 256, config.text
        return offered

    def schedule(self, config: Configuration) -> Any:
        """The scheduled function."""
        return self.family.apply(self.func, self.group, config, self.hardware)

    def error(self, pocl: Pocl, config: Configuration) -> float:
        """Largest error on PoCL over all results, relative to the largest value of each."""
        tensors = [self.made.graph.tensors[t] for t in self.group.outputs]
        found = pocl.run(self.schedule(config), self.inputs, [(t.shape, t.dtype) for t in tensors])
        worst = 0.0
        for have, want in zip(found, evaluate(self.group, self.inputs), strict=True):
            if not np.isfinite(have).all():
                return float("inf")
            worst = max(worst, float(np.abs(have - want).max()) / max(1e-6, float(np.abs(want).max())))
        return worst
