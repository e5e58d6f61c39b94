"""Where a network's weights are when its kernels ask for them. Takes a graph and a hardware description."""

from __future__ import annotations

from autofuse.graph.model import Graph, Role
from autofuse.target import Hardware

#: Share of the last cache from which on weights do not stay there from one run of the network to the next: activations
#: go through it too, and what it holds begins to fall short at half its size (`analytical.CACHE_EDGE`).
COLD_SHARE = 0.5
#: A kernel that reads fewer bytes of constants is as fast with cold ones: none is timed with them (`measure/cold.py`).
LEAST_COLD_BYTES = 64 << 10


def weight_bytes(graph: Graph) -> int:
    """Bytes of the constants that one run of the network reads; of a table that is only looked up in, what is found."""
    total = 0
    for tensor in graph.tensors:
        if tensor.role is not Role.CONSTANT:
            continue
        readers = [graph.operators[user] for user in graph.users.get(tensor.index, ())]
        if readers and all(op.kind == "take" and op.inputs[0] == tensor.index for op in readers):
            found = sum(graph.tensors[t].bytes for op in readers for t in op.outputs)
            total += min(tensor.bytes, found)
        else:
            total += tensor.bytes if readers else 0
    return total


def weights_are_cold(graph: Graph, hardware: Hardware) -> bool:
    """Whether kernels of the network find their weights outside the last cache: they exceed COLD_SHARE of it."""
    return weight_bytes(graph) > COLD_SHARE * hardware.l3_bytes
