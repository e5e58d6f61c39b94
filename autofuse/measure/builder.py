"""Building kernels: takes scheduled TIR as text, gives libraries, in parallel child processes with timeouts.

A compiler pass can crash or hang; it does so in a child, and costs its own request only.
"""

from __future__ import annotations

import abc
import queue
import time
from collections.abc import Callable, Container, Generator, Iterable, Mapping
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from types import TracebackType
from typing import TYPE_CHECKING, Any

from autofuse.codegen.digest import tir_digest
from autofuse.measure.jobs import ArgumentSpec, arguments_from, one_line
from autofuse.measure.process import ChildProcess, Outcome

if TYPE_CHECKING:
    from tvm.ir import IRModule
    from tvm.tirx import PrimFunc

_FUNCTION = "kernel"
COMPILER = "autofuse.measure.compiler:factory"
# Kernels are built as the compiler's own are: with its lowering of exp and friends.
SETUP = ("autofuse.codegen.intrinsics:register_intrinsics",)


@dataclass(frozen=True)
class BuildRequest:
    """One kernel to build. `payload` is what the child's compiler takes: for the usual one, the scheduled PrimFunc
    `function` as `codegen.transport` writes it. `target` and `options` are TVM's target and pass configuration,
    as JSON values. `tir_digest` is that of the scheduled code.
    """

    key: str
    candidate: str
    library: str
    function: str = "main"
    payload: str = ""
    target: Mapping[str, Any] = field(default_factory=dict, hash=False)
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    arguments: tuple[ArgumentSpec, ...] = ()
    tir_digest: str = ""


@dataclass(frozen=True)
class BuildResult:
    """A built library, or why there is none: `status` is ok, build_failed, crashed, timeout or oom."""

    key: str
    candidate: str
    status: str
    message: str = ""
    library: str = ""
    function: str = ""
    arguments: tuple[ArgumentSpec, ...] = ()
    tir_digest: str = ""
    seconds: float = 0.0


def module_request(
    module: IRModule,
    key: str,
    candidate: str,
    library: str,
    target: Mapping[str, Any],
    outputs: int,
    options: Mapping[str, Any] | None = None,
    ranges: Mapping[int, tuple[float, float]] | None = None,
    prepared: Mapping[int, tuple[str, tuple[int, ...]]] | None = None,
    constants: Container[int] = (),
) -> BuildRequest:
    """A request to build the only PrimFunc of `module`, whose last `outputs` parameters are written.

    `ranges`: parameter → (low, high) of what it may be filled with (indices of a gather). `prepared`: parameter →
    (preparation, shape before it). `constants`: parameters that are the network's weights. ValueError for a module that
    is not one PrimFunc with static shapes.
    """
    import tvm

    from autofuse.codegen.transport import to_text

    functions = [f for f in module.functions.values() if isinstance(f, tvm.tirx.PrimFunc)]
    if len(functions) != 1:
        raise ValueError(f"expected one PrimFunc to build, found {len(functions)}")
    # One name for all, so that equal code has one digest.
    func = functions[0].with_attr("global_symbol", _FUNCTION)
    return BuildRequest(
        key,
        candidate,
        library,
        _FUNCTION,
        to_text(func),
        dict(target),
        dict(options or {}),
        argument_specs(func, outputs, ranges, prepared, constants),
        tir_digest(func),
    )


def argument_specs(
    func: PrimFunc,
    outputs: int,
    ranges: Mapping[int, tuple[float, float]] | None = None,
    prepared: Mapping[int, tuple[str, tuple[int, ...]]] | None = None,
    constants: Container[int] = (),
) -> tuple[ArgumentSpec, ...]:
    """The parameters of a kernel; the arguments are those of `module_request`."""
    first = len(func.params) - outputs
    arguments = []
    for i, param in enumerate(func.params):
        low, high = (ranges or {}).get(i, (-1.0, 1.0))
        form, shape = (prepared or {}).get(i, ("", tuple(int(extent) for extent in param.shape)))
        arguments.append(ArgumentSpec(shape, str(param.dtype), i >= first, low, high, form, i in constants))
    return tuple(arguments)


class Builder(abc.ABC):
    """Builds kernels. Whatever goes wrong with one is its result's status, never an exception."""

    @abc.abstractmethod
    def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
        """One result for each request, in order. All builds have ended when the iterator is exhausted or closed."""

    @abc.abstractmethod
    def close(self) -> None:
        """End what was started. The builder may be used again."""

    def __enter__(self) -> Builder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class PoolBuilder(Builder):
    """Builds with `workers` child processes at once, each request within `timeout` seconds, queueing not counted.

    `compiler` is the children's factory; `setup` names what it is given: for the usual one, functions that it calls
    first (those that register lowering rules, say). `executor` hands requests out: a thread pool, one thread a child.
    """

    def __init__(
        self,
        workers: int = 2,
        timeout: float = 60.0,
        compiler: str = COMPILER,
        setup: tuple[str, ...] = SETUP,
        executor: Callable[[int], Executor] = ThreadPoolExecutor,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._workers = workers
        self._timeout = timeout
        self._executor = executor
        self._children = [ChildProcess(compiler, setup, environment) for _ in range(workers)]
        self._idle: queue.SimpleQueue[ChildProcess] = queue.SimpleQueue()
        for child in self._children:
            self._idle.put(child)

    def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
        with self._executor(self._workers) as executor:
            futures: list[Future[BuildResult]] = []
            try:
                # Requests are made one by one here (their schedules, maybe) while the children build earlier ones.
                for request in requests:
                    futures.append(executor.submit(self._one, request))
                for future in futures:
                    yield future.result()
            finally:
                for future in futures:
                    future.cancel()

    def _one(self, request: BuildRequest) -> BuildResult:
        child = self._idle.get()
        try:
            child.start()
            begin = time.monotonic()
            outcome = child.request(asdict(request), self._timeout)
        finally:
            self._idle.put(child)
        return result_of(request, outcome, time.monotonic() - begin)

    def close(self) -> None:
        for child in self._children:
            child.close()


def result_of(request: BuildRequest, outcome: Outcome, seconds: float) -> BuildResult:
    """What a compiler's answer says of a request."""
    value = outcome.value
    return BuildResult(
        request.key,
        request.candidate,
        "build_failed" if outcome.status == "failed" else outcome.status,
        one_line(outcome.message),
        request.library,
        value.get("function", request.function),
        arguments_from(value["arguments"]) if "arguments" in value else request.arguments,
        value.get("tir_digest", request.tir_digest),
        seconds,
    )
