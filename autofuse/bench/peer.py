"""`Peer`: an engine that runs a model, as a benchmark sees it; `Workload`: what every engine is given."""

from __future__ import annotations

import importlib.util
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

# Wide enough for any vector load; TVM's kernels crash on inputs aligned to less than their vectors.
ALIGNMENT = 64


@dataclass(frozen=True)
class Workload:
    """What an engine runs. It crosses a process border, so everything in it is JSON.

    Attributes:
        model_path: an `.onnx` file with static shapes, or `.relax.txt` (a Relax module) where the source was not ONNX.
        inputs_path: an `.npz` with one array an input, under the input's name.
        input_names: in the order of the model's inputs.
        output_names: in the order of the model's outputs.
        threads: how many threads the engine may use.
        options: the engine's own settings, as JSON values.
    """

    model_path: str
    inputs_path: str
    input_names: tuple[str, ...]
    output_names: tuple[str, ...]
    threads: int
    options: Mapping[str, Any] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Workload:
        return cls(
            model_path=str(data["model_path"]),
            inputs_path=str(data["inputs_path"]),
            input_names=tuple(data["input_names"]),
            output_names=tuple(data["output_names"]),
            threads=int(data["threads"]),
            options=dict(data.get("options", {})),
        )

    def is_onnx(self) -> bool:
        return self.model_path.endswith(".onnx")

    def inputs(self) -> dict[str, Array]:
        """The inputs by name, in the model's order, each at an address that is a multiple of `ALIGNMENT`."""
        with np.load(self.inputs_path, allow_pickle=False) as stored:
            return {name: aligned_copy(stored[name]) for name in self.input_names}


class Peer(ABC):
    """One engine. A worker process makes one object, asks `available`, then `prepare` once, then the rest at will.

    Any method may raise anything, or take the process down: the parent turns it into a row with an error.
    A peer never starts work that outlives a call, since others are being timed meanwhile.
    """

    @classmethod
    def available(cls) -> str | None:
        """Why this engine cannot run here, in one line that says what to do; None when it can."""
        return None

    @abstractmethod
    def prepare(self, workload: Workload) -> float:
        """Makes the model ready to run; returns the seconds from model file to runnable, imports of libraries apart."""

    @abstractmethod
    def run_once(self) -> None:
        """One inference on the workload's inputs, leaving outputs where `outputs` finds them. This is what is timed."""

    @abstractmethod
    def outputs(self) -> list[Array]:
        """The outputs of the last call of `run`, in the model's order; never asked for before one."""

    def kernels(self) -> int | None:
        """Kernels launched by one inference; None where the engine does not tell. Called after a `run`."""
        return None

    def run(self, calls: int) -> list[float]:
        """Seconds of each of `calls` inferences, one after the other."""
        return time_calls(self.run_once, calls)


def time_calls(call: Callable[[], None], calls: int) -> list[float]:
    """Seconds of each call, one clock reading before and one after, nothing between but the call."""
    clock = time.perf_counter
    seconds = []
    for _ in range(calls):
        start = clock()
        call()
        seconds.append(clock() - start)
    return seconds


def aligned_copy(array: Array) -> Array:
    """A contiguous copy whose first byte lies at a multiple of `ALIGNMENT`."""
    source = np.ascontiguousarray(array).reshape(array.shape)
    room = np.empty(source.nbytes + ALIGNMENT, dtype=np.uint8)
    offset = -room.ctypes.data % ALIGNMENT
    copy: Array = room[offset : offset + source.nbytes].view(source.dtype).reshape(source.shape)
    copy[...] = source
    return copy


def missing_packages(needed: Mapping[str, str], advice: str) -> str | None:
    """One line that names the modules of `needed` (module → package) that are not installed; None when all are."""
    absent = [package for module, package in needed.items() if importlib.util.find_spec(module) is None]
    if not absent:
        return None
    return f"{' and '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed: {advice}"


def require_onnx(workload: Workload, engine: str) -> Path:
    """The path of the workload's ONNX file; an error where the source was not ONNX."""
    if not workload.is_onnx():
        raise ValueError(f"{engine} needs an ONNX model, and this one was not given as ONNX")
    return Path(workload.model_path)
