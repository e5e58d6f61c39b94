"""A compiled model that can be called, saved and loaded."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.package import read_package, write_package
from autofuse.codegen.threads import configure_threads
from autofuse.errors import InputError, TargetError
from autofuse.target.registry import missing_features


class Executable:
    """Call it with arrays in the order of the model's inputs, or by name; it gives the outputs as numpy arrays.

    Safe to call from several threads: each has a virtual machine of its own over the same code.
    """

    def __init__(self, library: Any, weights: Sequence[Any], description: dict[str, Any]) -> None:
        self._library = library
        self._weights = list(weights)
        self._local = threading.local()
        self.description = description

    @property
    def name(self) -> str:
        """The model's name."""
        return str(self.description["model"])

    @property
    def plan(self) -> Any:
        """The fusion plan that it was built from."""
        from autofuse.search.plan import Plan

        return Plan.from_json(self.description["plan"])

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names in the order of positional arguments."""
        return tuple(entry["name"] for entry in self.description["inputs"])

    @property
    def output_names(self) -> tuple[str, ...]:
        """Names in the order of the results."""
        return tuple(self.description["outputs"])

    @property
    def kernels(self) -> int:
        """Kernels that one call launches."""
        return int(self.description["kernels"])

    def __call__(self, *arrays: Any, **named: Any) -> list[NDArray[Any]]:
        """Run the model once.

        Raises InputError for a missing, unknown or misshapen input.
        """
        state = self._state()
        for buffer, array in zip(state["inputs"], self._arrange(arrays, named), strict=True):
            buffer.copyfrom(array)
        result = state["main"](*state["arguments"])
        outputs = result if len(self.output_names) > 1 or not hasattr(result, "numpy") else [result]
        return [output.numpy() for output in outputs]

    def timer(self, *arrays: Any, **named: Any) -> Any:
        """A function without arguments that runs the model on these inputs and leaves the outputs where they are."""
        state = self._state()
        for buffer, array in zip(state["inputs"], self._arrange(arrays, named), strict=True):
            buffer.copyfrom(array)
        main, arguments = state["main"], state["arguments"]
        return lambda: main(*arguments)

    def save(self, path: str | Path) -> None:
        """Write one file that `autofuse.load` reads. Raises ModelError when it cannot be written."""
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "model.so"
            self._library.export_library(str(library))
            arrays = [w.numpy() if hasattr(w, "numpy") else w for w in self._weights]
            write_package(Path(path), library, arrays, self.description)

    def _state(self) -> dict[str, Any]:
        state = getattr(self._local, "state", None)
        if state is not None:
            return dict(state)
        import tvm
        from tvm import relax

        configure_threads(int(self.description["threads"]))
        device = tvm.cpu()
        machine = relax.VirtualMachine(self._library, device)
        # Tensors that TVM allocates are aligned as its vector loads need; numpy's need not be.
        inputs = [tvm.runtime.empty(tuple(e["shape"]), e["dtype"], device) for e in self.description["inputs"]]
        weights = [w if isinstance(w, tvm.runtime.Tensor) else tvm.runtime.from_dlpack(w) for w in self._weights]
        state = {"main": machine["main"], "inputs": inputs, "arguments": [*inputs, *weights], "machine": machine}
        self._local.state = state
        return state

    def _arrange(self, arrays: Sequence[Any], named: dict[str, Any]) -> list[NDArray[Any]]:
        entries = self.description["inputs"]
        names = [e["name"] for e in entries]
        if len(arrays) > len(entries):
            raise InputError(f"{self.name} takes {len(entries)} inputs ({', '.join(names)}), {len(arrays)} were given")
        given = dict(zip(names, arrays, strict=False))
        for name, array in named.items():
            if name not in names:
                raise InputError(f"{self.name} has no input {name!r}; its inputs are {', '.join(names)}")
            if name in given:
                raise InputError(f"input {name!r} was given twice, by position and by name")
            given[name] = array
        missing = [n for n in names if n not in given]
        if missing:
            raise InputError(f"input {missing[0]!r} is missing; {self.name} takes {', '.join(names)}")
        arranged = []
        for entry in entries:
            array = np.asarray(given[entry["name"]])
            if tuple(array.shape) != tuple(entry["shape"]):
                raise InputError(
                    f"input {entry['name']!r} has shape {tuple(array.shape)}, {self.name} was compiled for"
                    f" {tuple(entry['shape'])}; compile with --input-shape {entry['name']}="
                    f"{','.join(map(str, array.shape))} for the other"
                )
            if str(array.dtype) != entry["dtype"]:
                if array.dtype.kind != np.dtype(entry["dtype"]).kind:
                    raise InputError(
                        f"input {entry['name']!r} has dtype {array.dtype}, {self.name} takes {entry['dtype']}"
                    )
                array = array.astype(entry["dtype"])
            arranged.append(np.ascontiguousarray(array))
        return arranged


def load(path: str | Path) -> Executable:
    """Load a file that `Executable.save` or `autofuse compile` wrote.

    Raises ModelError when it is no such file, TargetError when this CPU lacks instructions that its code uses.
    """
    package = read_package(path)
    lacking = missing_features(package.description.get("features", []))
    if lacking:
        raise TargetError(
            f"{path} was compiled for {package.description['target']}: this CPU lacks {', '.join(lacking)};"
            " compile the model again on this machine"
        )
    import tvm

    configure_threads(int(package.description["threads"]))
    library = tvm.runtime.load_module(str(Path(path).resolve()))
    return Executable(library, package.weights, package.description)
