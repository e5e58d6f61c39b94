"""How long the search takes on graphs of thousands of operators.

Usage: python scripts/bench_search.py [--operators N] [--graphs chain,residual,random] [--strategy dp] [--json]

Three graphs: a chain of elementwise operators; residual blocks of a convolution and four elementwise operators, all
alike; elementwise operators whose inputs are drawn at random among the eight results before, so that nothing repeats.
Seconds are those of mapping analysis, enumeration and costing of candidates, and of the search; nothing is compiled.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPE = (1, 16, 14, 14)


def model(nodes: list[Any], constants: list[Any], result: str) -> Any:
    """The ONNX model of a graph from x to `result`, both of SHAPE."""
    from onnx import TensorProto, helper

    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, SHAPE) for name in ("x", result)]
    graph = helper.make_graph(nodes, "large", ends[:1], ends[1:], constants)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def chain(operators: int) -> Any:
    """Sigmoid, tanh and relu, one after another."""
    from onnx import helper

    kinds = ("Sigmoid", "Tanh", "Relu")
    names = ["x", *(f"v{i}" for i in range(operators))]
    nodes = [helper.make_node(kinds[i % 3], [names[i]], [names[i + 1]]) for i in range(operators)]
    return model(nodes, [], names[-1])


def residual(operators: int) -> Any:
    """Blocks of convolution, relu, sigmoid, multiplication by and addition of the block's input."""
    from onnx import helper, numpy_helper

    random, nodes, constants, data = np.random.default_rng(0), [], [], "x"
    for i in range(operators // 5):
        weight = (0.05 * random.standard_normal((SHAPE[1], SHAPE[1], 3, 3))).astype(np.float32)
        constants.append(numpy_helper.from_array(weight, f"w{i}"))
        steps = [
            ("Conv", [data, f"w{i}"], {"pads": [1, 1, 1, 1]}), ("Relu", [f"{i}.0"], {}), ("Sigmoid", [f"{i}.1"], {}),
            ("Mul", [f"{i}.2", data], {}), ("Add", [f"{i}.3", data], {}),
        ]  # fmt: skip
        nodes += [helper.make_node(kind, given, [f"{i}.{k}"], **more) for k, (kind, given, more) in enumerate(steps)]
        data = f"{i}.4"
    return model(nodes, constants, data)


def random_graph(operators: int) -> Any:
    """Additions, multiplications and functions of results not far before."""
    from onnx import helper

    random, nodes, names = np.random.default_rng(0), [], ["x"]
    for i in range(operators):
        kind = str(random.choice(["Add", "Mul", "Relu", "Sigmoid", "Tanh"]))
        given = [names[-1]]
        if kind in ("Add", "Mul"):
            given.insert(0, names[max(0, len(names) - 1 - int(random.integers(0, 8)))])
        nodes.append(helper.make_node(kind, given, [f"v{i}"]))
        names.append(f"v{i}")
    return model(nodes, [], names[-1])


GRAPHS: dict[str, Callable[[int], Any]] = {"chain": chain, "residual": residual, "random": random_graph}


def measured(name: str, operators: int, strategy: str) -> dict[str, Any]:
    """One graph's counts and seconds."""
    from autofuse.compiler import analyse, choose_cost_model, problem_of
    from autofuse.search.strategies import strategy as named

    analysed = analyse(GRAPHS[name](operators))
    costs = choose_cost_model(analysed, "analytical", None, None)
    started = time.perf_counter()
    problem = problem_of(analysed, costs)
    ready = time.perf_counter()
    result = named(strategy, hardware=analysed.hardware).search(problem)
    done = time.perf_counter()
    return {
        "graph": name, "operators": len(analysed.graph.operators), "choices": len(problem.choices),
        "kernels": len(result.choices), "candidates_s": round(ready - started, 2), "search_s": round(done - ready, 2),
        "proved_optimal": result.proved_optimal,
    }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--operators", type=int, default=2000)
    parser.add_argument("--graphs", default=",".join(GRAPHS), help="names, separated by commas")
    parser.add_argument("--strategy", default="auto")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    wanted = options.graphs.split(",")
    unknown = [name for name in wanted if name not in GRAPHS]
    if unknown:
        parser.error(f"there is no graph {', '.join(unknown)}; known: {', '.join(GRAPHS)}")
    rows = []
    for name in wanted:
        rows.append(measured(name, options.operators, options.strategy))
        if not options.json:
            row = rows[-1]
            print(
                f"{name:9s}{row['operators']:6d} operators{row['choices']:8d} choices{row['kernels']:6d} kernels   "
                f"candidates {row['candidates_s']:6.2f} s   search {row['search_s']:6.2f} s", flush=True,
            )  # fmt: skip
    if options.json:
        print(json.dumps(rows, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
