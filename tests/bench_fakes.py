"""Peers that misbehave on purpose, for the benchmark's tests. Loaded by name in the engines' processes."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from autofuse.bench.peer import Array, Peer, Workload


class Exact(Peer):
    """Gives what its options say, in about a millisecond."""

    def prepare(self, workload: Workload) -> float:
        self.inputs = workload.inputs()
        return 0.25

    def run_once(self) -> None:
        time.sleep(0.001)

    def outputs(self) -> list[Array]:
        return [np.full((1, 10), 7.0, dtype=np.float32)]

    def kernels(self) -> int | None:
        return 3


class Missing(Exact):
    @classmethod
    def available(cls) -> str | None:
        return "libnothing is not installed: pip install nothing"


class RaisesInPrepare(Exact):
    def prepare(self, workload: Workload) -> float:
        raise RuntimeError("operator Foo is not supported\nand a second line\nand a third")


class Segfaults(Exact):
    def run_once(self) -> None:
        print("last words", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)


class DiesLater(Exact):
    """Gets through preparation, dies in the rounds."""

    calls = 0

    def run_once(self) -> None:
        time.sleep(0.001)
        self.calls += 1
        if self.calls > 12:
            os._exit(3)


class Hangs(Exact):
    def prepare(self, workload: Workload) -> float:
        time.sleep(60)
        return 60.0


class Chatty(Exact):
    """Prints on standard output, where the replies go, through Python and past it."""

    def run_once(self) -> None:
        print("hello from Python")
        os.write(1, b'{"ok": false, "error": "not a reply"}\n')


class WrongShape(Exact):
    def outputs(self) -> list[Array]:
        return [np.zeros((10,), dtype=np.float32)]


class NotAPeer:
    pass
