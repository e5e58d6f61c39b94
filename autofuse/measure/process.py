"""The parent's side of a child process that serves requests one at a time: started when needed, again when it died.

A child gets its environment before it starts (TVM reads its thread count once) and is never a fork: a fork after a
parallel kernel ran hangs.
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
from dataclasses import dataclass, field
from typing import IO, Any

from autofuse.errors import AutofuseError
from autofuse.measure.jobs import one_line


class MeasureError(AutofuseError):
    """Nothing can be built or measured on this machine: the child process does not start."""


@dataclass(frozen=True)
class Outcome:
    """How a request ended: `ok` with the handler's answer, `failed` (it raised), `crashed`, `timeout` or `oom`."""

    status: str
    value: Mapping[str, Any] = field(default_factory=dict)
    message: str = ""


class ChildProcess:
    """A process that runs `factory` ("module:function", given `arguments`) and serves requests. Belongs to one thread.

    `environment` is added to this process's own; `start_timeout` in seconds covers imports and set-up.
    """

    def __init__(
        self,
        factory: str,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        start_timeout: float = 180.0,
    ) -> None:
        self._command = [sys.executable, "-m", "autofuse.measure.child", factory, *arguments]
        self._environment = {**os.environ, **(environment or {})}
        self._start_timeout = start_timeout
        self._process: subprocess.Popen[str] | None = None
        self._answers: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        self._errors: IO[bytes] | None = None

    @property
    def pid(self) -> int | None:
        """The child's process number while it runs."""
        return self._process.pid if self._process else None

    def request(self, payload: Mapping[str, Any], timeout: float) -> Outcome:
        """Have one request served within `timeout` seconds, counted from when the child is ready for it."""
        self.start()
        process = self._process
        assert process is not None and process.stdin is not None
        try:
            process.stdin.write(json.dumps(payload) + "\n")
            process.stdin.flush()
            line = self._answers.get(timeout=timeout)
        except queue.Empty:
            self.close()
            return Outcome("timeout", message=f"not done after {timeout:g} s")
        except OSError:
            line = None
        if line is None:
            return self._death()
        answer = json.loads(line)
        if "error" in answer:
            return Outcome(answer["kind"], message=one_line(answer["error"]))
        return Outcome("ok", answer["value"])

    def start(self) -> None:
        """Start the child unless it runs. MeasureError if it does not come up."""
        if self._process is not None and self._process.poll() is None:
            return
        self.close()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 (lives as long as the child)
        self._answers = queue.SimpleQueue()
        self._process = subprocess.Popen(
            self._command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=self._environment,
            encoding="utf-8",
        )
        threading.Thread(target=_pump, args=(self._process.stdout, self._answers), daemon=True).start()
        try:
            line = self._answers.get(timeout=self._start_timeout)
        except queue.Empty:
            line = None
        if line is None:
            last = self._last_error()
            self.close()
            raise MeasureError(f"the child process {self._command[3]} does not start: {last}")

    def _last_error(self) -> str:
        assert self._errors is not None
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return one_line(lines[-1]) if lines else f"not ready after {self._start_timeout:g} s"

    def _death(self) -> Outcome:
        assert self._process is not None
        code = self._process.wait()
        self.close()
        if code >= 0:
            return Outcome("crashed", message=f"the process ended with exit code {code}")
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        if name == "SIGKILL":  # nobody here sends it before the child is given up
            return Outcome("oom", message="killed by the system (SIGKILL), most likely out of memory")
        return Outcome("crashed", message=f"the process died of {name}")

    def close(self) -> None:
        """Kill the child, if it runs, and wait for it."""
        if self._process is not None:
            process, self._process = self._process, None
            process.kill()
            process.wait()
            if process.stdin is not None:
                with contextlib.suppress(OSError):  # a request that was never read
                    process.stdin.close()
        if self._errors is not None:
            self._errors.close()
            self._errors = None


def _pump(stream: IO[str] | None, answers: queue.SimpleQueue[str | None]) -> None:
    """Move lines to the queue, then None: a queue can be waited on with a timeout, on every platform."""
    assert stream is not None
    with stream:
        for line in stream:
            answers.put(line)
    answers.put(None)
