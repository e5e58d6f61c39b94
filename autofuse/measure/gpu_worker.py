"""Measuring GPU kernels: the handlers of the children that build and that run. The first needs TVM.

What a builder calls a library is a JSON file here, with code in the form that the device takes, and its launches.
Times are the device's own, from its events; two reference kernels run beside every sample, as on a CPU.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.device.choose import all_devices, device_of, first_device
from autofuse.device.choose import session as session_with
from autofuse.device.session import Program, Session
from autofuse.errors import TargetError
from autofuse.measure.child import Handler
from autofuse.measure.jobs import ArgumentSpec, MeasureJob, fill_inputs
from autofuse.measure.outputs import compare, poison
from autofuse.measure.timing import Steadiness, Timed, sample_runs
from autofuse.target.needs import CODE_MAKERS

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


def builder(form: str) -> Handler:
    """The handler of build requests (`builder.BuildRequest`): code, in a form, scheduled for the request's GPU."""
    import tvm

    from autofuse.codegen.digest import tir_digest
    from autofuse.codegen.transport import from_text

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        func = from_text(request["payload"])
        if tir_digest(func) != request["tir_digest"]:
            raise ValueError("the scheduled code does not survive its text form")
        content = json.dumps(code_file(func, tvm.target.Target(request["target"]), form))
        library = Path(request["library"])
        temporary = library.with_name(f"partial-{library.name}")
        temporary.write_text(content, encoding="utf-8")
        temporary.replace(library)
        return {}

    return handle


def reference_builder() -> Handler:
    """The handler of requests for the code of the reference kernels (target, form): the content of a runner's file."""
    import tvm

    from autofuse.measure.gpu_references import references
    from autofuse.target.registry import resolve

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        target: tvm.target.Target = resolve(request["target"]).tvm_target()
        return {name: code_file(func, target, request["form"]) for name, func in references().items()}

    return handle


def code_file(func: Any, target: Any, form: str) -> dict[str, Any]:
    """The content of a library's file: code of a scheduled function in a form (text, or bytes in base 64), launches."""
    from importlib import import_module

    from autofuse.codegen.amdgpu import opencl_source
    from autofuse.target.registry import KINDS

    if form == "opencl":
        source, launches = opencl_source(func, target)
        return {"source": source, "launches": [asdict(launch) for launch in launches]}
    made = import_module(KINDS[str(target.kind.name)].builder).compile_device(func, target)
    if not made.linked:
        raise TargetError(f"nothing here makes code that the card loads: {CODE_MAKERS[form]}")
    return {"code": base64.b64encode(made.code).decode(), "launches": [asdict(launch) for launch in made.launches]}


def code_of(content: Mapping[str, Any]) -> bytes:
    """The code in a library's file."""
    return str(content["source"]).encode() if "source" in content else base64.b64decode(content["code"])


def kernels(wanted: str) -> Handler:
    """The handler of a child that runs kernels on the device that `wanted` names.

    A request has source (or code), launches, and arrays: paths of .npy files, overwritten with what they hold after.
    """
    session = session_with(device_of(wanted))

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        arrays = [np.load(path, allow_pickle=False) for path in request["arrays"]]
        after, seconds = session.run(code_of(request), request["launches"], arrays)
        for path, array in zip(request["arrays"], after, strict=True):
            np.save(path, array)
        return {"seconds": seconds, "platform": session.device.platform, "device": session.device.name}

    return handle


def lister() -> Handler:
    """The handler of requests for the devices that run code of a kind of target: see `gpu_runner.devices_here`."""
    return lambda request: {"devices": [[d.text, d.title] for d in all_devices(request["kind"])]}


def describer() -> Handler:
    """The handler of requests for a device (kind, forms, device: a name or ""): see `gpu_runner.device_here`."""

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        named, kind = request["device"], request["kind"]
        return asdict(device_of(named) if named else first_device(kind, request["forms"]))

    return handle


def runner(wanted: str, references_file: str = "") -> Handler:
    """The handler of measuring jobs on the device that `wanted` names, see `gpu_runner.GpuRunner`."""
    session = session_with(device_of(wanted))
    references = {name: _timed(program) for name, program in reference_programs(session, references_file).items()}
    steadiness = Steadiness()

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        job = MeasureJob.from_dict(request)
        content = json.loads(Path(job.library).read_text(encoding="utf-8"))
        with session.program(code_of(content), content["launches"], arrays_of(job.arguments, job.seed)) as program:
            program.launch()
            wrong = wrong_outputs(job, program)
            if wrong:
                return {"status": "wrong", "message": wrong}
            found = sample_runs(_timed(program), references, job.reference, job.limits, steadiness=steadiness)
        return {"status": "ok", "samples": found.kernel, "references": found.references}

    return handle


def checker(wanted: str) -> Handler:
    """The handler of jobs that are run once, not timed: what is wrong with the outputs, "" if nothing."""
    session = session_with(device_of(wanted))

    def handle(request: dict[str, Any]) -> dict[str, Any]:
        job = MeasureJob.from_dict(request)
        content = json.loads(Path(job.library).read_text(encoding="utf-8"))
        with session.program(code_of(content), content["launches"], arrays_of(job.arguments, job.seed)) as program:
            program.launch()
            return {"wrong": wrong_outputs(job, program)}

    return handle


def reference_programs(session: Session, file: str = "") -> dict[str, Program]:
    """The reference kernels, memory first, as on a CPU. A device that takes no OpenCL C needs `file`."""
    out = np.zeros(_LANES, np.float32)
    arrays: Mapping[str, NDArray[Any]] = {
        "memory": np.ones(_FLOATS, np.float32), "arithmetic": np.linspace(0.5, 1.5, 4, dtype=np.float32),
    }  # fmt: skip
    if session.form != "opencl" and not file:
        raise TargetError(f"{session.device.driver} needs the code of the reference kernels")
    contents = json.loads(Path(file).read_text(encoding="utf-8")) if file else {}
    found = {}
    for name, data in arrays.items():
        launch = {
            "kernel": name, "workgroups": [_LANES // _GROUP, 1, 1], "threads": [_GROUP, 1, 1], "arguments": [0, 1],
        }  # fmt: skip
        content = contents.get(name, {"source": _REFERENCES, "launches": [launch]})
        found[name] = session.program(code_of(content), content["launches"], [data, out])
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
