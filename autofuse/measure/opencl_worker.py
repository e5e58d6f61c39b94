"""Measuring GPU kernels through OpenCL: the handlers of the children that build and that run. The first needs TVM.

What a builder calls a library is a JSON file here, with OpenCL C and its launches: the device's driver compiles it.
Times are the device's own, from its events; two reference kernels run beside every sample, as on a CPU.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.measure.child import Handler
from autofuse.measure.jobs import ArgumentSpec, MeasureJob, fill_inputs
from autofuse.measure.opencl import Program, Session, device_called
from autofuse.measure.outputs import compare, poison
from autofuse.measure.timing import Steadiness, Timed, sample_runs

# The reference kernels' sizes: chains of multiply-adds in registers, and 64 MiB that are read once, more than an L2.
_STEPS, _LANES, _GROUP = 128, 1 << 18, 256
_FLOATS = 1 << 24
_REFERENCES = f"""
__kernel void arithmetic(__global const float* seed, __global float* out) {{
  float a = seed[0], b = seed[1], c = seed[2], d = seed[3];
  for (int i = 0; i < {_STEPS}; ++i) {{
    a = a * 0.999f + 0.001f; b = b * 0.999f + 0.001f; c = c * 0.999f + 0.001f; d = d * 0.999f + 0.001f;
  }}
  out[get_global_id(0)] = a + b + c + d;
}}
__kernel void memory(__global const float4* data, __global float* out) {{
  float4 sum = (float4)(0.0f);
  for (int i = get_global_id(0); i < {_FLOATS // 4}; i += {_LANES}) sum += data[i];
  out[get_global_id(0)] = sum.x + sum.y + sum.z + sum.w;
}}
"""


def builder() -> Handler:
    """The handler of build requests (`builder.BuildRequest`): OpenCL C of code scheduled for the request's GPU."""
    import tvm

    from autofuse.codegen.amdgpu import opencl_source
    from autofuse.codegen.digest import tir_digest
    from autofuse.codegen.transport import from_text

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        func = from_text(request["payload"])
        if tir_digest(func) != request["tir_digest"]:
            raise ValueError("the scheduled code does not survive its text form")
        source, launches = opencl_source(func, tvm.target.Target(request["target"]))
        content = json.dumps({"source": source, "launches": [asdict(launch) for launch in launches]})
        library = Path(request["library"])
        temporary = library.with_name(f"partial-{library.name}")
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(library)
        return {}

    return handle


def runner(wanted: str) -> Handler:
    """The handler of measuring jobs on the first device whose platform or name contains `wanted`."""
    session = Session(device_called(wanted))
    references = {name: _timed(program) for name, program in reference_programs(session).items()}
    steadiness = Steadiness()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        job = MeasureJob.from_dict(request)
        content = json.loads(Path(job.library).read_text(encoding="utf-8"))
        with session.program(content["source"], content["launches"], arrays_of(job.arguments, job.seed)) as program:
            program.launch()
            wrong = wrong_outputs(job, program)
            if wrong:
                return {"status": "wrong", "message": wrong}
            found = sample_runs(_timed(program), references, job.reference, job.limits, steadiness=steadiness)
        return {"status": "ok", "samples": found.kernel, "references": found.references}

    return handle


def reference_programs(session: Session) -> dict[str, Program]:
    """The reference kernels, memory first, as on a CPU."""
    out = np.zeros(_LANES, np.float32)
    arrays: Mapping[str, NDArray[Any]] = {
        "memory": np.ones(_FLOATS, np.float32), "arithmetic": np.linspace(0.5, 1.5, 4, dtype=np.float32),
    }  # fmt: skip
    found = {}
    for name, data in arrays.items():
        launch = {
            "kernel": name, "workgroups": [_LANES // _GROUP, 1, 1], "threads": [_GROUP, 1, 1], "arguments": [0, 1],
        }  # fmt: skip
        found[name] = session.program(_REFERENCES, [launch], [data, out])
    return found


def _timed(program: Program) -> Timed:
    """Times a program by the device's clock."""

    def seconds(times: int) -> float:
        return max(sum(sum(program.launch()) for _ in range(times)), 1e-9) / times

    return seconds


def arrays_of(arguments: Sequence[ArgumentSpec], seed: int) -> list[NDArray[Any]]:
    """All arguments of a kernel: its inputs, and outputs full of what shows where it did not write."""
    inputs = iter(fill_inputs(arguments, seed))
    return [poison(spec.shape, spec.dtype) if spec.output else next(inputs) for spec in arguments]


def wrong_outputs(job: MeasureJob, program: Program) -> str:
    """What is wrong with a kernel's outputs, "" if nothing or if nothing is expected."""
    if job.expected is None:
        return ""
    outputs = [program.read(i) for i, spec in enumerate(job.arguments) if spec.output]
    with np.load(job.expected, allow_pickle=False) as file:
        expected = [file[f"arr_{i}"] for i in range(len(outputs))]
    return compare(outputs, expected, job.tolerance, job.loose)
