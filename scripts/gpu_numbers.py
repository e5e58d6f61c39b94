"""Numbers of GPU kernels without a GPU: networks and random models, kernel by kernel as OpenCL C on PoCL, by numpy.

    python scripts/gpu_numbers.py mobilenet_v1 minilm_l6 yolov4_tiny
    python scripts/gpu_numbers.py --seeds 0:20          random models, random plans and configurations
    python scripts/gpu_numbers.py --device gfx906 …     on another OpenCL device: a card through its driver

The schedules are those for the card; PoCL runs them on a CPU in a child process. That checks indices and arithmetic:
not races between threads, not the code for the card, not its arithmetic. Exit code 1 when a number is wrong.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]
#: Of the largest number of a kernel's result, and of a network's.
KERNEL, NETWORK = 2e-5, 1e-3


def look(name: str, analysed: Any, inputs: Sequence[Any], costs: Any, pocl: Any, whole: bool) -> bool:
    """Run a network and say how it went. `whole`: compare its results with ONNX Runtime's too."""
    from gpu_networks import Run, apart, by_onnxruntime, plan

    from autofuse.measure.oracle import NotEvaluated

    began = time.perf_counter()
    run = Run(analysed, inputs, pocl)
    outcomes, stopped = [], ""
    try:
        for outcome in run.kernels(plan(analysed, costs)):
            outcomes.append(outcome)
            if not outcome.error <= KERNEL:
                print(f"{name}: {outcome.group} {outcome.family}[{outcome.config}] is off by {outcome.error:.1e}")
    except NotEvaluated as error:
        stopped = f"; numpy does not know {error}"
    families = Counter(o.family for o in outcomes)
    worst = max((o.error for o in outcomes), default=0.0)
    line = f"{name}: {len(outcomes)} kernels {dict(families)}, largest error {worst:.1e}"
    right = worst <= KERNEL
    if whole and not stopped:
        wanted = by_onnxruntime(analysed, dict(zip(analysed.prepared.input_names, inputs, strict=True)))
        errors = [apart(found, wanted[output]) for output, found in run.results().items()]
        line += f", against ONNX Runtime {max(errors):.1e}"
        right = right and max(errors) <= NETWORK
    print(f"{line}, {time.perf_counter() - began:.0f} s{stopped}", flush=True)
    return right


def main() -> int:
    """See the module's description."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*")
    parser.add_argument("--device", default="", help="part of an OpenCL platform's or device's name, instead of PoCL")
    parser.add_argument("--seeds", default="", help="FIRST:LAST of random models (tests/random_models.py)")
    options = parser.parse_args()
    from gpu_harness import HARDWARE, POCL, Pocl, pocl_missing
    from gpu_networks import LAYERS
    from random_checks import RandomCosts
    from random_models import random_model

    from autofuse.bench.case import random_inputs
    from autofuse.compiler import analyse_for
    from autofuse.cost.gpu import GpuCostModel
    from autofuse.device.opencl import device_called
    from autofuse.errors import AutofuseError

    if options.device:
        device_called(options.device)
    elif missing := pocl_missing():
        print(missing)
        return 2
    right = True
    with tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        pocl = Pocl(Path(folder), options.device or POCL)
        try:
            for network in options.networks:
                analysed = analyse_for(network, HARDWARE)
                drawn = random_inputs(analysed.prepared, 1)
                inputs = [drawn[name] for name in analysed.prepared.input_names]
                right &= look(network, analysed, inputs, GpuCostModel(HARDWARE), pocl, True)
            first, _, last = options.seeds.partition(":")
            for seed in range(int(first), int(last)) if last else ():
                model = random_model(seed, LAYERS, steps=4)
                try:
                    analysed = analyse_for(model.model, HARDWARE)
                except AutofuseError as error:
                    print(f"seed {seed}: refused: {error}")
                    continue
                inputs = [model.inputs[name] for name in analysed.prepared.input_names]
                right &= look(f"seed {seed}", analysed, inputs, RandomCosts(seed), pocl, False)
        finally:
            pocl.close()
    return 0 if right else 1


if __name__ == "__main__":
    raise SystemExit(main())
