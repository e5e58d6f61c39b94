"""A compiled model that can be called, saved and loaded."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autofuse.codegen.described import Described
from autofuse.codegen.gpu_package import is_gpu_package
from autofuse.codegen.library import machine_code
from autofuse.codegen.package import copy_package, read_package, write_package
from autofuse.codegen.threads import configure_threads
from autofuse.errors import ModelError, TargetError
from autofuse.target.architecture import architecture_of, architecture_of_file
from autofuse.target.registry import missing_features

if TYPE_CHECKING:
    from autofuse.codegen.gpu_executable import GpuExecutable

#: Compiled code loads vectors from addresses that are multiples of this many bytes.
_ALIGNMENT = 64
#: Bytes of an input that are copied in less time than numpy takes to tell where they are.
_SHORT = 16_384


class _State:
    """What one thread runs the model with."""

    def __init__(self, machine: Any, weights: list[Any]) -> None:
        self.machine = machine
        self.main = machine["main"]
        self.weights = weights
        # Buffers for arrays that compiled code cannot read in place, each with its numpy view.
        self._buffers: dict[int, tuple[Any, NDArray[Any]]] = {}

    def tensor(self, position: int, array: NDArray[Any]) -> Any:
        """The array as TVM's tensor: in place where compiled code can read it there, else in this thread's buffer."""
        import tvm_ffi

        # DLPack has no word for arrays that may not be written to; a short array is copied before its address is known.
        if array.nbytes > _SHORT and array.flags.writeable and array.ctypes.data % _ALIGNMENT == 0:
            return tvm_ffi.from_dlpack(array)
        buffer = self._buffers.get(position)
        if buffer is None:
            import tvm

            tensor = tvm.runtime.empty(array.shape, str(array.dtype), tvm.cpu())
            buffer = self._buffers[position] = tensor, np.from_dlpack(tensor)
        np.copyto(buffer[1], array)
        return buffer[0]


class Executable(Described):
    """Call it with arrays in the order of the model's inputs, or by name; it gives the outputs as numpy arrays.

    An input that is contiguous and starts at a multiple of 64 bytes is read where it is, another one is copied first.
    The outputs are the caller's own: no later call changes them.

    Safe to call from several threads: each has a virtual machine and a thread pool of its own over the same code and
    weights. `library` is a module that TVM's virtual machine takes, `weights` are its last arguments. What `save`
    writes is the file at `path` where there is one, else `code`, the bytes of a shared library, with the weights;
    without either, `library` must be TVM's own executable, and is compiled to machine code then.
    """

    def __init__(
        self,
        library: Any,
        weights: Sequence[Any],
        description: dict[str, Any],
        path: Path | None = None,
        code: bytes | None = None,
    ) -> None:
        super().__init__(description)
        self.library = library
        self._path = path
        self._code = code
        self.weights = list(weights)
        self._local = threading.local()

    def __call__(self, /, *arrays: Any, **named: Any) -> list[NDArray[Any]]:
        """Run the model once.

        Raises InputError for a missing, unknown or misshapen input.
        """
        main, arguments = self._ready(arrays, named)
        result = main(*arguments)
        results = [result] if hasattr(result, "numpy") else list(result)
        # A result may be an argument handed through, or the same as another: that memory belongs to somebody else.
        taken = {t.data_ptr() for t in arguments}
        outputs = []
        for tensor in results:
            outputs.append(tensor.numpy() if tensor.data_ptr() in taken else np.from_dlpack(tensor))
            taken.add(tensor.data_ptr())
        return outputs

    def timer(self, /, *arrays: Any, **named: Any) -> Callable[[], Any]:
        """A function without arguments that runs the model on these inputs, on the thread that called `timer`.

        It gives TVM's own result; the arrays must not change meanwhile. Raises InputError as a call does.
        """
        main, arguments = self._ready(arrays, named)
        return lambda: main(*arguments)

    def instrument(self, observer: Callable[[str, bool], None]) -> None:
        """Have `observer(name, before)` called around every function that this thread's machine calls."""

        def forward(_: Any, name: str, before: bool, *__: Any) -> int:
            observer(str(name), bool(before))
            return 0

        self._state().machine.set_instrument(forward)

    def save(self, path: str | Path) -> None:
        """Write one file that `autofuse.load` reads, here or on a machine of the target's architecture.

        Raises ModelError when it cannot be written, TargetError when there is no linker for that architecture.
        """
        _check_path(path)
        if self._path is not None:
            copy_package(self._path, Path(path))
            return
        with tempfile.TemporaryDirectory() as folder:
            library = Path(folder) / "model.so"
            library.write_bytes(self._code if self._code is not None else machine_code(self.library, self._triple))
            write_package(Path(path), library, map(np.from_dlpack, self.weights), self.description)

    @property
    def _triple(self) -> str:
        return str(self.description.get("triple", ""))

    def _state(self) -> _State:
        state: _State | None = getattr(self._local, "state", None)
        if state is not None:
            return state
        _check_machine(self.name, architecture_of(self._triple), self.description)
        import tvm
        from tvm import relax

        configure_threads(int(self.description["threads"]))
        device = tvm.cpu()
        machine = relax.VirtualMachine(self.library, device)
        weights = [w if isinstance(w, tvm.runtime.Tensor) else tvm.runtime.from_dlpack(w) for w in self.weights]
        state = self._local.state = _State(machine, weights)
        return state

    def _ready(self, arrays: Sequence[Any], named: dict[str, Any]) -> tuple[Callable[..., Any], list[Any]]:
        """The model's function on this thread's machine, its pool set up, and the arguments for these inputs."""
        given = self._inputs.arrange(arrays, named)
        state = self._state()
        configure_threads(int(self.description["threads"]))
        tensors = [state.tensor(i, array) for i, array in enumerate(given)]
        return state.main, [*tensors, *state.weights]


