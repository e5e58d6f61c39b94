"""What unscheduled loops give: takes groups of a model and their inputs, gives their outputs as stored.

For the check of a compile, which has nothing else to compare with where numpy has no form of an operator. Collection
times nothing that only these loops could confirm: they are slow, and TVM's as well.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from autofuse.graph.model import Group
from autofuse.measure.builder import COMPILER, SETUP
from autofuse.measure.jobs import MeasureJob
from autofuse.measure.kernels import kernel_request
from autofuse.measure.local import thread_environment
from autofuse.measure.process import ChildProcess, Outcome

if TYPE_CHECKING:
    from autofuse.compiler import Analysed


class UnscheduledLoops:
    """Compiles and runs a model's groups as fusing them left them, in child processes. Close it after use.

    Those of more than `largest` scalar operations take too long and are not run. `timeout` in seconds.
    """

    def __init__(self, model: Analysed, largest: float = 5e8, timeout: float = 60.0) -> None:
        self._model = model
        self._largest = largest
        self._timeout = timeout
        self._compiler = ChildProcess(COMPILER, SETUP)
        self._worker = ChildProcess("autofuse.measure.worker:evaluator", environment=thread_environment(1))

    def outputs(self, group: Group, inputs: Sequence[NDArray[Any]]) -> list[NDArray[Any]] | None:
        """The outputs for `inputs`, None if the group is too large. RuntimeError, one line, if they do not run."""
        if group.work.flops > self._largest:
            return None
        with tempfile.TemporaryDirectory(prefix="autofuse-") as name:
            folder = Path(name)
            request = kernel_request(self._model, group, self._model.fuser.fuse(group), "", "", folder / "plain.so")
            _need(self._compiler.request(asdict(request), self._timeout), "compile")
            given = folder / "inputs.npz"
            np.savez(given, *inputs)
            job = MeasureJob("", "", request.library, request.function, request.arguments, str(given))
            asked = {**job.to_dict(), "outputs": str(folder / "outputs.npz")}
            _need(self._worker.request(asked, self._timeout), "run")
            with np.load(asked["outputs"], allow_pickle=False) as file:
                return [file[f"arr_{i}"] for i in range(len(group.outputs))]

    def close(self) -> None:
        """End the child processes."""
        self._compiler.close()
        self._worker.close()


def _need(outcome: Outcome, what: str) -> None:
    if outcome.status != "ok":
        raise RuntimeError(f"the unscheduled group does not {what}: {outcome.message}")
