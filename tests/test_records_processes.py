"""Several processes at one file, and processes that are killed: nothing is lost but what was under way."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

from autofuse.records import SqliteStore
from autofuse.records.verify import verify

WRITER = """
import sys
from autofuse.records import SqliteStore, Record, Workload, RecordedHardware
path, name, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
with SqliteStore(path) as store:
    store.add_hardware(RecordedHardware("hw1", "a machine"))
    for i in range(count):
        store.add_workload(Workload(f"w{i % 7}", "text"), [name])
        store.add(Record(f"w{i % 7}", "hw1", "conv", 1, f"{name}={i}", samples=(1e-3,)))
        print(i, flush=True)
"""


def writer(path: Path, name: str, count: int) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def test_eight_processes_write_at_once(tmp_path: Path) -> None:
    """They even create the file together; nothing is lost."""
    writers = [writer(tmp_path / "r.db", f"p{n}", 40) for n in range(8)]
    for process in writers:
        process.communicate(timeout=120)
        assert process.returncode == 0
    with SqliteStore(tmp_path / "r.db") as s:
        assert s.stats().ok == 320 and s.stats().models == tuple(f"p{n}" for n in range(8))
        assert s._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"


# Forks collections from one process, so that 50 starts take no time, and kills each with SIGKILL at another moment:
# some while they open the store, most after a few records, in a measurement or an addition. The child says each
# record that it has added.
KILLER = """
import os, random, signal, sys, time
sys.path.insert(0, sys.argv[1])
from killed_collection import collect_into, prepare
path, kills = sys.argv[2], int(sys.argv[3])
prepare()
chooser = random.Random(1)
for kill in range(kills):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(read)
        try:
            collect_into(path, lambda: os.write(write, b"."), 20)
        except BaseException as error:
            print(repr(error), file=sys.stderr, flush=True)
        os._exit(1)
    os.close(write)
    acknowledged, wanted = 0, 0 if kill % 5 == 0 else chooser.randrange(1, 12)
    while acknowledged < wanted and (one := os.read(read, 1)):
        acknowledged += len(one)
    time.sleep(chooser.uniform(0.0, 0.02 if wanted == 0 else 0.003))
    os.kill(child, signal.SIGKILL)
    while chunk := os.read(read, 4096):
        acknowledged += len(chunk)
    os.close(read)
    _, status = os.waitpid(child, 0)
    print("killed" if os.WIFSIGNALED(status) else "ended", acknowledged, flush=True)
"""


def test_a_collection_killed_fifty_times_loses_only_what_was_under_way(tmp_path: Path) -> None:
    """Each run goes on where the last was killed; all that was said to be kept is kept, and one more run finishes."""
    from killed_collection import ITEMS, collect_into

    path = tmp_path / "r.db"
    run = subprocess.Popen(
        [sys.executable, "-c", KILLER, str(Path(__file__).parent), str(path), "50"], stdout=subprocess.PIPE, text=True
    )
    assert run.stdout is not None
    output, _ = run.communicate(timeout=120)
    assert run.returncode == 0
    ends = [line.split() for line in output.splitlines()]
    assert [end for end, _ in ends] == ["killed"] * 50
    acknowledged = sum(int(count) for _, count in ends)
    with SqliteStore(path) as s:
        kept = s.stats().ok
        # A kill between the addition and the word of it makes one more than was said, never one less.
        assert acknowledged <= kept <= acknowledged + 50
        assert 100 < kept < ITEMS
        assert list(verify(s)) == []
        identities = [r.identity for r in s.records()]
        assert len(set(identities)) == len(identities)  # nothing was measured twice
    assert collect_into(str(path), lambda: None) == ITEMS - kept
    with SqliteStore(path) as s:
        assert s.stats().ok == ITEMS and s.baseline("hw1")


def test_a_killed_writer_loses_nothing_that_it_had_added(tmp_path: Path) -> None:
    """Killed three times in the midst of writing; each time everything acknowledged is there and the file is sound."""
    acknowledged = 0
    for kill in range(3):
        process = writer(tmp_path / "r.db", f"k{kill}", 100_000)
        assert process.stdout is not None
        for _ in range(5 + 20 * kill):
            process.stdout.readline()
        time.sleep(0.01 * kill)
        process.kill()
        acknowledged += 5 + 20 * kill + len(process.stdout.read().splitlines())
        process.wait()
        process.stdout.close()
        with SqliteStore(tmp_path / "r.db") as s:
            count = s.stats().ok
            assert s._db.execute("PRAGMA integrity_check").fetchone()[0] == "ok"
        assert acknowledged <= count <= acknowledged + kill + 1


PARENT = """
import sys
from autofuse.measure import PoolBuilder
from autofuse.measure.process import ChildProcess
children = [ChildProcess("killed_collection:sleeper") for _ in range(2)]
for child in children:
    child.start()
print(*(child.pid for child in children), flush=True)
children[0].request({}, 100)
"""


def test_workers_end_when_a_collection_is_killed(tmp_path: Path) -> None:
    """One is busy, the other waits for work."""
    path = os.pathsep.join(p for p in (str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")) if p)
    parent = subprocess.Popen(
        [sys.executable, "-c", PARENT], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": path}
    )
    assert parent.stdout is not None
    workers = [int(pid) for pid in parent.stdout.readline().split()]
    assert len(workers) == 2 and all(running(pid) for pid in workers)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    end = time.monotonic() + 10
    while any(running(pid) for pid in workers):
        assert time.monotonic() < end, "a worker outlived its parent by ten seconds"
        time.sleep(0.02)


def running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
