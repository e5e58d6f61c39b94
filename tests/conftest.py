"""Fixtures that several modules share: a small network as a file, and compiled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import pytest
from small_network import small_network

import autofuse

if TYPE_CHECKING:
    from autofuse.codegen.executable import Executable


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
