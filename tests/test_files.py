"""New files appear whole or not at all, with the permissions that the umask leaves."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from small_network import command, image, small_network

import autofuse
from autofuse.errors import ModelError
from autofuse.files import open_beside, whole_file
from autofuse.report.results import write_text


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def permissions(path: str | Path) -> int:
    return stat.S_IMODE(os.stat(path).st_mode)


def test_a_file_beside_another_is_new_and_as_open_as_the_umask_says(umask: int, tmp_path: Path) -> None:
    goal = tmp_path / "goal.txt"
    names = set()
    for mode in (0o666, 0o777):
        handle, name = open_beside(goal, mode)
        os.close(handle)
        assert Path(name).parent == tmp_path and Path(name).name.startswith(".goal.txt.")
        assert permissions(name) == mode & ~umask
        names.add(name)
    assert len(names) == 2 and not goal.exists()


def test_a_file_that_is_not_finished_leaves_what_was_there(tmp_path: Path) -> None:
    goal = tmp_path / "goal.txt"
    for before in (None, b"before"):
        if before is not None:
            goal.write_bytes(before)
        for error in (ValueError, KeyboardInterrupt):
            with pytest.raises(error), whole_file(goal) as out:
                out.write(b"half")
                out.flush()
                raise error
            assert [p.read_bytes() for p in tmp_path.iterdir()] == ([] if before is None else [before])
    with whole_file(goal) as out:
        out.write(b"after")
        assert goal.read_bytes() == b"before"
    assert [(p.name, p.read_bytes()) for p in tmp_path.iterdir()] == [("goal.txt", b"after")]
    with pytest.raises(FileNotFoundError), whole_file(tmp_path / "nowhere" / "goal.txt"):
        pass


def test_nothing_is_put_in_the_place_of_what_is_no_regular_file(tmp_path: Path) -> None:
    compiled = autofuse.compile(small_network(), threads=1)
    np.savez(tmp_path / "x.npz", image=image())
    compiled.save(str(tmp_path / "net.so"))
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(OSError, match="no regular file"), whole_file(pipe):
        pass
    with pytest.raises(ModelError, match="no regular file"):
        compiled.save(str(pipe))
    done = command("run", "net.so", "--input", "x.npz", "--output", "pipe", folder=tmp_path)
    assert done.returncode == 2
    assert done.stderr == "error: cannot write pipe: it is there and no regular file; choose another place\n"
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["net.so", "pipe", "x.npz"]


def test_reports_follow_the_umask(umask: int, tmp_path: Path) -> None:
    write_text(tmp_path / "page.md", "text")
    assert permissions(tmp_path / "page.md") == 0o666 & ~umask
    assert [p.name for p in tmp_path.iterdir()] == ["page.md"]


def test_programs_plans_and_outputs_follow_the_umask(tmp_path: Path) -> None:
    compiled = autofuse.compile(small_network(), threads=1)
    before = os.umask(0o027)
    try:
        compiled.save(str(tmp_path / "net.so"))
        compiled.plan.save(tmp_path / "plan.json")
        np.savez(tmp_path / "x.npz", image=image())
        done = command("run", "net.so", "--input", "x.npz", "--output", "y.npz", folder=tmp_path)
    finally:
        os.umask(before)
    assert done.returncode == 0, done.stderr
    assert permissions(tmp_path / "net.so") == 0o750
    assert permissions(tmp_path / "plan.json") == permissions(tmp_path / "y.npz") == 0o640
