"""The runner of other machines: devices that `autofuse serve` has registered with TVM's RPC tracker.

Each device is driven by a child process of its own, so that neither a device that dies nor TVM's client harms anything
else; jobs go to whichever device is free, results come in the order of the jobs.
"""

from __future__ import annotations

import json
import platform
import time
import warnings
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field

from autofuse.errors import RecordError
from autofuse.measure.gpu_runner import GpuRunner
from autofuse.measure.jobs import MeasureJob, MeasureResult
from autofuse.measure.local import result_of, thread_environment
from autofuse.measure.process import ChildProcess, MeasureError, Outcome
from autofuse.measure.runner import Runner
from autofuse.target.fingerprint import GPU_ARCHITECTURES, HardwareRow

_CONNECT_SECONDS = 60.0  # building the reference kernels and 64 MB of data on the way
_GRACE_SECONDS = 60.0  # over a job's timeout, which the device keeps itself: inputs on the way; then the device is gone
_SETTLE_SECONDS = 2.0  # a device whose last client has just left is offered again in this time
_LIVES = 2  # devices that a job may cost


@dataclass
class _Device:
    child: ChildProcess
    row: HardwareRow
    target: str
    name: str


@dataclass
class _Task:
    job: MeasureJob
    lost: list[_Device] = field(default_factory=list)
    result: MeasureResult | None = None


