"""One engine's process: JSON lines in → JSON lines out (`python -m autofuse.bench.worker`).

Requests, one object a line, each answered by one line:

    {"op": "prepare", "peer": "module:Class", "workload": {...}}   → {"ok": true, "compile_s": 1.2}
    {"op": "run", "calls": 5}                                      → {"ok": true, "seconds": [...]}
    {"op": "outputs", "path": "o.npz"}                             → {"ok": true, "kernels": 31}  (arrays "0", "1", ...)

A failure is `{"ok": false, "error": "one line"}`. The process ends when standard input does.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np

from autofuse.bench.peer import Peer, Workload

_LINE_LIMIT = 400


def load_peer(spec: str) -> type[Peer]:
    """The peer class that "module:Class" names."""
    module, _, name = spec.partition(":")
    found = getattr(importlib.import_module(module), name, None)
    if not (isinstance(found, type) and issubclass(found, Peer)):
        raise ValueError(f"{spec} is not a Peer class")
    return found


class Worker:
    """Answers requests; holds the one peer of this process."""

    def __init__(self) -> None:
        self._peer: Peer | None = None
        self._ran = False

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """The reply to one request; whatever goes wrong is in the reply, never raised."""
        try:
            return {"ok": True, **self._dispatch(request)}
        except Exception as error:
            return {"ok": False, "error": one_line(error)}

    def _dispatch(self, request: Mapping[str, Any]) -> dict[str, Any]:
        operation = request["op"]
        if operation == "prepare":
            return self._prepare(load_peer(request["peer"]), Workload.from_json(request["workload"]))
        if self._peer is None:
            raise RuntimeError(f"{operation} before prepare")
        if operation == "run":
            seconds = self._peer.run(int(request["calls"]))
            self._ran = True
            return {"seconds": seconds}
        if operation == "outputs":
            if not self._ran:
                self._peer.run(1)
                self._ran = True
            write_arrays(Path(request["path"]), self._peer.outputs())
            return {"kernels": self._peer.kernels()}
        raise ValueError(f"unknown request {operation!r}")

    def _prepare(self, kind: type[Peer], workload: Workload) -> dict[str, Any]:
        reason = kind.available()
        if reason is not None:
            return {"ok": False, "error": reason}
        peer = kind()
        seconds = peer.prepare(workload)
        self._peer = peer
        return {"compile_s": seconds}


def write_arrays(path: Path, arrays: list[Any]) -> None:
    """Arrays under "0", "1", ... into an `.npz`, whole or not at all."""
    partial = path.with_name(path.name + ".part")
    with open(partial, "wb") as file:
        # numpy's stub does not see that ** can only bring arrays here.
        np.savez(file, **{str(index): np.asarray(array) for index, array in enumerate(arrays)})  # type: ignore[arg-type]
    os.replace(partial, path)


def one_line(error: BaseException) -> str:
    """An error as one line of bounded length: its kind, unless it is the project's own, and its last telling line."""
    from autofuse.errors import AutofuseError

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # Errors that come out of C++ carry their stack trace first and say what happened at the end.
    text = "" if not lines else lines[-1] if lines[0].startswith("Traceback") else lines[0]
    if not isinstance(error, AutofuseError):
        text = f"{type(error).__name__}: {text}" if text else type(error).__name__
    return text if len(text) <= _LINE_LIMIT else text[: _LINE_LIMIT - 3] + "..."


def serve(requests: IO[str], replies: IO[str]) -> None:
    """Answers every line of `requests` until it ends."""
    worker = Worker()
    for line in requests:
        replies.write(json.dumps(worker.answer(json.loads(line))) + "\n")
        replies.flush()


def main() -> None:
    # Libraries print where they like: the replies get a private copy of standard output, and the rest goes to
    # standard error, which the parent keeps to explain a crash.
    private = os.dup(1)
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    with os.fdopen(private, "w", encoding="utf-8") as replies, contextlib.suppress(BrokenPipeError):
        serve(sys.stdin, replies)
    # Skips destructors of thread pools and virtual machines, which have nothing to save and may hang.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
