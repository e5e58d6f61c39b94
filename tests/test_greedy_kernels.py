"""Greedy against TVM's own pipeline: the blocked layouts cost no fusion beyond the layout changes themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from autofuse.compiler import Analysed, analyse, choose_cost_model
from autofuse.frontend.zoo.blocks import activation, batch_norm, conv, conv_bn_act, dense, max_pool
from autofuse.frontend.zoo.builder import GraphBuilder
from autofuse.frontend.zoo.yolo import _csp_stage, _spatial_pyramid


def few_stages_of_vgg16(b: GraphBuilder) -> str:
    x = b.input("input", (1, 3, 32, 32))
    for channels in (16, 32):
        for _ in range(2):
            x = activation(b, conv(b, x, channels, 3), "relu")
        x = max_pool(b, x, 2, stride=2)
    x = activation(b, dense(b, b.node("Flatten", [x], axis=1), 64, name="fc6"), "relu")
    return dense(b, x, 10, name="fc8")


def few_blocks_of_densenet121(b: GraphBuilder) -> str:
    x = max_pool(b, conv_bn_act(b, b.input("input", (1, 3, 56, 56)), 32, 7, stride=2, name="stem"), 3, stride=2)
    for _ in range(2):
        features = [x]
        for _ in range(3):
            y = conv(b, activation(b, batch_norm(b, x), "relu"), 64, 1, bias=False)
            features.append(conv(b, activation(b, batch_norm(b, y), "relu"), 16, 3, bias=False))
            x = b.node("Concat", features, axis=1)
        x = b.node("AveragePool", [x], kernel_shape=[2, 2], strides=[2, 2])
    return activation(b, batch_norm(b, x), "relu")


def few_stages_of_yolov4(b: GraphBuilder) -> str:
    x = b.input("input", (1, 16, 52, 52))
    x = _csp_stage(b, _csp_stage(b, x, 32, 1, first=True), 64, 2)
    return _spatial_pyramid(b, x)


#: Whole networks, and parts of those that take long to build.
NETWORKS: tuple[str | Callable[[GraphBuilder], str], ...] = (
    "mobilenet_v1", "mobilenet_v2", "efficientnet_b0", "yolov4_tiny", "resnet50", "shufflenet_v2", "minilm_l6",
    few_stages_of_vgg16, few_blocks_of_densenet121, few_stages_of_yolov4,
)  # fmt: skip


def plain_kernels(prepared: Any) -> int:
    """Kernels that FuseOps makes of the graph as it was imported, in the model's own layouts."""
    from tvm import relax

    module = relax.transform.LegalizeOps()(prepared.module)
    module = relax.transform.FuseOps()(relax.transform.AnnotateTIROpPattern()(module))
    known: set[Any] = set(module["main"].params)
    kernels = 0
    for binding in (b for block in module["main"].body.blocks for b in block.bindings):
        value = binding.value
        if isinstance(value, relax.Call):
            arguments = [a for a in value.args if isinstance(a, relax.Var)]
            arguments += [a for t in value.args if isinstance(t, relax.Tuple) for a in t.fields]
            if known.isdisjoint(arguments):
                continue  # of constants alone: worked out before anything runs
            kernels += 1
        known.add(binding.var)
    return kernels


def greedy_kernels(analysed: Analysed) -> int:
    """Kernels of the greedy plan; reshapes that move nothing launch none."""
    from autofuse.codegen.fuse_ops import fuse_ops_partition
    from autofuse.schedule.registry import families
    from autofuse.search.candidates import search_problem
    from autofuse.search.problem import Thresholds
    from autofuse.search.strategies import strategy

    problem = search_problem(
        analysed.graph,
        choose_cost_model(analysed, "analytical", None, None),
        hardware=analysed.hardware,
        families=families(analysed.hardware.kind),
        # FuseOps' own sets are all that is needed.
        thresholds=Thresholds(groups_per_operator=1, recompute_members=0),
        greedy=fuse_ops_partition(analysed.lowered.module, analysed.built),
    )
    return sum(choice.family != "view" for choice in strategy("greedy").search(problem).choices)


@pytest.mark.parametrize("network", NETWORKS, ids=lambda n: n if isinstance(n, str) else n.__name__)
def test_greedy_has_no_more_kernels_than_fuse_ops_and_layout_changes(
    network: str | Callable[[GraphBuilder], str],
) -> None:
    model: Any = network
    if not isinstance(network, str):
        builder = GraphBuilder(network.__name__, 0)
        model = builder.finish({"y": network(builder)})
    analysed = analyse(model, threads=2)
    plain, greedy = plain_kernels(analysed.prepared), greedy_kernels(analysed)
    changes = sum(op.kind == "layout_change" for op in analysed.graph.operators)
    assert 0 < greedy <= plain + changes
    assert greedy < len(analysed.graph.operators)
