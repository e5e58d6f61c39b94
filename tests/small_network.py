"""A small network, what ONNX Runtime makes of it, and the command line in this process or in one of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from frontend_graphs import model, node, weights

from autofuse.cli import main


def small_network(size: int = 16) -> onnx.ModelProto:
    """A convolution, a depthwise one, a gate, a pool, a classifier."""
    nodes = [
        node("Conv", ["image", "w1"], ["c1"], pads=[1, 1, 1, 1], strides=[2, 2]),
        node("Relu", ["c1"], ["r1"]),
        node("Conv", ["r1", "w2"], ["c2"], pads=[1, 1, 1, 1], group=16),
        node("Sigmoid", ["c2"], ["s2"]),
        node("Mul", ["c2", "s2"], ["m2"]),
        node("GlobalAveragePool", ["m2"], ["pooled"]),
        node("Flatten", ["pooled"], ["flat"]),
        node("Gemm", ["flat", "w3", "b3"], ["logits"]),
        node("Softmax", ["logits"], ["y"], axis=-1),
    ]
    constants = {
        "w1": weights(16, 3, 3, 3, seed=1),
        "w2": weights(16, 1, 3, 3, seed=2),
        "w3": weights(16, 10, seed=3, scale=1.0),
        "b3": weights(10, seed=4),
    }
    return model(nodes, {"image": [1, 3, size, size]}, ["y"], constants)


def expected(source: onnx.ModelProto, arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(source.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return list(session.run(None, dict(zip([i.name for i in session.get_inputs()], arrays, strict=True))))


def close(mine: Sequence[np.ndarray], theirs: Sequence[np.ndarray], tolerance: float = 1e-5) -> None:
    assert len(mine) == len(theirs)
    for left, right in zip(mine, theirs, strict=True):
        assert left.shape == right.shape and left.dtype == right.dtype
        np.testing.assert_allclose(left, right, rtol=0, atol=tolerance * max(1.0, float(np.abs(right).max())))


def image(size: int = 16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((1, 3, size, size), dtype=np.float32)


def command(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """The command line in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "autofuse", *map(str, arguments)],
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def here(*arguments: object) -> int:
    """The command line in this process: its exit code."""
    with pytest.raises(SystemExit) as ended:
        main(list(map(str, arguments)))
    return int(ended.value.code or 0)


def refused(capfd: pytest.CaptureFixture[str], folder: Path, *arguments: object) -> str:
    """The one line of a command that must fail with exit code 2 and leave no file behind."""
    before = sorted(folder.iterdir())
    capfd.readouterr()
    assert here(*arguments) == 2
    out, err = capfd.readouterr()
    assert out == ""
    assert err.count("\n") == 1 and err.startswith("error: ") and "Traceback" not in err
    assert sorted(folder.iterdir()) == before
    return err
