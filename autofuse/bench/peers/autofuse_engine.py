"""autofuse itself: a saved executable, or one compiled here, saved and read back: what is timed is what would ship."""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

from autofuse.bench.peer import Array, Peer, Workload
from autofuse.bench.peers.tvm_pipeline import model_source


class AutofusePeer(Peer):
    """Options: `executable` (the path of a saved executable), else `compile` (keyword arguments of `autofuse.compile`).

    Calls go through the public `exe(*arrays)`, numpy in and out, as for ONNX Runtime. With `executable`, `compile_s`
    is the time to load it, unless the option `compile_s` brings the time that compiling took.
    """

    def prepare(self, workload: Workload) -> float:
        import autofuse

        options = dict(workload.options)
        self._inputs = list(workload.inputs().values())
        self._folder = tempfile.TemporaryDirectory(prefix="autofuse-bench-")
        start = time.perf_counter()
        path = options.get("executable")
        if path is None:
            arguments = {"threads": workload.threads, **options.get("compile", {})}
            made = autofuse.compile(model_source(workload), **arguments)
            path = str(Path(self._folder.name) / "model.so")
            made.save(path)
            del made
        self._executable: Any = autofuse.load(path)
        return float(options.get("compile_s") or time.perf_counter() - start)

    def run_once(self) -> None:
        self._last = self._executable(*self._inputs)

    def outputs(self) -> list[Array]:
        return list(self._last)

    def kernels(self) -> int | None:
        count = getattr(self._executable, "kernels", None)
        if count is None:
            return None
        return int(count) if isinstance(count, int) else len(count)
