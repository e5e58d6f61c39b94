"""The whole loop on a GPU, once: compile, collect, train, compile again, compare. Under ten minutes.

    python scripts/gpu_loop.py --target cuda                          an NVIDIA card, by its own driver
    python scripts/gpu_loop.py --target dcu                           a DCU, by DTK's runtime or its OpenCL
    python scripts/gpu_loop.py --target dcu --device opencl:portable --minutes 6
                                                                      PoCL on a CPU stands in: the way, not the times

Prints one JSON object: what is missing here, how far the compiled networks are from ONNX Runtime, what was measured,
how well the predictor says what it has not seen, and what the network takes with the plan of either cost model. Exit
code 1 when a number is wrong. Nothing is kept but what --folder names.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
#: Of the time: collecting first, and again with the predictor. The rest is compiling, training and running.
FIRST, AGAIN = 0.4, 0.15
#: Of the largest number of a result.
RIGHT = 1e-3
RUNS = 30


def autofuse(*arguments: object, limit: float) -> str:
    """What a command of the program prints on stdout; it ends this script where it fails."""
    command = [sys.executable, "-m", "autofuse", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=limit)
    if done.returncode:
        raise SystemExit(f"autofuse {arguments[0]}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
    return done.stdout


def looked_at(folder: Path, device: str, network: str) -> dict[str, Any]:
    """A compiled network on the device: error against ONNX Runtime, milliseconds of a call and of its kernels."""
    import numpy as np
    import onnxruntime

    import autofuse as program
    from autofuse.bench.case import random_inputs
    from autofuse.codegen.gpu_executable import GpuExecutable
    from autofuse.frontend import prepare

    prepared = prepare(network)
    inputs = random_inputs(prepared, 1)
    session = onnxruntime.InferenceSession(prepared.reference.SerializeToString(), providers=["CPUExecutionProvider"])
    wanted = session.run(list(prepared.output_names), dict(inputs))
    model = program.load(folder)
    assert isinstance(model, GpuExecutable)
    model = model.on(device)
    errors = [
        float(np.abs(have - want).max() / max(1e-3, np.abs(want).max()))
        for have, want in zip(model(**inputs), wanted, strict=True)
    ]
    run = model.timer(**inputs)
    calls = []
    for _ in range(RUNS):
        begin = time.perf_counter()
        run()
        calls.append(time.perf_counter() - begin)
    kernels = [sum(seconds for _, seconds in model.seconds(**inputs)) for _ in range(5)]
    found = {
        "device": model.device.title, "error": max(errors), "call_ms": 1e3 * statistics.median(calls),
        "kernels_ms": 1e3 * min(kernels), "predicted_ms": model.description["predicted_ms"],
        "kernels": model.kernels, "cost_sources": model.description["cost_sources"],
    }  # fmt: skip
    model.close()
    return found


def main() -> int:
    """See the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--device", default="", help="opencl:NAME, rocm, cuda; default: the first GPU")
    parser.add_argument("--network", default="mobilenet_v1")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--folder", type=Path, help="keep the store, the predictor and the models here")
    options = parser.parse_args()
    began = time.monotonic()
    limit = 60 * options.minutes + 300
    device = ["--device", options.device] if options.device else []
    with tempfile.TemporaryDirectory(prefix="autofuse-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        db, predictor = folder / "gpu.db", folder / "predictor"
        doctor = json.loads(autofuse("doctor", "--target", options.target, "--json", limit=limit))
        report: dict[str, Any] = {
            "target": doctor["target"], "network": options.network,
            "missing": [need["what"] for need in doctor["needs"] if not need["found"]],
        }  # fmt: skip
        base = ["compile", options.network, "--target", options.target, "--json"]
        autofuse(*base, "--cost-model", "analytical", "-o", folder / "analytical", limit=limit)
        report["analytical"] = looked_at(folder / "analytical", options.device, options.network)
        collect = ["collect", options.network, "--target", options.target, *device, "--db", db, "--json"]
        seconds = 60 * options.minutes
        counted = autofuse(*collect, "--budget", f"{FIRST * seconds:.0f}s", "--configs", 6, limit=limit)
        report["collected"] = {k: json.loads(counted)[k] for k in ("measured", "failed", "left", "rate")}
        autofuse("train", "--db", db, "-o", predictor, limit=limit)
        more = autofuse(
            *collect, "--predictor", predictor, "--budget", f"{AGAIN * seconds:.0f}s", "--explore", 4, limit=limit
        )
        report["collected_again"] = {k: json.loads(more)[k] for k in ("measured", "failed", "left", "rate")}
        autofuse("train", "--db", db, "-o", predictor, limit=limit)
        card = json.loads((predictor / "card.json").read_text(encoding="utf-8"))
        report["predictor"] = {
            "records": card["data"]["records"], "workloads": card["data"]["workloads"],
            "hardware": [h["description"]["name"] for h in card["hardware"]],
            **{name: {k: row[k] for k in ("mape", "within_20", "tau_within")} for name, row in card["metrics"].items()},
        }  # fmt: skip
        autofuse(*base, "--predictor", predictor, "--db", db, "-o", folder / "learned", limit=limit)
        report["learned"] = looked_at(folder / "learned", options.device, options.network)
        report["minutes"] = round((time.monotonic() - began) / 60, 2)
    print(json.dumps(report, indent=1))
    return 0 if max(report[way]["error"] for way in ("analytical", "learned")) <= RIGHT else 1


if __name__ == "__main__":
    raise SystemExit(main())