class RpcRunner(Runner):
    """Measures on all free devices of `key` at the tracker `host`:`port` at once.

    Only devices of one hardware are used at a time, so that records do not mix: `select` says which; without it, all
    must be of the same. A device that dies is left out and its job goes to another; a job that costs two devices has
    crashed. While there is no device at all, one is waited for, `patience` seconds.
    """

    def __init__(self, host: str, port: int, key: str, patience: float = 10.0) -> None:
        self._address = (host, port)
        self._key = key
        self._patience = patience
        self._hardware = ""
        self._devices: list[_Device] = []
        self._spare: list[ChildProcess] = []  # without a device: starting one takes seconds
        self._foreign = False
        self._last_loss = ""
        self._threads = ThreadPoolExecutor(64, "device")

    def hardware(self) -> list[tuple[HardwareRow, str]]:
        """The distinct hardware of the devices, each with its target for `resolve`, those with most devices first."""
        self._need_devices(selected=False)
        settled = time.monotonic() + _SETTLE_SECONDS
        while self._connect() > len(self._devices) and time.monotonic() < settled:
            time.sleep(0.3)
        found = Counter((d.row.digest, d.target) for d in self._devices)
        rows = {d.row.digest: d.row for d in self._devices}
        distinct: dict[str, str] = {}
        for (digest, target), _ in found.most_common():
            distinct.setdefault(digest, target)
        return [(rows[digest], target) for digest, target in distinct.items()]

    def select(self, digest: str) -> None:
        """Measure on devices of this hardware alone from now on."""
        self._hardware = digest
        gpu = any(d.row.digest == digest and d.row.architecture in GPU_ARCHITECTURES for d in self._devices)
        self.arithmetic = GpuRunner.arithmetic if gpu else Runner.arithmetic

    def measure(self, jobs: Iterable[MeasureJob]) -> Iterator[MeasureResult]:
        """As the interface says; as many jobs are taken ahead as keep all devices busy."""
        self._need_devices(selected=True)
        source = iter(jobs)
        order: deque[_Task] = deque()
        again: deque[_Task] = deque()
        running: dict[Future[Outcome], tuple[_Task, _Device]] = {}
        more = True
        try:
            while True:
                while order and order[0].result is not None:
                    yield order.popleft().result  # type: ignore[misc]
                busy = [device for _, device in running.values()]
                for device in self._usable():
                    if device in busy:
                        continue
                    if again:
                        task = again.popleft()
                    elif more and (job := next(source, None)) is not None:
                        task = _Task(job)
                        order.append(task)
                    else:
                        more = False
                        break
                    running[self._threads.submit(_ask, device.child, task.job)] = (task, device)
                if running:
                    for future in wait(running, return_when=FIRST_COMPLETED).done:
                        task, device = running.pop(future)
                        self._take(task, device, future.result(), again)
                elif again or more:
                    if not again and (job := next(source, None)) is not None:
                        again.append(_Task(job))
                        order.append(again[0])
                    more = more and bool(again)
                    if again:
                        self._need_devices(selected=True)
                elif not order:
                    return
        finally:
            wait(running)

    def _take(self, task: _Task, device: _Device, outcome: Outcome, again: deque[_Task]) -> None:
        """Keep what came back; a device that is gone is dropped."""
        answered = outcome.status in ("ok", "failed") or (outcome.status == "oom" and device.child.pid is not None)
        if answered and outcome.value.get("status") != "lost":
            task.result = result_of(task.job, outcome)
            return
        message = str(outcome.value.get("message", outcome.message))
        self._devices.remove(device)
        self._spare.append(device.child)
        self._last_loss = f"{device.name}: {message}"
        if outcome.value.get("timeout"):
            task.result = MeasureResult.failure(task.job, "timeout", message)
            return
        task.lost.append(device)
        if len(task.lost) < _LIVES:
            again.append(task)
            return
        names = " and ".join(d.name for d in task.lost)
        task.result = MeasureResult.failure(task.job, "crashed", f"the session died on {names}: {message}")

    def _usable(self) -> list[_Device]:
        if self._hardware:
            return [d for d in self._devices if d.row.digest == self._hardware]
        return list(self._devices)

    def _need_devices(self, selected: bool) -> None:
        """Take what is free. MeasureError, one line, if there is nothing to measure on."""
        give_up = time.monotonic() + self._patience
        while True:
            total = self._connect()
            usable = self._usable() if selected else self._devices
            if usable:
                break
            if time.monotonic() >= give_up:
                raise MeasureError(self._nothing(total))
            time.sleep(0.3)
        if selected and len({d.row.digest for d in usable}) > 1:
            raise MeasureError(f"the devices of key {self._key!r} are of different hardware: choose one with select()")

    def _nothing(self, total: int) -> str:
        host, port = self._address
        of = f" of hardware {self._hardware}" if self._hardware else ""
        why = f"; the last one was lost ({self._last_loss})" if self._last_loss else ""
        if self._foreign:
            why = "; what is there was not started by autofuse and cannot say what hardware it is"
        elif total and not self._last_loss:
            why = f"; {total} are registered, none is free"
        start = f"autofuse serve --tracker {host}:{port} --key {self._key}"
        return f"no device{of} under key {self._key!r} at the tracker {host}:{port}{why}; start one: {start}"

    def _connect(self) -> int:
        """Take all free devices; gives the number of devices that the tracker knows under the key."""
        from tvm.rpc import client

        from autofuse.measure.server import check_tracker

        check_tracker(*self._address)
        tracker = client.TrackerSession(self._address)
        try:
            summary = tracker.summary()
        finally:
            tracker.close()
        free = int(summary["queue_info"].get(self._key, {}).get("free", 0))
        total = sum(1 for info in summary["server_info"] if info["key"] == f"server:{self._key}")
        while len(self._spare) < free:
            arguments = (self._address[0], str(self._address[1]), self._key)
            # What a child runs itself is nothing; its threads would only stand in the way of a device on this machine.
            self._spare.append(ChildProcess("autofuse.measure.device:factory", arguments, thread_environment(1)))
        children = [self._spare.pop() for _ in range(free)]
        asked = [self._threads.submit(child.request, {"connect": True}, _CONNECT_SECONDS) for child in children]
        foreign = False
        for child, future in zip(children, asked, strict=True):
            device = self._made(child, future.result())
            if device is not None:
                self._devices.append(device)
            else:
                self._spare.append(child)
                foreign = foreign or future.result().value.get("status") == "foreign"
        if foreign and not self._foreign:
            warnings.warn(
                f"a server of key {self._key!r} was not started by autofuse serve: its hardware is not known, "
                "it is not used",
                stacklevel=3,
            )
        self._foreign = self._foreign or foreign
        return total

    def _made(self, child: ChildProcess, outcome: Outcome) -> _Device | None:
        value = outcome.value
        if value.get("status") != "ok":
            self._last_loss = self._last_loss or outcome.message
            return None
        try:
            row = HardwareRow.from_json(value["hardware"])
        except RecordError as error:
            self._last_loss = str(error)
            return None
        here = platform.machine()
        if row.architecture not in GPU_ARCHITECTURES and row.architecture != here:
            self._last_loss = f"{value['name']}: it is {row.architecture}, and kernels are built here for {here}"
            return None
        return _Device(child, row, json.dumps(value["target"], sort_keys=True), str(value["name"]))

    @property
    def devices(self) -> Sequence[tuple[str, str]]:
        """(host name, hardware digest) of the devices that are held."""
        return [(d.name, d.row.digest) for d in self._devices]

    def close(self) -> None:
        """Give the devices back."""
        for child in [*self._spare, *(d.child for d in self._devices)]:
            child.close()
        self._spare.clear()
        self._devices.clear()


def _ask(child: ChildProcess, job: MeasureJob) -> Outcome:
    return child.request(job.to_dict(), job.limits.timeout + _GRACE_SECONDS)
