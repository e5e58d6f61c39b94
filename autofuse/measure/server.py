"""A device: TVM's RPC server that is registered with a tracker and can say what machine it is. Needs TVM.

TVM forks a process for each session and gives up listening when one dies; here a crashed session ends alone, and the
device offers itself again. A session ends with the server, and at the deadline that its client has set.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import multiprocessing
import os
import shutil
import signal
import socket
import struct
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from threadpoolctl import threadpool_limits

from autofuse.codegen.threads import stay_at_home
from autofuse.errors import AutofuseError
from autofuse.target import fingerprint, processors
from autofuse.target.pool import pool_environment

if TYPE_CHECKING:
    from autofuse.measure.gpu_runner import GpuRunner

DESCRIBE = "autofuse.describe"  # () → JSON: what `describe` says, and a name for people
DEADLINE = "autofuse.deadline"  # (seconds) → the session is ended after that long; 0: never
COLD = "autofuse.cold"  # (name of an uploaded library or "", job as JSON) → 1 if COLD_RUN runs its kernel now, else 0
GPU_MEASURE = "autofuse.gpu_measure"  # (job as JSON with names of uploaded files, or "") → result as JSON
COLD_RUN = "autofuse.cold_run"  # (times) → seconds of one run with cold weights
_WILDCARDS = ("", "0.0.0.0", "::")
_PAUSE = 0.2


class ServeError(AutofuseError):
    """The device cannot offer itself."""


def check_tracker(host: str, port: int, timeout: float = 5.0) -> None:
    """ServeError, one line, unless TVM's tracker answers at `host`:`port`."""
    from tvm.rpc import base

    start = "start one: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port PORT"
    try:
        with socket.create_connection((host, port), timeout) as sock:
            sock.sendall(struct.pack("<i", base.RPC_TRACKER_MAGIC))
            answer = sock.recv(4)
    except OSError as error:
        raise ServeError(f"no tracker answers at {host}:{port} ({error}); {start}") from None
    if answer != struct.pack("<i", base.RPC_TRACKER_MAGIC):
        raise ServeError(f"what answers at {host}:{port} is not TVM's tracker; {start}")


def describe(threads: int) -> dict[str, object]:
    """What a client is told of this machine with a pool of `threads`: its hardware row, its target in TVM's words."""
    from autofuse.target.registry import resolve

    row = fingerprint(threads)
    return {"hardware": row.to_json(), "target": resolve("llvm", threads).description}


def describe_gpu(target: str, device: str) -> dict[str, Any]:
    """The same of a GPU of this machine, or of what stands in for one, with code for `target`. TargetError without it.

    Drivers do not outlive a fork: they are asked in a process of their own.
    """
    from autofuse.measure.gpu_runner import device_here, gpu_row
    from autofuse.target.registry import resolve

    chosen = resolve(target)
    found = device_here(chosen, device)
    return {"hardware": gpu_row(chosen, found).to_json(), "target": json.loads(chosen.text), "device": found.text}


class GpuKernels:
    """Measures a session's kernels on a GPU, in a child of it: a kernel that crashes or hangs leaves the session alone.

    `measure` is GPU_MEASURE: "" has the device made ready.
    """

    def __init__(self, target: str, device: str) -> None:
        self._wanted = (target, device)
        self._runner: GpuRunner | None = None

    def measure(self, job: str) -> str:
        """The result of a job, as `worker.answer_of` has it; files are where TVM's RPC puts what is uploaded."""
        import tvm_ffi

        from autofuse.measure.gpu_runner import GpuRunner
        from autofuse.measure.jobs import MeasureJob
        from autofuse.target.registry import resolve

        if self._runner is None:
            self._runner = GpuRunner(self._wanted[1], resolve(self._wanted[0]), check=False)
        self._runner.start()
        if not job:
            return ""
        asked = MeasureJob.from_dict(json.loads(job))
        place = tvm_ffi.get_global_func("tvm.rpc.server.workpath")
        expected = None if asked.expected is None else str(place(asked.expected))
        here = replace(asked, library=str(place(asked.library)), expected=expected)
        return json.dumps(asdict(next(iter(self._runner.measure([here])))))


def run_nothing_beside_kernels(threads: int) -> None:
    """For the thread that runs a session's kernels: each thread of its pool has a processor, and no BLAS has threads.

    numpy brings cold weights into the form that a kernel reads, and the threads of its BLAS spin on after that.
    """
    stay_at_home(threads)
    threadpool_limits(1, user_api="blas")


def set_deadline(seconds: float) -> None:
    """End this process by SIGALRM after `seconds`, whatever it does then: no thread of ours has to run for it."""
    signal.setitimer(signal.ITIMER_REAL, seconds)


