"""A builder on other machines: takes a `concurrent.futures` executor whose workers have autofuse, gives libraries here.

Requests travel as plain values and libraries come back as bytes: nothing is shared but the executor.
"""

from __future__ import annotations

import tempfile
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping
from concurrent.futures import CancelledError, Executor, Future, wait
from dataclasses import asdict
from pathlib import Path
from typing import Any

from autofuse.errors import InputError
from autofuse.measure.builder import COMPILER, SETUP, Builder, BuildRequest, BuildResult, result_of
from autofuse.measure.process import ChildProcess, MeasureError, Outcome
from autofuse.target.fingerprint import tvm_version

_idle: dict[tuple[str, ...], list[ChildProcess]] = {}
_lock = threading.Lock()


def build_there(request: dict[str, Any], timeout: float, compiler: str, setup: tuple[str, ...]) -> dict[str, Any]:
    """What a worker does: one build in a child process that later builds use again; plain values and bytes."""
    with _lock:
        kept = _idle.setdefault((compiler, *setup), [])
        child = kept.pop() if kept else ChildProcess(compiler, setup)
    try:
        child.start()
        begin = time.monotonic()
        with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
            library = Path(folder) / "kernel.so"
            outcome = child.request({**request, "library": str(library)}, timeout)
            content = library.read_bytes() if outcome.status == "ok" and library.exists() else b""
        seconds = time.monotonic() - begin
    finally:
        with _lock:
            kept.append(child)
    return {**asdict(outcome), "library": content, "seconds": seconds, "tvm": tvm_version()}


class FarmBuilder(Builder):
    """Hands all requests to `executor`, each to be built within `timeout` seconds, queueing not counted.

    `release` is called when the builder is closed. MeasureError if the farm fails, or has another TVM: that is no
    fault of a kernel's, and must not be kept as one.
    """

    def __init__(
        self,
        executor: Executor,
        timeout: float = 60.0,
        release: Callable[[], object] | None = None,
        compiler: str = COMPILER,
        setup: tuple[str, ...] = SETUP,
    ) -> None:
        self._executor = executor
        self._timeout = timeout
        self._release = release
        self._compiler = compiler
        self._setup = setup

    def build(self, requests: Iterable[BuildRequest]) -> Generator[BuildResult, None, None]:
        waiting: deque[tuple[BuildRequest, Future[dict[str, Any]]]] = deque()
        try:
            for request in requests:
                arguments = (asdict(request), self._timeout, self._compiler, self._setup)
                waiting.append((request, self._executor.submit(build_there, *arguments)))
            while waiting:
                request, future = waiting[0]
                made = _result(request, future)
                waiting.popleft()
                yield made
        finally:
            for _, future in waiting:
                future.cancel()
            wait([future for _, future in waiting])

    def close(self) -> None:
        if self._release is not None:
            self._release()


def _result(request: BuildRequest, future: Future[dict[str, Any]]) -> BuildResult:
    try:
        answer: Mapping[str, Any] = future.result()
    except (Exception, CancelledError) as error:
        raise MeasureError(f"the build farm failed: {type(error).__name__}: {' '.join(str(error).split())}") from None
    if answer["tvm"] != tvm_version():
        raise MeasureError(f"the build farm has TVM {answer['tvm'] or '(none)'}, this machine {tvm_version()}")
    if answer["library"]:
        library = Path(request.library)
        temporary = library.with_name(f"partial-{library.name}")
        temporary.write_bytes(answer["library"])
        temporary.replace(library)
    return result_of(request, Outcome(answer["status"], answer["value"], answer["message"]), answer["seconds"])


def dask_builder(address: str, timeout: float = 60.0, patience: float = 10.0) -> FarmBuilder:
    """Builds on the workers of a dask.distributed scheduler.

    InputError if it is not installed, or if no scheduler answers within `patience` seconds.
    """
    try:
        from distributed import Client
    except ImportError:
        raise InputError("--dask needs dask.distributed: pip install 'autofuse[dask]'") from None
    try:
        client = Client(address, timeout=patience)
    except (OSError, ValueError) as error:
        raise InputError(f"no dask scheduler answers at {address!r}: {' '.join(str(error).split())}") from None
    if not client.scheduler_info().get("workers"):
        client.close()
        raise InputError(f"the dask scheduler at {address!r} has no workers: dask worker {address}")
    return FarmBuilder(client.get_executor(pure=False), timeout, client.close)
