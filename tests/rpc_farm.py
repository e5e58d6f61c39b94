"""A tracker and devices on loopback, in processes of their own, for tests of measuring over RPC."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from autofuse.measure.server import ServeError, check_tracker

KEY = "test-device"


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def small_network(path: Path) -> None:
    """Write a network of one product and a relu: little to analyse, little to measure."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weights = numpy_helper.from_array(np.random.default_rng(0).normal(size=(64, 64)).astype(np.float32), "w")
    nodes = [helper.make_node("MatMul", ["x", "w"], ["y"]), helper.make_node("Relu", ["y"], ["z"])]
    value = helper.make_tensor_value_info
    graph = helper.make_graph(nodes, "small", [value("x", TensorProto.FLOAT, [32, 64])],
                              [value("z", TensorProto.FLOAT, [32, 64])], [weights])  # fmt: skip
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), str(path))


class Farm:
    """Processes that end with the farm, with all that they started."""

    def __init__(self) -> None:
        self._processes: list[subprocess.Popen[Any]] = []
        self.port = free_port()
        self.folder = Path(tempfile.mkdtemp(prefix="farm-"))  # of all temporary files: who is killed leaves some
        self._start(sys.executable, "-m", "tvm.exec.rpc_tracker", "--host", "127.0.0.1", "--silent",
                    "--port", str(self.port), "--port-end", str(self.port + 1))  # fmt: skip
        for _ in range(300):
            with contextlib.suppress(ServeError):
                check_tracker("127.0.0.1", self.port)
                return
            time.sleep(0.1)
        raise RuntimeError("the tracker does not start")

    def _start(self, *command: str, **options: Any) -> subprocess.Popen[Any]:
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, **options}
        environment = {**os.environ, "TMPDIR": str(self.folder)}
        process = subprocess.Popen(command, start_new_session=True, env=environment, **quiet)
        self._processes.append(process)
        return process

    def serve(self, key: str = KEY, threads: int = 2, more: Sequence[str] = ()) -> subprocess.Popen[Any]:
        """A device; its process when the tracker has it to give. more: options of `autofuse serve`."""
        before = self.free(key)
        code = "from autofuse.cli import main; main()"
        process = self._start(sys.executable, "-c", code, "serve", "--tracker", f"127.0.0.1:{self.port}", "--key", key,
                              "--threads", str(threads), "--port", str(free_port()), *more,
                              stdout=subprocess.PIPE, text=True)  # fmt: skip
        assert process.stdout is not None
        line = process.stdout.readline()
        assert key in line, line
        for _ in range(100):
            if self.free(key) > before:
                return process
            time.sleep(0.1)
        raise RuntimeError("the device does not register")

    def free(self, key: str) -> int:
        """Devices that the tracker has to give."""
        from tvm.rpc.client import TrackerSession

        tracker = TrackerSession(("127.0.0.1", self.port))
        try:
            return int(tracker.summary()["queue_info"].get(key, {}).get("free", 0))
        finally:
            tracker.close()

    def serve_plain(self, key: str) -> None:
        """A server as TVM itself starts it."""
        port = free_port()
        self._start(sys.executable, "-m", "tvm.exec.rpc_server", "--host", "127.0.0.1", "--port", str(port),
                    "--port-end", str(port + 1), "--tracker", f"127.0.0.1:{self.port}", "--key", key)  # fmt: skip
        for _ in range(300):
            if self.free(key):
                return
            time.sleep(0.1)
        raise RuntimeError("the server does not register")

    def close(self) -> None:
        for process in self._processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def farm() -> Iterator[Farm]:
    made = Farm()
    try:
        yield made
    finally:
        made.close()
