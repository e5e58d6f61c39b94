"""Records, hardware and groups for tests of record stores, and stores filled with them."""

from __future__ import annotations

from dataclasses import replace

from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work
from autofuse.records import Record, RecordedHardware, RecordStore, Workload

HERE = RecordedHardware("hw1", "a machine", {"threads": 2, "isa": ["avx2"]})
THERE = RecordedHardware("hw2", "another machine", {"threads": 4})


def stamp(second: int) -> str:
    return f"2025-01-01T00:00:{second:02d}.000000Z"


def record(second: int = 0, latency: float = 1e-3, **changes: object) -> Record:
    base = Record(
        workload="w1",
        hardware="hw1",
        family="conv",
        family_version=1,
        config="a=1",
        samples=(latency, latency, latency * 1.5),
        reference_samples={"arithmetic": (2e-4, 2e-4, 3e-4), "memory": (1e-3, 1e-3, 1e-3)},
        tvm_version="0.27",
        created=stamp(second),
    )
    return replace(base, **changes)  # type: ignore[arg-type]


def cold(second: int = 0, latency: float = 1e-3, times: float = 3.0, **changes: object) -> Record:
    """A record whose kernel takes `times` its `latency` with cold weights."""
    changes = {
        "cold_samples": tuple(times * latency * share for share in (1.0, 1.0, 2.0)),
        "cold_reference_samples": {"arithmetic": (2e-4,) * 3, "memory": (1e-3,) * 3},
        **changes,
    }
    return record(second, latency, **changes)


def failure(second: int = 0, status: str = "crashed", **changes: object) -> Record:
    return record(second, status=status, message="SIGSEGV", samples=(), reference_samples={}, **changes)


def group() -> Group:
    """relu(conv) out of a graph in which other operators come first and use the convolution's result."""
    tensors = (
        Tensor(0, "x", (1, 2, 4, 4, 8), layout="NCHW8c", logical_shape=(1, 16, 4, 4)),
        Tensor(1, "y", (1, 2, 4, 4, 8), role=Role.INPUT),
        Tensor(2, "weight", (2, 2, 3, 3, 8, 8), role=Role.CONSTANT),
        Tensor(3, "c", (1, 2, 4, 4, 8), layout="NCHW8c"),
        Tensor(4, "r", (1, 2, 4, 4, 8), "float16"),
    )
    data = Access(0, 1, MappingType.MANY_TO_MANY, 144, 9, -1)
    operators = (
        Operator(0, "before", "negative", "n", (0,), (1,), (Access(0, 0, MappingType.ONE_TO_ONE),)),
        Operator(1, "conv", "nn.conv2d", "f", (1, 2), (3,), (data, Access(1, 2, MappingType.MANY_TO_MANY)),
                 Work(fma=36864), {"strides": [1, 1], "variant": "blocked"}, (1, 2, 4, 4, 8), (2, 3, 3, 8), 2),
        Operator(2, "relu", "nn.relu", "r", (3,), (4,), (Access(0, 3, MappingType.ONE_TO_ONE),), Work(compare=256)),
    )  # fmt: skip
    return Group(Graph("g", tensors, operators, (0,), (3, 4)), (1, 2), (3, 4))


def fill(store: RecordStore) -> RecordStore:
    store.add_hardware(HERE)
    store.add_hardware(THERE)
    store.add_workload(Workload("w1", "conv 1", "conv"), ["resnet50"])
    store.add_workload(Workload("w2", "matmul 1"))
    return store
