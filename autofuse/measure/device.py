"""What runs in the child process that drives one device: takes jobs, has them run there over TVM's RPC. Needs TVM.

Requests: {"connect": true} takes a free device from the tracker; a job as in the local runner measures on it. The
answer {"status": "lost"} says that the device, or the session there, is gone; the next request has to be a connect.
"""

from __future__ import annotations

import functools
import json
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import tvm
from numpy.typing import NDArray
from tvm import rpc

from autofuse.codegen.link import linker
from autofuse.measure.child import Handler
from autofuse.measure.cold import copies_needed, weight_bytes
from autofuse.measure.jobs import MeasureJob
from autofuse.measure.references import FILL, NAMES, compile_references, reference_arrays
from autofuse.measure.server import COLD, COLD_RUN, DEADLINE, DESCRIBE, GPU_MEASURE
from autofuse.measure.timing import Samples, Steadiness, Timed, sample_runs
from autofuse.measure.worker import answer_of, kernel_arrays, wrong_outputs

#: Seconds beside a kernel's own that its device may take: the process that measures may have to be started again.
_LEAST = 40.0


def factory(host: str, port: str, key: str) -> Handler:
    """The handler of one device of `key` at a time."""
    devices: list[Device | GpuDevice] = []

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        if "connect" in request:
            devices.clear()
            session = rpc.connect_tracker(host, int(port)).request(key, max_retry=3)
            try:
                describe = session.get_function(DESCRIBE)
            except AttributeError:
                return {"status": "foreign"}
            description = json.loads(describe())
            cpu = description["target"]["kind"] == "llvm"
            devices.append(Device(session, description["target"]) if cpu else GpuDevice(session))
            return {"status": "ok", **description}
        if not devices:  # this process is a new one: the last died
            return {"status": "lost", "message": "the process that drove the device ended"}
        return devices[0].measure(MeasureJob.from_dict(request))

    return handle


@functools.cache
def _references(target: str) -> bytes:
    """The library of the reference kernels for a target, in TVM's words as JSON."""
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        library = Path(folder) / "references.so"
        triple = str(json.loads(target).get("mtriple", ""))
        compile_references(json.loads(target)).export_library(str(library), fcompile=linker(triple))
        return library.read_bytes()


class _Session:
    """A session with a machine that measures, which keeps a deadline itself, and the files that are sent there."""

    def __init__(self, session: Any) -> None:
        self._session = session
        self._deadline = session.get_function(DEADLINE)
        self._numbers = count()

    def _upload(self, file: str) -> str:
        """Send a file; its name there. A loader takes a name that it knows for the library that it has already."""
        name = f"{next(self._numbers)}-{Path(file).name}"
        self._session.upload(file, name)
        return name

    def _alive(self) -> bool:
        """Whether the session still answers; takes the deadline away."""
        try:
            self._deadline(0.0)
        except Exception:
            return False
        return True


class Device(_Session):
    """A session with a device, and the reference kernels there."""

    def __init__(self, session: Any, target: dict[str, Any]) -> None:
        super().__init__(session)
        self._cpu = session.cpu()
        self._steadiness = Steadiness()
        session.upload(bytearray(_references(json.dumps(target))), "references.so")
        module = session.load_module("references.so")
        session.remove("references.so")
        self._references = {name: self._timed(module, name, self._reference_tensors(module, name)) for name in NAMES}

    def _reference_tensors(self, module: Any, name: str) -> list[Any]:
        first, *rest = reference_arrays(name)
        if name == "memory":
            there = tvm.runtime.empty(first.shape, "float32", device=self._cpu)
            module[FILL](there)
        else:
            there = tvm.runtime.tensor(first, device=self._cpu)
        return [there, *(tvm.runtime.tensor(array, device=self._cpu) for array in rest)]

    def _timed(self, module: Any, function: str, tensors: Sequence[Any]) -> Timed:
        """Runs there, timed there: what the way to the device takes is no part of it."""
        evaluators: dict[int, Any] = {}

        def seconds(times: int) -> float:
            if times not in evaluators:
                evaluators[times] = module.time_evaluator(function, self._cpu, number=times)
            return max(float(evaluators[times](*tensors).mean), 1e-9)

        return seconds

    def measure(self, job: MeasureJob) -> dict[str, Any]:
        """Check and time one kernel. Raises what went wrong, as long as the device lives on."""
        begin = time.monotonic()
        try:
            arrays = kernel_arrays(job.arguments, job.seed)
            name = self._upload(job.library)
            tensors = [tvm.runtime.tensor(array, device=self._cpu) for array in arrays]
            begin = time.monotonic()
            self._deadline(job.limits.timeout)  # from here on the device keeps the time itself
            try:
                return self._run(job, name, arrays, tensors)
            finally:
                self._session.remove(name)
        except Exception:
            if self._alive():
                raise
            if time.monotonic() - begin >= 0.98 * job.limits.timeout:
                return {"status": "lost", "timeout": True, "message": f"not done after {job.limits.timeout:g} s"}
            return {"status": "lost", "message": "the session there ended"}
        finally:
            self._alive()

    def _run(
        self, job: MeasureJob, name: str, arrays: Sequence[NDArray[Any]], tensors: Sequence[Any]
    ) -> dict[str, Any]:
        module = self._session.load_module(name)
        module[job.function](*tensors)
        wrong = wrong_outputs(job, tensors)
        if wrong:
            return {"status": "wrong", "message": wrong}
        kernel = self._timed(module, job.function, tensors)
        hot = sample_runs(kernel, self._references, job.reference, job.limits, steadiness=self._steadiness)
        return answer_of(hot, self._cold(job, name, arrays))

    def _cold(self, job: MeasureJob, name: str, arrays: Sequence[NDArray[Any]]) -> Samples | None:
        """Samples with cold weights; the copies are made there, and do not travel."""
        if not copies_needed(weight_bytes(job.arguments, arrays), job.last_cache):
            return None
        try:
            prepare, run = self._session.get_function(COLD), self._session.get_function(COLD_RUN)
        except AttributeError:  # a server of an autofuse that did not have them
            return None
        if not prepare(name, json.dumps(job.to_dict())):
            return None
        try:
            return sample_runs(
                lambda times: max(float(run(times)), 1e-9),
                self._references,
                job.reference,
                job.limits.cold,
                steadiness=self._steadiness,
            )
        finally:
            prepare("", "")


class GpuDevice(_Session):
    """A session with a machine whose GPU measures: jobs and their files go there, results come back."""

    def __init__(self, session: Any) -> None:
        super().__init__(session)
        self._ask = session.get_function(GPU_MEASURE)
        self._ask("")

    def measure(self, job: MeasureJob) -> dict[str, Any]:
        """Check and time one kernel. Raises what went wrong, as long as the machine lives on."""
        try:
            names = [self._upload(path) for path in (job.library, job.expected) if path is not None]
            there = replace(job, library=names[0], expected=names[1] if len(names) > 1 else None)
            self._deadline(job.limits.timeout + _LEAST)
            try:
                result = json.loads(str(self._ask(json.dumps(there.to_dict()))))
                for name in names:
                    self._session.remove(name)
            finally:
                self._deadline(0.0)
        except Exception:
            if self._alive():
                raise
            return {"status": "lost", "message": "the session there ended"}
        if result["status"] != "ok":
            return {"status": result["status"], "message": result["message"]}
        return {"status": "ok", "samples": result["samples"], "references": result["reference_samples"]}
