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
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import chain, count, takewhile
from pathlib import Path
from types import FrameType

from autofuse.measure.builder import Builder, BuildRequest, BuildResult
from autofuse.measure.jobs import MeasureJob, MeasureResult, one_line
from autofuse.measure.nearer import last_cache, nearer_reference
from autofuse.measure.order import CollectItem
from autofuse.measure.passes import UNFINISHED, Timing, after_pass, first_record, passes_made, unfinished
from autofuse.measure.replay import candidate_text
from autofuse.measure.right_outputs import Reference, RightOutputs
from autofuse.measure.rounding import loose_share
from autofuse.measure.runner import Runner
from autofuse.measure.settings import CollectSettings, CollectStats
from autofuse.records.groups import group_to_text
from autofuse.records.identity import identity_of
from autofuse.records.record import Form, Identity, Record, RecordedHardware, Workload
from autofuse.records.software import software_versions
from autofuse.records.store import RecordStore

# Gives the request to build a candidate into the library at a path; the identity's text names the candidate.
RequestOf = Callable[[CollectItem, str, Path], BuildRequest]


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
    found: Iterable[CollectItem] = (),
) -> CollectStats:
    """Measure `items` in the order given (see `order.in_order`) and keep a record of each, failures too.

    `found` are those that they were chosen from: a workload's models are all that contain it, chosen there or not.
    `reference` gives right outputs to check with; what it has none for is skipped, and nothing is checked without it.
    `progress` is told the counts and what was just done, after every candidate. The first interrupt (Ctrl-C) ends the
    run after the kernel being measured, with everything kept; the second raises KeyboardInterrupt.
    """
    with tempfile.TemporaryDirectory(prefix="autofuse-") as name:
        run = _Collection(
            store, runner, builder, hardware, request, reference, settings or CollectSettings(), progress, Path(name)
        )
        with _interrupts(run):
            return run.go(items, found)


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


