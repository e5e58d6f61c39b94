"""Collection: takes candidates, builds, checks and times those that the store does not hold yet, and keeps records.

Candidates go through in batches: all builds of a batch end before its first kernel is timed. Each record is added as
soon as it is there; a run that was interrupted, or killed, is resumed by running it again.
"""

from __future__ import annotations

import hashlib
import signal
import tempfile
import threading
import time
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import count, takewhile
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from autofuse.cost.model import Candidate
from autofuse.measure.builder import Builder, BuildRequest, BuildResult
from autofuse.measure.jobs import ArgumentSpec, MeasureJob, MeasureResult, fill_inputs, one_line
from autofuse.measure.order import CollectItem
from autofuse.measure.passes import agrees, with_samples
from autofuse.measure.replay import candidate_text
from autofuse.measure.rounding import loose_share
from autofuse.measure.runner import Runner
from autofuse.measure.settings import CollectSettings, CollectStats
from autofuse.records.groups import group_to_text
from autofuse.records.identity import identity_of
from autofuse.records.record import Form, Identity, Record, RecordedHardware, Workload
from autofuse.records.software import software_versions
from autofuse.records.store import RecordStore

Arrays = Sequence[NDArray[Any]]
# Gives the request to build a candidate into the library at a path; the identity's text names the candidate.
RequestOf = Callable[[CollectItem, str, Path], BuildRequest]
# Gives the right outputs of a candidate for its inputs, None if the candidate is not to be checked.
Reference = Callable[[Candidate, Arrays], Arrays | None]
# Bytes of right outputs that are kept: a group's configurations come in several batches.
_OUTPUTS_KEPT = 1 << 30
_UNCHECKED = "not checked: the reference gave no outputs"
# Operations a byte above which a kernel is taken to be bound by arithmetic; machines of today lie between 2 and 20.
_BALANCE = 4.0


def nearer_reference(candidate: Candidate, last_cache: int = 0) -> str:
    """The reference kernel that a candidate is more like: memory where its time goes into waiting for that.

    It reads and writes many bytes for each operation, and more of them than half of the last cache (bytes; 0: unknown)
    holds. What stays in a cache slows down with its core, not with memory.
    """
    group = candidate.group
    tensors = group.graph.tensors
    moved = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
    return "memory" if group.work.flops <= _BALANCE * moved and 2 * moved > last_cache else "arithmetic"


def last_cache(hardware: RecordedHardware) -> int:
    """Bytes of the outermost cache that a CPU's hardware row names; 0 if it names none."""
    sizes = (hardware.detail.get(name) for name in ("l3_bytes", "l2_bytes"))
    return next((size for size in sizes if isinstance(size, int) and size > 0), 0)


def collect(
    items: Iterable[CollectItem],
    store: RecordStore,
    runner: Runner,
    builder: Builder,
    hardware: RecordedHardware,
    request: RequestOf,
    reference: Reference | None = None,
    settings: CollectSettings | None = None,
    progress: Callable[[CollectStats, str], None] | None = None,
) -> CollectStats:
    """Measure `items` in the order given (see `order.in_order`) and keep a record of each, failures too.

    `progress` is told the counts and what was just done, after every candidate. The first interrupt (Ctrl-C) ends the
    run after the kernel being measured, with everything kept; the second raises KeyboardInterrupt.
    """
    run = _Collection(store, runner, builder, hardware, request, reference, settings or CollectSettings(), progress)
    with _interrupts(run), tempfile.TemporaryDirectory(prefix="autofuse-") as folder:
        return run.go(items, Path(folder))


