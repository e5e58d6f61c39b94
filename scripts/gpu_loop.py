"""The whole loop on a GPU, once: compile, collect, train, collect more, train, compile again, run. Under ten minutes.

    python scripts/gpu_loop.py --target cuda                          an NVIDIA card, by its own driver
    python scripts/gpu_loop.py --target dcu                           a DCU, by DTK's runtime or its OpenCL
    python scripts/gpu_loop.py --target dcu --device opencl:portable --input-shape input=1,3,64,64
                                                                      PoCL on a CPU stands in: the way, not the times

Prints one JSON object: what is missing here, how far the compiled networks are from ONNX Runtime, what was measured,
how well the predictor says what it has not seen, and what the network takes with the plan of either cost model. Exit
code 1 when a number is wrong. Nothing is kept but what --folder and --page name.
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
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
#: Of the time: collecting first, and again with the predictor. The rest is compiling, training and running. A second
#: collection begins by building what the first one did not come to, which takes its first minute where a CPU stands in.
FIRST, AGAIN = 0.35, 0.25
#: Of the largest number of a result.
RIGHT = 1e-3
#: Calls that are timed, and the seconds after which no more are.
RUNS, RUN_SECONDS = 30, 10.0
COUNTS = ("measured", "failed", "skipped", "left", "rate")


class Commands:
    """Runs commands of the program, and keeps which, and what each took."""

    def __init__(self, limit: float) -> None:
        self.limit = limit
        self.made: list[dict[str, Any]] = []

    def __call__(self, *arguments: object) -> str:
        """What a command prints on stdout; it ends this script where it fails."""
        words = list(map(str, arguments))
        began = time.monotonic()
        command = [sys.executable, "-m", "autofuse", *words]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=self.limit)
        if done.returncode:
            raise SystemExit(f"autofuse {words[0]}: {done.stderr.strip().splitlines()[-1:] or done.returncode}")
        self.made.append({"command": words, "seconds": round(time.monotonic() - began, 1)})
        return done.stdout


def looked_at(folder: Path, device: str, network: str, shapes: dict[str, tuple[int, ...]] | None) -> dict[str, Any]:
    """A compiled network on the device: error against ONNX Runtime, milliseconds of a call and of its kernels."""
    import numpy as np
    import onnxruntime

    import autofuse as program
    from autofuse.bench.case import random_inputs
    from autofuse.codegen.gpu_executable import GpuExecutable
    from autofuse.frontend import prepare

    prepared = prepare(network, input_shapes=shapes)
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
    calls: list[float] = []
    while len(calls) < RUNS and sum(calls) < RUN_SECONDS:
        begin = time.perf_counter()
        run()
        calls.append(time.perf_counter() - begin)
    kernels = [sum(seconds for _, seconds in model.seconds(**inputs)) for _ in range(5)]
    found = {
        "device": model.device.title, "stand_in": not model.device.gpu, "error": max(errors),
        "call_ms": 1e3 * statistics.median(calls), "kernels_ms": 1e3 * min(kernels),
        "predicted_ms": model.description["predicted_ms"], "kernels": model.kernels,
        "cost_sources": model.description["cost_sources"],
    }  # fmt: skip
    model.close()
    return found


def main() -> int:
    """See the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--target", default="cuda")
    parser.add_argument("--device", default="", help="opencl:NAME, rocm, cuda; default: the first GPU")
    parser.add_argument("--network", default="mobilenet_v1")
    parser.add_argument(
        "--input-shape", action="append", default=[], metavar="NAME=N,...", help="as `autofuse compile`"
    )
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--folder", type=Path, help="keep the store, the predictor and the models here")
    parser.add_argument("--page", type=Path, help="write what came out as a page of Markdown, e.g. docs/gpu-loop.md")
    options = parser.parse_args()
    from autofuse.cli.options import input_shapes

    began = time.monotonic()
    seconds = 60 * options.minutes
    autofuse = Commands(seconds + 300)
    shapes = input_shapes(tuple(options.input_shape))
    network = [options.network, "--target", options.target, *(f"--input-shape={text}" for text in options.input_shape)]
    device = ["--device", options.device] if options.device else []
    with tempfile.TemporaryDirectory(prefix="autofuse-") as temporary:
        folder = options.folder or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        db, predictor = folder / "gpu.db", folder / "predictor"
        doctor = json.loads(autofuse("doctor", "--target", options.target, "--json"))
        report: dict[str, Any] = {
            "target": doctor["target"], "network": options.network, "input_shapes": options.input_shape,
            "missing": [need["what"] for need in doctor["needs"] if not need["found"]],
        }  # fmt: skip

        def compiled(name: str, *how: object) -> dict[str, Any]:
            autofuse("compile", *network, "--json", *how, "-o", folder / name)
            return looked_at(folder / name, options.device, options.network, shapes)

        def collected(part: float, *how: object) -> dict[str, Any]:
            budget = ("--budget", f"{part * seconds:.0f}s")
            counts = json.loads(autofuse("collect", *network, *device, "--db", db, *budget, *how, "--json"))
            return {name: counts[name] for name in COUNTS} | {"records": counts["store"]["ok"]}

        report["analytical"] = compiled("analytical", "--cost-model", "analytical")
        report["collected"] = collected(FIRST, "--configs", 6)
        autofuse("train", "--db", db, "-o", predictor)
        report["collected_again"] = collected(AGAIN, "--predictor", predictor, "--explore", 4)
        autofuse("train", "--db", db, "-o", predictor)
        card = json.loads((predictor / "card.json").read_text(encoding="utf-8"))
        report["predictor"] = {
            "records": card["data"]["records"], "workloads": card["data"]["workloads"],
            "hardware": [h["description"]["name"] for h in card["hardware"]],
            **{name: {k: row[k] for k in ("mape", "within_20", "tau_within")} for name, row in card["metrics"].items()},
        }  # fmt: skip
        report["learned"] = compiled("learned", "--predictor", predictor, "--db", db)
        report["commands"] = [
            {**made, "command": [word.replace(str(folder), "FOLDER") for word in made["command"]]}
            for made in autofuse.made
        ]
        report["minutes"] = round((time.monotonic() - began) / 60, 2)
    print(json.dumps(report, indent=1))
    if options.page is not None:
        from gpu_loop_page import page

        from autofuse.report.results import machine, machine_text, write_text

        write_text(options.page, page(report, machine_text(machine())))
    return 0 if max(report[way]["error"] for way in ("analytical", "learned")) <= RIGHT else 1


if __name__ == "__main__":
    raise SystemExit(main())
