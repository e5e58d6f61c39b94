"""What runs in the child process of the local runner: takes a job, gives samples or what was wrong. Needs TVM."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import tvm
from numpy.typing import NDArray

from autofuse.codegen.threads import stay_at_home
from autofuse.measure.child import Handler
from autofuse.measure.cold import Arena, cold_arguments, in_turn
from autofuse.measure.jobs import ArgumentSpec, MeasureJob, fill_inputs
from autofuse.measure.outputs import compare, poison
from autofuse.measure.references import build_references
from autofuse.measure.timing import Samples, Steadiness, take_samples
from autofuse.schedule.preparations import prepare


def factory() -> Handler:
    """The handler of measuring jobs; the reference kernels are built once, here, by the thread that times."""
    stay_at_home(int(os.environ["TVM_NUM_THREADS"]))
    references = build_references()
    steadiness = Steadiness()
    arena = Arena()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        job = MeasureJob.from_dict(request)
        kernel = tvm.runtime.load_module(job.library)[job.function]
        arrays = kernel_arrays(job.arguments, job.seed)
        tensors = [tvm.runtime.tensor(array) for array in arrays]
        kernel(*tensors)
        wrong = wrong_outputs(job, tensors)
        if wrong:
            return {"status": "wrong", "message": wrong}
        hot = take_samples(lambda: kernel(*tensors), references, job.reference, job.limits, steadiness=steadiness)
        cold = None
        if sets := cold_arguments(job, arrays, tensors, arena):
            run = in_turn(kernel, sets)
            cold = take_samples(run, references, job.reference, job.limits.cold, steadiness=steadiness)
        return answer_of(hot, cold)

    return handle


def answer_of(hot: Samples, cold: Samples | None) -> dict[str, Any]:
    """What the runner is told of a kernel that was timed."""
    answer: dict[str, Any] = {"status": "ok", "samples": hot.kernel, "references": hot.references}
    if cold is not None:
        answer |= {"cold_samples": cold.kernel, "cold_references": cold.references}
    return answer


def checker() -> Handler:
    """The handler of jobs that are run once, not timed: what is wrong with the outputs, "" if nothing.

    The library may be that of a whole program.
    """

    @lru_cache(maxsize=1)
    def module(path: str) -> Any:
        return tvm.runtime.load_module(path)

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        job = MeasureJob.from_dict(request)
        kernel = module(job.library).get_function(job.function, query_imports=True)
        tensors = [tvm.runtime.tensor(array) for array in kernel_arrays(job.arguments, job.seed)]
        kernel(*tensors)
        return {"wrong": wrong_outputs(job, tensors)}

    return handle


def kernel_inputs(arguments: Sequence[ArgumentSpec], seed: int) -> list[NDArray[Any]]:
    """What a kernel is called with: the inputs of `fill_inputs`, each in the form in which the kernel takes it."""
    specs = [spec for spec in arguments if not spec.output]
    filled = fill_inputs(arguments, seed)
    return [prepare(s.preparation, a) if s.preparation else a for s, a in zip(specs, filled, strict=True)]


def kernel_arrays(arguments: Sequence[ArgumentSpec], seed: int) -> list[NDArray[Any]]:
    """All arguments of a kernel: its inputs, and outputs that show where it did not write."""
    inputs = iter(kernel_inputs(arguments, seed))
    return [poison(a.shape, a.dtype) if a.output else next(inputs) for a in arguments]


def wrong_outputs(job: MeasureJob, tensors: Sequence[Any]) -> str:
    """What is wrong with a kernel's outputs among its arguments, "" if nothing or if nothing is expected."""
    if job.expected is None:
        return ""
    outputs = [t.numpy() for t, a in zip(tensors, job.arguments, strict=True) if a.output]
    with np.load(job.expected, allow_pickle=False) as file:
        expected = [file[f"arr_{i}"] for i in range(len(outputs))]
    return compare(outputs, expected, job.tolerance, job.loose)
