"""Fixtures that several modules share: a small network as a file, and compiled; stores of records."""

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
    from autofuse.codegen.executable import Executable
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


@pytest.fixture(params=["memory", "sqlite"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[RecordStore]:
    """An empty store, of either kind."""
    from autofuse.records import MemoryStore, SqliteStore

    with MemoryStore() if request.param == "memory" else SqliteStore(tmp_path / "records.db") as made:
        yield made
