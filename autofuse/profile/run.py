"""Profiles a compiled model in a process of its own, whose thread pool is set before it starts."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from autofuse.errors import EngineError
from autofuse.profile.result import Profile, summarise
from autofuse.target import Hardware

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable
    from autofuse.codegen.gpu_executable import GpuExecutable

_SECONDS_PER_RUN = 30.0
_SECONDS_TO_START = 120.0


def profile(
    executable: Executable | GpuExecutable,
    *,
    inputs: Mapping[str, Any] | None = None,
    runs: int = 20,
    hardware: Hardware | None = None,
    device: str = "",
    progress: Callable[[str], None] | None = None,
) -> Profile:
    """Times every kernel of `executable` over `runs` runs.

    inputs: arrays by name, else `example_inputs`. hardware: what the roofline is taken from, else this machine's (for a
    GPU's model its card's) description. device: what a GPU's model runs on, by default the first GPU. Raises InputError
    for inputs that do not fit, EngineError when the process dies.
    """
    from autofuse.bench.child import common_environment
    from autofuse.measure.process import ChildProcess

    tell = progress or (lambda _: None)
    description = executable.description
    arrays = dict(inputs) if inputs is not None else example_inputs(description)
    executable.check(**arrays)
    gpu = "kind" in description
    handler = "GpuHandler" if gpu else "Handler"
    more: tuple[str, ...] = (device,) if gpu else ()
    with tempfile.TemporaryDirectory(prefix="autofuse-profile-") as folder:
        model, stored = Path(folder) / ("model" if gpu else "model.so"), Path(folder) / "inputs.npz"
        executable.save(model)
        np.savez(stored, **arrays)
        child = ChildProcess(
            f"autofuse.profile.child:{handler}",
            (str(model), str(stored), *more),
            common_environment(int(description["threads"])),
        )
        with contextlib.closing(child):
            tell("measuring")
            outcome = child.request({"runs": runs}, _SECONDS_TO_START + _SECONDS_PER_RUN * runs)
    if outcome.status != "ok":
        raise EngineError(f"profiling {executable.name} failed ({outcome.status}): {outcome.message}")
    return summarise(
        description,
        hardware or _hardware_of(description),
        outcome.value["latencies"],
        outcome.value["times"],
    )


def _hardware_of(description: Mapping[str, Any]) -> Hardware:
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import resolve

    return load_hardware(resolve(str(description["target"]), int(description["threads"])))


def example_inputs(description: Mapping[str, Any], seed: int = 0) -> dict[str, Any]:
    """Inputs for a model of which only names, shapes and dtypes are known.

    Floats are N(0, 1), integers 0 or 1, which every table of embeddings has, masks (by their name) are ones.
    """
    rng = np.random.default_rng(seed)
    arrays: dict[str, Any] = {}
    for entry in description["inputs"]:
        shape, dtype = tuple(entry["shape"]), np.dtype(entry["dtype"])
        if dtype.kind == "b" or "mask" in entry["name"].lower():
            arrays[entry["name"]] = np.ones(shape, dtype)
        elif dtype.kind == "f":
            arrays[entry["name"]] = rng.standard_normal(shape).astype(dtype)
        else:
            arrays[entry["name"]] = rng.integers(0, 2, shape).astype(dtype)
    return arrays