def _check_path(path: object) -> None:
    if not isinstance(path, str | os.PathLike) or isinstance(path, bytes):
        raise ModelError(f"{path!r} ({type(path).__name__}) is no path of a compiled model: give a text or a Path")


def _check_machine(what: str, architecture: str, description: dict[str, Any]) -> None:
    """TargetError where code for `architecture` ("" unknown) and the features of `description` would not run here."""
    here = architecture_of()
    if architecture not in ("", here):
        raise TargetError(
            f"{what} was made for {architecture}, this machine is {here}: run it there, or compile for here"
        )
    lacking = missing_features(description.get("features", []))
    if lacking:
        raise TargetError(
            f"{what} was compiled for {description['target']}: this CPU lacks {', '.join(lacking)};"
            " compile the model again on this machine"
        )


def load(path: str | Path) -> Executable | GpuExecutable:
    """Load a file, or the folder of a model for a GPU, that `save` or `autofuse compile` wrote.

    Raises ModelError when it is no such file, TargetError when it was made for another architecture or this CPU lacks
    instructions that its code uses.
    """
    _check_path(path)
    if is_gpu_package(Path(path)):
        from autofuse.codegen.gpu_executable import load_gpu

        return load_gpu(Path(path))
    package = read_package(path)
    _check_machine(str(path), architecture_of_file(package.path), package.description)
    import tvm  # noqa: F401 (registers the loader)
    import tvm_ffi

    with tempfile.TemporaryDirectory() as folder:
        # A shared library is told by the end of its name; the link stands in for whatever the file is called.
        link = Path(folder) / "model.so"
        link.symlink_to(package.path.resolve())
        try:
            library = tvm_ffi.load_module(str(link))
        except Exception as error:
            lines = str(error).strip().splitlines()
            raise ModelError(
                f"{path} cannot be loaded ({lines[-1] if lines else type(error).__name__}); compile the model again"
            ) from None
    return Executable(library, package.weights, package.description, package.path.resolve())
