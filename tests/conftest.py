"""Fixtures that several modules share: a small network as a file, compiled and planned; stores of records; OpenCL."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from real_kernels import bad, builder, folder, job, weighted  # noqa: F401
from small_network import small_network

import autofuse
from autofuse.target.pool import pool_environment

if TYPE_CHECKING:
    from gpu_harness import Pocl
    from rpc_farm import Farm

    from autofuse.codegen.executable import Executable
    from autofuse.compiler import Analysed
    from autofuse.learn.plans import NetworkPlans
    from autofuse.records import RecordStore


# What tests compile does not depend on the predictor that comes with a checkout.
os.environ["AUTOFUSE_MODELS"] = os.devnull
# The pool that all kernels of a process run on is made when a test runs the first one. As TVM has it, its threads would
# keep a processor busy for a tenth of a second after each.
os.environ.update(pool_environment(2))


# The modules that take longest. Workers of pytest-xdist that take whole modules begin with them, so that none is left
# alone with a long one in the end.
LONGEST = (
    "test_isa_kernels", "test_schedule_conformance", "test_remote_devices", "test_schedule_pairs", "test_zoo",
    "test_gpu_numbers", "test_gpu_golden", "test_schedule_gpu", "test_remote", "test_schedule_conv",
    "test_bench_engines", "test_command_line", "test_gpu_runner", "test_runner", "test_schedule_uneven_windows",
    "test_schedule_winograd", "test_kernel_check", "test_schedule_resize", "test_evaluate", "test_schedule_elementwise",
    "test_schedule_matmul", "test_lower_channel_routes",
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {name: place for place, name in enumerate(LONGEST)}
    items.sort(key=lambda item: places.get(item.path.stem, len(places)))


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


@pytest.fixture(scope="module")
def machines() -> Iterator[Farm]:
    """A tracker, and devices for it as tests ask for them."""
    from rpc_farm import farm

    with farm() as made:
        yield made


@pytest.fixture
def one_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands that collect time each kernel once; that passes agree is tested with kernels that are not timed."""
    monkeypatch.setattr("autofuse.measure.settings.PASSES", 1)


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """An empty store, of either kind."""
    from autofuse.records import MemoryStore, SqliteStore

    with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "records.db") as made:
        yield made