@dataclass(frozen=True)
class _Pending:
    """A kernel to be measured. `before`: its record, over which an earlier run has not made all passes."""

    item: CollectItem
    identity: Identity
    before: Record | None = None


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
        folder: Path,
    ) -> None:
        self.store = store
        self.runner = runner
        self.builder = builder
        self.hardware = hardware
        self.request = request
        self.settings = settings
        self.progress = progress
        self.folder = folder
        self.stop = False
        self.stats = CollectStats()
        self.begin = time.monotonic()
        self.versions = software_versions()
        self.outputs = None if reference is None else RightOutputs(reference, folder, settings.seed, settings.batch)
        self.known: set[str] = set()
        self.fastest: dict[str, float] = {}
        self.batches = 0
        # What was timed and is to be timed again.
        self.waiting: list[Timing] = []
        # Names are never used twice: the loader takes a name that it knows for the library that it has already.
        self.numbers = count()

    def go(self, items: Iterable[CollectItem], found: Iterable[CollectItem]) -> CollectStats:
        """Work through the items."""
        self.store.add_hardware(self.hardware)
        self.store.refresh_baseline(self.hardware.digest)  # an earlier run may have been killed before it did
        items = list(items)
        self.add_workloads(items, found)
        chosen, pending = self.missing(items)
        try:
            self.work(pending)
            if self.settings.again and not self.over():
                pending = self.repeats(chosen)
                self.stats = replace(self.stats, left=self.stats.left + len(pending))
                self.work(pending)
            while self.waiting and not self.ended():
                self.time_again()
        finally:
            self.store.refresh_baseline(self.hardware.digest)
        self.stats = replace(self.stats, interrupted=self.stop, seconds=self.elapsed(), again=self.due_again())
        return self.stats

    def work(self, pending: list[_Pending]) -> None:
        """Measure all of `pending`, batch by batch, or until the run is over."""
        while pending and not self.over():
            size = self.settings.batch
            if self.settings.trials is not None:
                size = min(size, self.settings.trials - self.stats.done - self.stats.skipped)
            batch, pending = pending[:size], pending[size:]
            pending = [*self.batch(batch), *pending]
            self.batches += 1
            self.runner.renew()
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

    def add_workloads(self, items: Iterable[CollectItem], found: Iterable[CollectItem]) -> None:
        """Make known what is to be measured, and which models contain that or anything else that the store knows."""
        known = {workload.key for workload in self.store.workloads()} | {item.key for item in items}
        first: dict[str, CollectItem] = {}
        models: dict[str, set[str]] = {}
        for item in chain(items, found):
            if item.key in known:
                first.setdefault(item.key, item)
                models.setdefault(item.key, set()).add(item.model)
        workloads = [Workload(key, item.text, item.candidate.group.label) for key, item in first.items()]
        self.store.add_all([], [(workload, tuple(sorted(models[workload.key]))) for workload in workloads], [], [])

    def missing(self, items: Iterable[CollectItem]) -> tuple[dict[Identity, CollectItem], list[_Pending]]:
        """The items by identity, and those that the store does not have, or has with passes left."""
        chosen: dict[Identity, CollectItem] = {}
        for item in items:
            chosen.setdefault(identity_of(item.candidate, item.key, self.hardware.digest), item)
        identities = list(chosen)
        known = {i for i, there in zip(identities, self.store.lookup(identities), strict=True) if there is not None}
        cut = self.cut_short(known)
        pending: list[_Pending] = []
        for identity, item in chosen.items():
            if identity not in known:
                pending.append(_Pending(item, identity))
            pending += [_Pending(item, identity, record) for record in cut.get(identity, ())]
        self.stats = replace(self.stats, cached=len(known) - len(cut), left=len(pending))
        return chosen, pending

    def cut_short(self, known: Set[Identity]) -> dict[Identity, list[Record]]:
        """Records that earlier runs left with passes to be made, where this one makes several passes."""
        found: dict[Identity, list[Record]] = {}
        for workload in sorted({i.workload for i in known}) if self.settings.passes > 1 else ():
            for record in self.store.records(self.hardware.digest, workload):
                if unfinished(record) and record.identity in known:
                    found.setdefault(record.identity, []).append(record)
        return found

    def repeats(self, chosen: Mapping[Identity, CollectItem]) -> list[_Pending]:
        """Those of the kernels to be measured twice that were measured once; the same ones in every run.

        They are drawn evenly, by a hash, from what succeeded.
        """
        counts = Counter(r.identity for r in self.store.records(self.hardware.digest) if r.ok)

        def drawn(identity: Identity) -> bytes:
            return hashlib.sha256(repr(identity).encode()).digest()

        wanted = sorted((i for i in chosen if counts[i]), key=drawn)[: self.settings.again]
        return [_Pending(chosen[i], i) for i in wanted if counts[i] < 2]

    def batch(self, batch: list[_Pending]) -> list[_Pending]:
        """Build all, then time them; gives back those that were not reached."""
        built = self.build(batch)
        if not built:
            return batch
        given: deque[tuple[int, MeasureJob]] = deque()  # the runner has them; it may take some ahead
        reached = 0

        def jobs() -> Iterator[MeasureJob]:
            nonlocal reached
            for position, (pending, result) in enumerate(zip(batch, built, strict=False)):
                if (position or self.ended()) and self.over():
                    return
                reached = position + 1
                job = None
                if result.status != "ok":
                    self.not_built(pending, result)
                else:
                    job = self.job(pending.item, pending.identity, result)
                if job is not None:
                    given.append((position, job))
                    yield job

        timed: list[Timing] = []
        try:
            for result in self.runner.measure(jobs()):
                position, job = given.popleft()
                timed.append(self.first_pass(batch[position], job, built[position], result))
        finally:
            self.waiting += [timing for timing in timed if timing.due]
            needed = {timing.job.library for timing in self.waiting}
            for done in built:
                if done.library and done.library not in needed:
                    Path(done.library).unlink(missing_ok=True)
        return batch[reached:]

    def first_pass(self, pending: _Pending, job: MeasureJob, built: BuildResult, result: MeasureResult) -> Timing:
        """Keep what the first pass of this run over a kernel gave; when the next ones are due."""
        job = replace(job, expected=None)  # it was compared just now
        due = [self.batches + 1 + 2**n for n in range(self.settings.passes - 1)]
        before = pending.before
        if before is not None and (before.tir_digest, before.reference) == (built.tir_digest, job.reference):
            self.stats = replace(self.stats, measured=self.stats.measured + 1, left=self.stats.left - 1)
            more = max(0, len(due) - passes_made(before, job.limits.max_samples))
            return self.next_pass(Timing(job, before, (self.batches, *due[:more])), result)
        message = UNFINISHED if result.status == "ok" and due else result.message
        record = self.keep(pending, result.status, message, built, result)
        return Timing(job, record, tuple(due) if record.ok else ())

    def next_pass(self, timing: Timing, result: MeasureResult) -> Timing:
        """Keep what another pass over a kernel gave."""
        after = after_pass(timing, result, self.settings.limits.confidence)
        if after.record is not timing.record:
            self.store.supersede(timing.record.digest, after.record)
        if not after.record.ok:
            said = one_line(f"{timing.job.candidate}: {result.status}: {result.message}")
            s = self.stats
            self.stats = replace(s, measured=s.measured - 1, failed=s.failed + 1, failures=(*s.failures, said))
        self.tell(f"timed again: {timing.job.candidate}")
        return after

    def time_again(self, batches: int | None = None) -> None:
        """Another pass over the kernels that are due after so many batches; over all that wait by default.

        What disturbed a kernel when it was timed may be over now.
        """
        waiting = self.waiting
        due = [n for n, timing in enumerate(waiting) if batches is None or timing.due[0] <= batches]
        if not due:
            return

        def jobs() -> Iterator[MeasureJob]:
            for n in due:
                if self.ended():
                    return
                yield waiting[n].job

        for n, result in zip(due, self.runner.measure(jobs()), strict=False):
            waiting[n] = self.next_pass(waiting[n], result)
            if not waiting[n].due:
                Path(waiting[n].job.library).unlink(missing_ok=True)
        self.waiting = [timing for timing in waiting if timing.due]

    def build(self, batch: list[_Pending]) -> list[BuildResult]:
        """A result for each; a candidate whose request cannot even be made has failed to build.

        An interrupt, or the end of the budget, ends it: then there are results of the first ones alone.
        """
        results: dict[int, BuildResult] = {}
        asked: list[int] = []

        def requests() -> Iterator[BuildRequest]:
            for position, pending in enumerate(batch):
                item, text = pending.item, candidate_text(pending.identity)
                try:
                    made = self.request(item, text, self.folder / f"kernel{next(self.numbers)}.so")
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

    def job(self, item: CollectItem, identity: Identity, built: BuildResult) -> MeasureJob | None:
        """What the runner is to do; None, and the item is skipped, if its right outputs cannot be computed."""
        try:
            expected = None if self.outputs is None else str(self.outputs.file(item.candidate, built.arguments))
        except Exception as error:
            self.skip(f"{item.candidate.group.label}: not measured, nothing to compare with: {one_line(str(error))}")
            return None
        return MeasureJob(
            item.key,
            candidate_text(identity),
            built.library,
            built.function,
            built.arguments,
            expected,
            self.settings.tolerance,
            self.settings.seed,
            self.nearer(item),
            self.settings.limits.part(self.settings.passes),
            last_cache(self.hardware),
            loose_share(item.candidate.group),
        )

    def nearer(self, item: CollectItem) -> str:
        """The reference kernel that counts."""
        return nearer_reference(item.candidate, last_cache(self.hardware), self.runner.arithmetic)

    def skip(self, said: str) -> None:
        """Count a candidate that is left out; each reason is kept once."""
        s = self.stats
        skips = s.skips if said in s.skips else (*s.skips, said)
        self.stats = replace(s, skipped=s.skipped + 1, left=s.left - 1, skips=skips)
        self.tell(said)

    def not_built(self, pending: _Pending, built: BuildResult) -> None:
        """Keep a failure to build; what was timed well before stays as it is."""
        if pending.before is None:
            self.keep(pending, built.status, built.message, built)
        else:
            self.failed(pending, built.status, built.message)

    def keep(
        self,
        pending: _Pending,
        status: str,
        message: str,
        built: BuildResult,
        result: MeasureResult | None = None,
    ) -> Record:
        """Add the record, and the group's form with its first one; in the place of one of other code."""
        item, identity = pending.item, pending.identity
        form = f"{identity.workload} {identity.layouts}"
        if form not in self.known:
            self.store.add_form(Form(identity.workload, identity.layouts, group_to_text(item.candidate.group)))
            self.known.add(form)
        reference = result.reference if result else self.nearer(item)
        record = first_record(identity, reference, status, message, built.tir_digest, self.versions, result)
        if pending.before is None:
            self.store.add(record)
        else:
            self.store.supersede(pending.before.digest, record)
        if status == "ok":
            self.stats = replace(self.stats, measured=self.stats.measured + 1, left=self.stats.left - 1)
            self.tell(self.times_of(item, result))
        else:
            self.failed(pending, status, message)
        return record

    def failed(self, pending: _Pending, status: str, message: str) -> None:
        """Count and tell a failure."""
        label, text = pending.item.candidate.group.label, candidate_text(pending.identity)
        said, s = one_line(f"{label} ({text}): {status}: {message}"), self.stats
        self.stats = replace(s, failed=s.failed + 1, left=s.left - 1, failures=(*s.failures, said))
        self.tell(said)

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
            self.progress(replace(self.stats, seconds=self.elapsed(), again=self.due_again()), what)

    def due_again(self) -> int:
        """How many kernels wait for another pass."""
        return sum(bool(timing.due) for timing in self.waiting)
