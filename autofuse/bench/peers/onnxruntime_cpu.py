"""ONNX Runtime on the CPU, through numpy arrays in and out; its threads spin where they wait, as they do by default."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

from autofuse.bench.peer import Array, Peer, Workload, missing_packages, require_onnx


class OnnxRuntimePeer(Peer):
    """`InferenceSession` with every graph optimisation on. Its kernels are counted by its own profile of one call.

    Options: `spinning`, false to send its threads to sleep between parallel regions.
    """

    @classmethod
    def available(cls) -> str | None:
        return missing_packages({"onnxruntime": "onnxruntime"}, "pip install 'autofuse[bench]'")

    def prepare(self, workload: Workload) -> float:
        import onnxruntime

        path = require_onnx(workload, "onnxruntime")
        self._inputs = workload.inputs()
        self._names = list(workload.output_names)
        self._profile_folder = tempfile.TemporaryDirectory(prefix="autofuse-ort-")
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = workload.threads
        settings.inter_op_num_threads = 1
        settings.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
        spinning = "1" if workload.options.get("spinning", True) else "0"
        settings.add_session_config_entry("session.intra_op.allow_spinning", spinning)
        settings.add_session_config_entry("session.inter_op.allow_spinning", "0")
        settings.log_severity_level = 3
        # On for the first call only, to count kernels; `kernels` ends it.
        settings.enable_profiling = True
        settings.profile_file_prefix = str(Path(self._profile_folder.name) / "profile")
        start = time.perf_counter()
        self._session = onnxruntime.InferenceSession(str(path), settings, providers=["CPUExecutionProvider"])
        seconds = time.perf_counter() - start
        self._last: list[Any] = self._session.run(self._names, self._inputs)
        self._kernels = self._end_profile()
        return seconds

    def run_once(self) -> None:
        self._last = self._session.run(self._names, self._inputs)

    def outputs(self) -> list[Array]:
        return list(self._last)

    def kernels(self) -> int | None:
        return self._kernels

    def _end_profile(self) -> int:
        profile = Path(self._session.end_profiling())
        events = json.loads(profile.read_text(encoding="utf-8"))
        self._profile_folder.cleanup()
        return sum(event.get("cat") == "Node" and event["name"].endswith("_kernel_time") for event in events)
