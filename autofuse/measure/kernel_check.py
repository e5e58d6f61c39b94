"""Are a program's kernels right? Takes them as they were built, gives what is wrong with each, by name.

TVM can compile a legal-looking schedule to wrong code without a word. What is compared is what will run: the program's
own machine code, every kernel on random operands, in a child process, with numpy's results (`oracle.py`).
"""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

import numpy as np

from autofuse.codegen.kernels import Kernel
from autofuse.cost.model import Candidate
from autofuse.errors import AutofuseError, RecordError
from autofuse.graph.keys import canonical_text, workload_key
from autofuse.measure.builder import argument_specs
from autofuse.measure.jobs import MeasureJob, fill_inputs, one_line
from autofuse.measure.kernels import KernelSource, constant_positions, index_ranges, prepared_shapes
from autofuse.measure.local import thread_environment
from autofuse.measure.process import ChildProcess, Outcome
from autofuse.measure.rounding import loose_share

if TYPE_CHECKING:
    from autofuse.compiler import Analysed
    from autofuse.target.fingerprint import HardwareRow

log = logging.getLogger("autofuse")

_TIMEOUT = 60.0


class WrongKernelError(AutofuseError):
    """A kernel was built but gives other numbers than numpy, or does not end well."""


class KernelCheck:
    """Checks kernels of one model; those that it has found right are not looked at again. Close it after use.

    right, wrong, unchecked: names of kernels so far. The unchecked ones have an operator that is too much for numpy.
    worker: what runs kernels, by default on this CPU; hardware: what a failure is recorded of, by default the target.
    """

    def __init__(
        self, model: Analysed, worker: ChildProcess | None = None, hardware: HardwareRow | None = None
    ) -> None:
        self.right: list[str] = []
        self.wrong: list[str] = []
        self.unchecked: list[str] = []
        self._model = model
        self._failures: list[tuple[Kernel, Outcome]] = []
        self._source = KernelSource([model])
        self._worker = worker or ChildProcess(
            "autofuse.measure.worker:checker", environment=thread_environment(model.target.threads)
        )
        self._hardware = hardware

    def __call__(self, kernels: Iterable[Kernel], code: bytes) -> dict[str, Exception]:
        """Name → what is wrong, for the kernels of a program whose library is `code`. Unscheduled loops are right."""
        with tempfile.TemporaryDirectory(prefix="autofuse-") as name:
            library = Path(name) / "model.so"
            library.write_bytes(code)
            return self.failing(kernels, lambda _: library)

    def failing(self, kernels: Iterable[Kernel], library_of: Callable[[Kernel], Path]) -> dict[str, Exception]:
        """Name → what is wrong, for kernels whose libraries `library_of` gives; a folder of theirs is written to."""
        failures: dict[str, Exception] = {}
        known = {*self.right, *self.wrong, *self.unchecked}
        for kernel in kernels:
            if kernel.func is None or kernel.plain or kernel.name in known:
                continue
            known.add(kernel.name)
            said = self._look(kernel, library_of(kernel))
            if said:
                self.wrong.append(kernel.name)
                failures[kernel.name] = WrongKernelError(said)
        return failures

    def _look(self, kernel: Kernel, library: Path) -> str:
        """What is wrong with a kernel, "" if nothing or if nobody knows."""
        assignment = kernel.assignment
        group = assignment.group
        specs = argument_specs(
            kernel.func,
            len(group.outputs),
            index_ranges(group),
            prepared_shapes(group, kernel.prepared),
            constant_positions(group),
        )
        seed = 1
        candidate = Candidate(group, assignment.family, assignment.config)
        try:
            expected = self._source.reference(candidate, fill_inputs(specs, seed))
        except RuntimeError:
            self.unchecked.append(kernel.name)
            return ""
        file = library.with_name("expected.npz")
        np.savez(file, *expected)
        job = MeasureJob(
            "", assignment.config.text, str(library), kernel.name, specs, str(file), loose=loose_share(group), seed=seed
        )
        outcome = self._worker.request(job.to_dict(), _TIMEOUT)
        said = outcome.value["wrong"] if outcome.status == "ok" else f"{outcome.status}: {outcome.message}"
        if not said:
            self.right.append(kernel.name)
        elif outcome.status == "ok":
            self._failures.append((kernel, Outcome("wrong", message=str(said))))
        elif outcome.status != "failed":  # that says something of the check, not of the kernel
            self._failures.append((kernel, outcome))
        return str(said)

    def keep(self, db: str | Path) -> int:
        """Record what failed in the store `db`, so that it is not taken again; how many records that gave.

        A store that cannot be written is told of in a warning; one that is kept for evaluation stays as it is.
        """
        if not self._failures or str(db) == "none":
            return 0
        from autofuse.codegen.digest import tir_digest
        from autofuse.records import Form, Record, RecordedHardware, Workload, open_store
        from autofuse.records.groups import group_to_text
        from autofuse.records.identity import identity_of
        from autofuse.records.software import software_versions
        from autofuse.target.registry import hardware_row

        hardware = RecordedHardware.of(self._hardware or hardware_row(self._model.target))
        versions = software_versions()
        try:
            with open_store(db) as store:
                if store.evaluation_only:
                    return 0
                store.add_hardware(hardware)
                for kernel, outcome in self._failures:
                    made = kernel.assignment
                    group = made.group
                    about = identity_of(
                        Candidate(group, made.family, made.config), workload_key(group), hardware.digest
                    )
                    workload = Workload(about.workload, canonical_text(group), group.label)
                    store.add_workload(workload, [group.graph.name])
                    store.add_form(Form(about.workload, about.layouts, group_to_text(group)))
                    record = Record(
                        about.workload, about.hardware, about.family, about.family_version, about.config, about.layouts,
                        outcome.status, one_line(outcome.message), tvm_version=versions["tvm"],
                        autofuse_version=versions["autofuse"], tir_digest=tir_digest(kernel.func),
                        codegen_version=about.codegen_version,
                    )  # fmt: skip
                    store.add(record)
        except RecordError as error:
            log.warning("what failed its check is not recorded: %s", error)
            return 0
        return len(self._failures)

    def summary(self) -> dict[str, int]:
        """How many kernels were right, wrong (and replaced), and not checked."""
        return {"right": len(self.right), "wrong": len(self.wrong), "unchecked": len(self.unchecked)}

    def close(self) -> None:
        """End the child processes."""
        self._worker.close()

    def __enter__(self) -> KernelCheck:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
