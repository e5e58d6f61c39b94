"""Libraries for other architectures: which linker makes them; what is said where one is missing or they cannot run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from frontend_graphs import model, node, weights

import autofuse
from autofuse.codegen.executable import load
from autofuse.codegen.link import linker_command
from autofuse.codegen.package import write_package
from autofuse.errors import TargetError
from autofuse.target.architecture import architecture_of, architecture_of_file

FOREIGN = "aarch64" if architecture_of() == "x86_64" else "x86_64"


def elf(machine: int) -> bytes:
    """The first bytes of a shared library, little-endian."""
    return b"\x7fELF\x02\x01\x01" + b"\0" * 9 + b"\x03\0" + machine.to_bytes(2, "little") + b"\0" * 64


def tool(folder: Path, name: str) -> str:
    path = folder / name
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return str(path)


@pytest.mark.parametrize(
    ("text", "name"),
    [("aarch64-linux-gnu", "aarch64"), ("arm64-linux", "aarch64"), ("x86_64-pc-linux-gnu", "x86_64"),
     ("AMD64", "x86_64")],
)  # fmt: skip
def test_triples_and_system_names_agree_on_the_architecture(text: str, name: str) -> None:
    assert architecture_of(text) == name


def test_architecture_is_read_from_the_file(tmp_path: Path) -> None:
    for machine, name in ((62, "x86_64"), (183, "aarch64"), (4711, "ELF machine 4711")):
        (tmp_path / "lib.so").write_bytes(elf(machine))
        assert architecture_of_file(tmp_path / "lib.so") == name
    (tmp_path / "text").write_text("no library")
    assert architecture_of_file(tmp_path / "text") == architecture_of_file(tmp_path / "missing") == ""


def test_a_cross_compiler_comes_before_bare_linkers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    triple = f"{FOREIGN}-linux-gnu"
    lld = tool(tmp_path, "ld.lld")
    assert linker_command(triple)[:2] == [lld, "-shared"]
    gcc = tool(tmp_path, f"{FOREIGN}-linux-gnu-gcc")
    assert linker_command(triple)[0] == gcc


def test_a_missing_linker_is_one_line_with_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CC", raising=False)
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(TargetError, match=r"^no linker for [^\n]+ install gcc-[^\n]+-linux-gnu or lld[^\n]*$"):
        linker_command(f"{FOREIGN}-linux-gnu")
    with pytest.raises(TargetError, match=r"^no C compiler[^\n]+g\+\+[^\n]*$"):
        linker_command()


def test_a_library_for_another_machine_is_refused_before_it_is_loaded(tmp_path: Path) -> None:
    library = tmp_path / "lib.so"
    library.write_bytes(elf(183 if FOREIGN == "aarch64" else 62))
    description = {"model": "m", "target": "{}", "features": [], "threads": 1, "inputs": [], "outputs": []}
    write_package(tmp_path / "m.so", library, [], description)
    wanted = rf"^[^\n]+ was made for {FOREIGN}, this machine is {architecture_of()}[^\n]*$"
    with pytest.raises(TargetError, match=wanted):
        load(tmp_path / "m.so")


def tiny() -> object:
    nodes = [node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), node("Sigmoid", ["c"], ["y"])]
    return model(nodes, {"x": [1, 3, 9, 7]}, ["y"], {"w": weights(20, 3, 3, 3, seed=1)})


@pytest.mark.parametrize("cpu", ["skylake-avx512", "cortex-a72 -mtriple=aarch64-linux-gnu"])
def test_a_model_that_cannot_run_here_is_refused_and_not_executed(cpu: str) -> None:
    from autofuse.target import missing_features, resolve

    target = resolve(f"llvm -mcpu={cpu}")
    if architecture_of(target.triple) == architecture_of() and not missing_features(target.features):
        pytest.skip(f"this machine runs {cpu}")
    executable = autofuse.compile(tiny(), target=f"llvm -mcpu={cpu}")
    with pytest.raises(TargetError, match=r"^[^\n]*(was made for|this CPU lacks)[^\n]*$"):
        executable(np.zeros((1, 3, 9, 7), "float32"))
