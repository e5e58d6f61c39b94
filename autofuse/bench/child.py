"""An engine's spec → its process, as an object that can be prepared, run and asked for outputs, and that never hangs.

Every failure (the engine is missing, raises, crashes, or does not answer in time) is an `EngineError` of one line.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np

from autofuse.bench.peer import Array, Workload
from autofuse.errors import EngineError
from autofuse.target.pool import SPIN_COUNT, pool_environment

_PACKAGE_ROOT = Path(__file__).resolve().parents[2]
_CLOSE_SECONDS = 3.0
# Besides the time that calls took before: room for a machine that is busy with something else.
_RUN_GRACE_SECONDS = 60.0
_RUN_SLOWDOWN = 20.0


def common_environment(threads: int) -> dict[str, str]:
    """Variables that make any thread pool take `threads` threads, and spin for a millisecond or so before they sleep.

    So does everybody's, TVM's too, within a model and between the calls of a turn; before the next engine's turn all
    have long since been asleep. TVM's pool otherwise takes half of the processors and pins its caller to the first one.
    """
    count = str(threads)
    return {
        **pool_environment(threads),
        "OMP_NUM_THREADS": count,
        "OMP_WAIT_POLICY": "PASSIVE",
        "OMP_PROC_BIND": "false",
        "GOMP_SPINCOUNT": str(25 * SPIN_COUNT),
        "KMP_BLOCKTIME": "1",
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "OPENBLAS_THREAD_TIMEOUT": "4",  # log2 of the cycles that an idle thread spins for
        "PYTHONUNBUFFERED": "1",
    }


class Child:
    """One engine's process. Not for use from several threads; close it (or use `with`) whatever happened."""

    def __init__(self, name: str, peer: str, threads: int, *, environment: Mapping[str, str] | None = None) -> None:
        self.name = name
        self.call_seconds: float | None = None
        self._peer = peer
        # A file, not a pipe: nobody reads it unless the process dies, and a full pipe would stop the engine.
        self._messages = tempfile.TemporaryFile(mode="w+b")  # noqa: SIM115 (closed by `close`)
        path = os.pathsep.join(filter(None, [str(_PACKAGE_ROOT), os.environ.get("PYTHONPATH")]))
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autofuse.bench.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._messages,
            text=True,
            encoding="utf-8",
            env={**os.environ, "PYTHONPATH": path, **common_environment(threads), **(environment or {})},
            # An interrupt from the keyboard goes to the parent alone, which then closes its children in order.
            start_new_session=True,
        )
        self._replies: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        threading.Thread(target=self._read, daemon=True).start()

    def prepare(self, workload: Workload, *, timeout: float) -> float:
        """Loads and compiles the model; returns the peer's own compile seconds."""
        request = {"op": "prepare", "peer": self._peer, "workload": workload.to_json()}
        return float(self._ask(request, timeout)["compile_s"])

    def run(self, calls: int) -> list[float]:
        """Seconds of each of `calls` inferences."""
        expected = calls * (self.call_seconds or 0.0)
        seconds = [
            float(value) for value in self._ask({"op": "run", "calls": calls}, self._patience(expected))["seconds"]
        ]
        self.call_seconds = min(seconds)
        return seconds

    def first_run(self, *, timeout: float) -> float:
        """Seconds of the very first inference, whose length nobody knows yet."""
        self.call_seconds = float(self._ask({"op": "run", "calls": 1}, timeout)["seconds"][0])
        return self.call_seconds

    def outputs(self) -> tuple[list[Array], int | None]:
        """Outputs of the last inference, and the kernels that one launches where the engine tells."""
        with tempfile.TemporaryDirectory(prefix="autofuse-outputs-") as folder:
            path = Path(folder) / "outputs.npz"
            reply = self._ask({"op": "outputs", "path": str(path)}, self._patience(self.call_seconds or 0.0))
            with np.load(path, allow_pickle=False) as stored:
                arrays = [stored[str(index)] for index in range(len(stored.files))]
        return arrays, reply["kernels"]

    def close(self) -> None:
        """Ends the process, by force if it does not end by itself. Does nothing the second time."""
        if self._messages.closed:
            return
        if self._process.stdin is not None and not self._process.stdin.closed:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_CLOSE_SECONDS)
        # Also after an orderly end: compilers that the engine started may linger, and slow down who comes next.
        self._kill()
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._messages.close()

    def __enter__(self) -> Child:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self._kill()
        self.close()

    @staticmethod
    def _patience(expected: float) -> float:
        return _RUN_GRACE_SECONDS + _RUN_SLOWDOWN * expected

    def _read(self) -> None:
        stream = self._process.stdout
        if stream is not None:
            with contextlib.suppress(ValueError, OSError):  # closed meanwhile
                for line in stream:
                    self._replies.put(line)
        self._replies.put(None)

    def _ask(self, request: Mapping[str, Any], timeout: float) -> dict[str, Any]:
        stream = self._process.stdin
        assert stream is not None
        with contextlib.suppress(OSError, ValueError):  # the process is gone: reading says so
            stream.write(json.dumps(request) + "\n")
            stream.flush()
        try:
            line = self._replies.get(timeout=timeout)
        except queue.Empty:
            self._kill()
            raise EngineError(f"{self.name}: no answer to {request['op']!r} within {timeout:.0f} s") from None
        if line is None:
            raise EngineError(f"{self.name}: {self._how_it_ended(str(request['op']))}")
        reply: dict[str, Any] = json.loads(line)
        if not reply["ok"]:
            raise EngineError(f"{self.name}: {reply['error']}")
        return reply

    def _kill(self) -> None:
        # The whole session of the child: an engine may have started compilers of its own.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()

    def _how_it_ended(self, during: str) -> str:
        try:
            code = self._process.wait(_CLOSE_SECONDS)
        except subprocess.TimeoutExpired:
            self._kill()
            return f"closed its pipe during {during!r}"
        how = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
        last = self._last_message()
        return f"its process {how} during {during!r}" + (f" ({last})" if last else "")

    def _last_message(self) -> str:
        self._messages.seek(0)
        lines = self._messages.read()[-4000:].decode("utf-8", "replace").split("\n")
        return next((line.strip()[:200] for line in reversed(lines) if line.strip()), "")
