"""Several processes at one file, and processes that are killed."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

from autofuse.records import SqliteStore

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


def test_four_processes_write_at_once(tmp_path: Path) -> None:
    """They even create the file together; nothing is lost."""
    writers = [writer(tmp_path / "r.db", f"p{n}", 40) for n in range(4)]
    for process in writers:
        process.communicate(timeout=60)
        assert process.returncode == 0
    with SqliteStore(tmp_path / "r.db") as s:
        assert s.stats().ok == 160 and s.stats().models == ("p0", "p1", "p2", "p3")


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