@contextmanager
def _interrupts(run: _Collection) -> Iterator[None]:
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)

    def handle(number: int, frame: FrameType | None) -> None:
        if run.stop:
            raise KeyboardInterrupt
        run.stop = True

    signal.signal(signal.SIGINT, handle)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class _Collection:
    """One run; `stop` is set from the signal handler."""

    def __init__(
        self,
        store: RecordStore,
        runner: Runner,
        builder: Builder,
        hardware: RecordedHardware,
        request: RequestOf,
        reference: Reference | None,
        settings: CollectSettings,
        progress: Callable[[CollectStats, str], None] | None,
    ) -> None:
        self.store = store
        self.runner = runner
        self.builder = builder
        self.hardware = hardware
        self.request = request
        self.reference = reference
        self.settings = settings
        self.progress = progress
        self.stop = False
        self.stats = CollectStats()
        self.begin = time.monotonic()
        self.versions = software_versions()
        self.expected: OrderedDict[object, Path | None] = OrderedDict()
        self.expected_bytes = 0
        self.known: set[str] = set()
        self.fastest: dict[str, float] = {}
        self.batches = 0
        # Batches that were timed and are to be timed again: kernels, and after how many batches in all.
        self.waiting: list[tuple[list[tuple[MeasureJob, Record]], list[int]]] = []
        # Names are never used twice: the loader takes a name that it knows for the library that it has already.
        self.numbers = count()

    def go(self, items: Iterable[CollectItem], folder: Path) -> CollectStats:
        """Work through the items."""
        self.store.add_hardware(self.hardware)
        self.store.refresh_baseline(self.hardware.digest)  # an earlier run may have been killed before it did
        chosen, pending = self.missing(items)
        try:
            self.work(pending, folder)
            if self.settings.again and not self.over():
                pending = self.repeats(chosen)
                self.stats = replace(self.stats, left=self.stats.left + len(pending))
                self.work(pending, folder)
            while self.waiting and not self.ended():
                self.time_again()
        finally:
            self.store.refresh_baseline(self.hardware.digest)
        self.stats = replace(self.stats, interrupted=self.stop, seconds=self.elapsed())
        return self.stats

    def work(self, pending: list[tuple[CollectItem, Identity]], folder: Path) -> None:
        """Measure all of `pending`, batch by batch, or until the run is over."""
        while pending and not self.over():
            size = self.settings.batch
            if self.settings.trials is not None:
                size = min(size, self.settings.trials - self.stats.done - self.stats.skipped)
            batch, pending = pending[:size], pending[size:]
            pending = [*self.batch(batch, folder), *pending]
            self.batches += 1
            self.time_again(self.batches)

    def elapsed(self) -> float:
        return time.monotonic() - self.begin

    def over(self) -> bool:
        s = self.settings
        return self.ended() or (s.trials is not None and self.stats.done + self.stats.skipped >= s.trials)

    def ended(self) -> bool:
        """Whether an interrupt or the budget ends the run at once."""
        s = self.settings
        return self.stop or (s.budget is not None and self.elapsed() >= s.budget)

    def missing(
        self, items: Iterable[CollectItem]
    ) -> tuple[dict[Identity, CollectItem], list[tuple[CollectItem, Identity]]]:
        """The items by identity, and those that the store does not have. Which models contain them is kept anyway."""
        chosen: dict[Identity, CollectItem] = {}
        models: dict[str, set[str]] = {}
        texts: dict[str, CollectItem] = {}
        for item in items:
            chosen.setdefault(identity_of(item.candidate, item.key, self.hardware.digest), item)
            models.setdefault(item.key, set()).add(item.model)
            texts.setdefault(item.key, item)
        for key, names in models.items():
            item = texts[key]
            self.store.add_workload(Workload(key, item.text, item.candidate.group.label), sorted(names))
        identities = list(chosen)
        found = self.store.lookup(identities)
        pending = [(chosen[i], i) for i, known in zip(identities, found, strict=True) if known is None]
        self.stats = replace(self.stats, cached=len(identities) - len(pending), left=len(pending))
        return chosen, pending

    def repeats(self, chosen: Mapping[Identity, CollectItem]) -> list[tuple[CollectItem, Identity]]:
        """Those of the kernels to be measured twice that were measured once; the same ones in every run.

        They are drawn evenly, by a hash, from what succeeded.
        """
        counts = Counter(r.identity for r in self.store.records(self.hardware.digest) if r.ok)

        def drawn(identity: Identity) -> bytes:
            return hashlib.sha256(repr(identity).encode()).digest()

        wanted = sorted((i for i in chosen if counts[i]), key=drawn)[: self.settings.again]
        return [(chosen[i], i) for i in wanted if counts[i] < 2]

    def batch(self, batch: list[tuple[CollectItem, Identity]], folder: Path) -> list[tuple[CollectItem, Identity]]:
        """Build all, then time them; gives back those that were not reached."""
        built = self.build(batch, folder)
        if not built:
            return batch
        given: deque[tuple[int, MeasureJob]] = deque()  # the runner has them; it may take some ahead
        reached = 0

        def jobs() -> Iterator[MeasureJob]:
            nonlocal reached
            for position, ((item, identity), result) in enumerate(zip(batch, built, strict=False)):
                if (position or self.ended()) and self.over():
                    return
                reached = position + 1
                job = None
                if result.status != "ok":
                    self.keep(item, identity, result.status, result.message, result)
                else:
                    job = self.job(item, identity, result, folder)
                if job is not None:
                    given.append((position, job))
                    yield job

        timed: list[tuple[MeasureJob, Record]] = []
        due = [self.batches + 1 + 2**n for n in range(self.settings.passes - 1)]
        try:
            for result in self.runner.measure(jobs()):
                position, job = given.popleft()
                unchecked = self.reference is not None and job.expected is None and result.status == "ok"
                message = _UNCHECKED if unchecked else result.message
                record = self.keep(*batch[position], result.status, message, built[position], result)
                if record.ok and due:
                    timed.append((replace(job, expected=None), record))
        finally:
            needed = {job.library for job, _ in timed}
            for done in built:
                if done.library and done.library not in needed:
                    Path(done.library).unlink(missing_ok=True)
        if timed:
            self.waiting.append((timed, due))
        return batch[reached:]

    def time_again(self, batches: int | None = None) -> None:
        """Another pass over the kernels that are due after so many batches; over all that wait by default."""
        waiting, self.waiting = self.waiting, []
        for timed, (now_due, *later) in waiting:
            if batches is not None and now_due > batches:
                self.waiting.append((timed, [now_due, *later]))
                continue
            left = self.more_samples(timed)
            if later and left:
                self.waiting.append((left, later))
            needed = {job.library for job, _ in left} if later else set()
            for job, _ in timed:
                if job.library not in needed:
                    Path(job.library).unlink(missing_ok=True)

    def more_samples(self, timed: Sequence[tuple[MeasureJob, Record]]) -> list[tuple[MeasureJob, Record]]:
        """Add samples to the records of a batch: what disturbed a kernel when it was timed may be over now.

        Gives back those that are not settled: this pass was disturbed, or found something else than those before.
        """

        def jobs() -> Iterator[MeasureJob]:
            for job, _ in timed:
                if self.ended():
                    return
                yield job

        kept = []
        for (job, record), result in zip(timed, self.runner.measure(jobs()), strict=False):
            longer = with_samples(record, result)
            self.store.supersede(record.digest, longer)
            self.tell(f"timed again: {job.candidate}")
            if longer.ok:
                if not (result.calm and agrees(record, result, self.settings.limits.confidence)):
                    kept.append((job, longer))
            else:
                said = one_line(f"{job.candidate}: {longer.status}: {longer.message}")
                s = self.stats
                failures = (*s.failures, said)
                self.stats = replace(s, measured=s.measured - 1, failed=s.failed + 1, failures=failures)
        return kept

    def build(self, batch: list[tuple[CollectItem, Identity]], folder: Path) -> list[BuildResult]:
        """A result for each; a candidate whose request cannot even be made has failed to build.

        An interrupt, or the end of the budget, ends it: then there are results of the first ones alone.
        """
        results: dict[int, BuildResult] = {}
        asked: list[int] = []

        def requests() -> Iterator[BuildRequest]:
            for position, (item, identity) in enumerate(batch):
                text = candidate_text(identity)
                try:
                    made = self.request(item, text, folder / f"kernel{next(self.numbers)}.so")
                except Exception as error:
                    message = one_line(f"{type(error).__name__}: {error}")
                    results[position] = BuildResult(item.key, text, "build_failed", message)
                    continue
                asked.append(position)
                yield made

        with closing(self.builder.build(requests())) as built:
            for number, result in enumerate(built):
                results[asked[number]] = result
                self.tell(f"built {number + 1} of {len(batch)}")
                if self.ended():
                    break
        return [results[position] for position in takewhile(results.__contains__, range(len(batch)))]

    def job(self, item: CollectItem, identity: Identity, built: BuildResult, folder: Path) -> MeasureJob | None:
        """What the runner is to do; None, and the item is skipped, if its right outputs cannot be computed."""
        try:
            expected = self.expect(item, built.arguments, folder)
        except Exception as error:
            self.stats = replace(self.stats, skipped=self.stats.skipped + 1, left=self.stats.left - 1)
            self.tell(f"{item.candidate.group.label}: no reference ({one_line(str(error))})")
            return None
        return MeasureJob(
            item.key,
            candidate_text(identity),
            built.library,
            built.function,
            built.arguments,
            None if expected is None else str(expected),
            self.settings.tolerance,
            self.settings.seed,
            nearer_reference(item.candidate, last_cache(self.hardware)),
            self.settings.limits.part(self.settings.passes),
            last_cache(self.hardware),
            loose_share(item.candidate.group),
        )

    def expect(self, item: CollectItem, arguments: tuple[ArgumentSpec, ...], folder: Path) -> Path | None:
        """The file with the right outputs; computed once for the configurations of one group."""
        if self.reference is None:
            return None
        group = item.candidate.group
        # The right outputs do not depend on the form in which a configuration takes its constants.
        key = (id(group.graph), group, tuple(replace(a, preparation="") for a in arguments))
        if key in self.expected:
            self.expected.move_to_end(key)
            return self.expected[key]
        outputs = self.reference(item.candidate, fill_inputs(arguments, self.settings.seed))
        path = None
        if outputs is not None:
            path = folder / f"expected{next(self.numbers)}.npz"
            np.savez(path, *[np.asarray(array) for array in outputs])
            self.expected_bytes += path.stat().st_size
        self.expected[key] = path
        # The jobs of one batch may all be waiting for theirs.
        while self.expected_bytes > _OUTPUTS_KEPT and len(self.expected) > self.settings.batch:
            oldest = self.expected.popitem(last=False)[1]
            if oldest is not None:
                self.expected_bytes -= oldest.stat().st_size
                oldest.unlink()
        return path

    def keep(
        self,
        item: CollectItem,
        identity: Identity,
        status: str,
        message: str,
        built: BuildResult,
        result: MeasureResult | None = None,
    ) -> Record:
        """Add the record, and the group's form with its first one."""
        form = f"{identity.workload} {identity.layouts}"
        if form not in self.known:
            self.store.add_form(Form(identity.workload, identity.layouts, group_to_text(item.candidate.group)))
            self.known.add(form)
        record = Record(
            identity.workload,
            identity.hardware,
            identity.family,
            identity.family_version,
            identity.config,
            identity.layouts,
            status,
            message,
            result.samples if result else (),
            result.reference_samples if result else {},
            result.reference if result else nearer_reference(item.candidate, last_cache(self.hardware)),
            self.versions["tvm"],
            self.versions["autofuse"],
            built.tir_digest,
            cold_samples=result.cold_samples if result else (),
            cold_reference_samples=result.cold_reference_samples if result else {},
            codegen_version=identity.codegen_version,
        )
        self.store.add(record)
        s = self.stats
        if status == "ok":
            self.stats = replace(s, measured=s.measured + 1, left=s.left - 1)
            self.tell(self.times_of(item, result))
        else:
            said = one_line(f"{item.candidate.group.label} ({candidate_text(identity)}): {status}: {message}")
            self.stats = replace(s, failed=s.failed + 1, left=s.left - 1, failures=(*s.failures, said))
            self.tell(said)
        return record

    def times_of(self, item: CollectItem, result: MeasureResult | None) -> str:
        """What a kernel took, beside the least that any of its workload has taken so far."""
        seconds = result.latency if result else None
        if seconds is None:
            return item.candidate.group.label
        if item.key not in self.fastest:
            known = self.store.best(item.key, self.hardware.digest)  # that of this very result, or a faster one
            self.fastest[item.key] = min(seconds, known.latency or seconds) if known else seconds
        best = self.fastest[item.key] = min(seconds, self.fastest[item.key])
        return f"{seconds * 1e6:.1f} µs, best {best * 1e6:.1f} µs: {item.candidate.group.label}"

    def tell(self, what: str) -> None:
        if self.progress is not None:
            self.progress(replace(self.stats, seconds=self.elapsed()), what)