class ColdKernel:
    """The kernel of a session that is run with cold weights: `prepare` is COLD, `seconds` COLD_RUN."""

    def __init__(self) -> None:
        self._run: Callable[[], object] | None = None

    def prepare(self, library: str, job: str) -> int:
        """Let go of the last kernel; make the arguments of this one, if there is one and it is to be timed cold."""
        self._run = None
        if not library:
            return 0
        import tvm
        import tvm_ffi

        from autofuse.measure.cold import cold_arguments, in_turn
        from autofuse.measure.jobs import MeasureJob
        from autofuse.measure.worker import kernel_arrays

        asked = MeasureJob.from_dict(json.loads(job))
        kernel = tvm_ffi.get_global_func("tvm.rpc.server.load_module")(library)[asked.function]
        arrays = kernel_arrays(asked.arguments, asked.seed)
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        if sets := cold_arguments(asked, arrays, tensors):
            self._run = in_turn(kernel, sets)
        return int(self._run is not None)

    def seconds(self, times: int) -> float:
        """Seconds of one of `times` runs, each with the next set of arguments."""
        if self._run is None:
            raise RuntimeError(f"{COLD} comes first")
        begin = time.perf_counter()
        for _ in range(times):
            self._run()
        return (time.perf_counter() - begin) / times


def serve(
    tracker: tuple[str, int],
    key: str,
    threads: int | None = None,
    host: str = "127.0.0.1",
    ports: tuple[int, int] = (9090, 9200),
    ready: Callable[[int], None] | None = None,
    gpu: Mapping[str, Any] | None = None,
) -> None:
    """Offer this machine under `key` until SIGTERM or an interrupt; `ready` is told the port each time it listens.

    gpu: what `describe_gpu` says of the GPU that is offered, instead of the CPU.

    `threads`: size of the kernels' pool (default: the physical processors available). It is bound to `host`, at the
    first free port of `ports`. ServeError if there is no tracker or no free port.
    """
    count = threads or processors()
    os.environ.update(pool_environment(count))
    check_tracker(*tracker)
    import tvm_ffi
    from tvm.rpc import server

    import autofuse.measure.worker  # noqa: F401  once, here, and not in every session

    content = dict(gpu) if gpu is not None else describe(count)
    parent = os.getpid()
    # What sessions are sent lies here, and goes with the server.
    folder = tempfile.tempdir = tempfile.mkdtemp(prefix="autofuse-serve-")

    at = 0

    def told() -> str:
        _begin_session(parent)
        if gpu is None:
            run_nothing_beside_kernels(count)
        return json.dumps({**content, "name": f"{socket.gethostname()}:{at}"})

    def leave(number: int, frame: object) -> None:
        for child in multiprocessing.active_children():
            with contextlib.suppress(OSError):
                child.kill()
        shutil.rmtree(folder, ignore_errors=True)
        os._exit(0 if number == signal.SIGTERM else 130)

    tvm_ffi.register_global_func(DESCRIBE, told, override=True)
    tvm_ffi.register_global_func(DEADLINE, set_deadline, override=True)
    cold = ColdKernel()
    tvm_ffi.register_global_func(COLD, cold.prepare, override=True)
    tvm_ffi.register_global_func(COLD_RUN, cold.seconds, override=True)
    if gpu is not None:
        tvm_ffi.register_global_func(
            GPU_MEASURE, GpuKernels(json.dumps(gpu["target"]), str(gpu["device"])).measure, override=True
        )
    # The functions above reach the sessions by fork: this process never runs a kernel, which makes that safe.
    multiprocessing.set_start_method("fork", force=True)
    threading.excepthook = _say
    signal.signal(signal.SIGTERM, leave)
    signal.signal(signal.SIGINT, leave)
    while True:
        try:
            state = server.PopenRPCServerState(
                host,
                *ports,
                tracker_addr=tracker,
                key=key,
                # Behind a wildcard the tracker knows best under which address this machine was seen.
                custom_addr=None if host in _WILDCARDS else host,
                silent=True,
            )
        except (OSError, ValueError) as error:
            raise ServeError(f"cannot listen on {host}, ports {ports[0]} to {ports[1] - 1}: {error}") from None
        at = state.port
        if ready is not None:
            ready(at)
        while state.thread.is_alive():  # in steps, so that signals are handled
            state.thread.join(1.0)
        state.sock.close()
        os.chdir(folder)  # the folder of the session that died, which TVM had changed to, is no more
        time.sleep(_PAUSE)


def _begin_session(parent: int) -> None:
    """Make this session end when the server does, killed or not (Linux; elsewhere it ends with its client)."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
        if os.getppid() != parent:
            os._exit(1)


def _say(arguments: threading.ExceptHookArgs) -> None:
    print(f"session ended: {arguments.exc_value}", file=sys.stderr, flush=True)
