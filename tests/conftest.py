"""Fixtures that several modules share: a small network as a file, compiled and planned; stores of records; OpenCL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from small_network import small_network

import autofuse

if TYPE_CHECKING:
    from gpu_harness import Pocl

    from autofuse.codegen.executable import Executable
    from autofuse.compiler import Analysed
    from autofuse.learn.plans import NetworkPlans
    from autofuse.records import RecordStore


# What tests compile does not depend on the predictor that comes with a checkout.
os.environ["AUTOFUSE_MODELS"] = os.devnull


@pytest.fixture(scope="session")
def network(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("models") / "net.onnx"
    onnx.save(small_network(), path)
    return path


@pytest.fixture(scope="session")
def executable(network: Path) -> Executable:
    return autofuse.compile(network, strategy="dp", threads=2)


@pytest.fixture(scope="session")
def planned(network: Path) -> NetworkPlans:
    """The small network with all that its plans may be made of, for two threads of this machine."""
    from autofuse.learn.plans import NetworkPlans
    from autofuse.target.hardware_file import load_hardware
    from autofuse.target.registry import resolve

    return NetworkPlans.of_model(str(network), load_hardware(resolve("llvm", 2)))


@pytest.fixture(scope="session")
def branches() -> Analysed:
    """A network of two branches, analysed."""
    from codegen_cases import analysed_model, two_branches

    return analysed_model(two_branches())


@pytest.fixture(scope="module")
def pocl(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pocl]:
    """Runs kernels for a GPU on this machine's CPU."""
    from gpu_harness import Pocl, pocl_missing

    if missing := pocl_missing():
        pytest.skip(missing)
    made = Pocl(tmp_path_factory.mktemp("pocl"))
    yield made
    made.close()


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """An empty store, of either kind."""
    from autofuse.records import MemoryStore, SqliteStore

    with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "records.db") as made:
        yield made
