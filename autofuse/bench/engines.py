"""An engine's name → which peer runs it, and with which options. The only place that lists them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from autofuse.errors import EngineError

_PEERS = "autofuse.bench.peers"
_AUTOFUSE = f"{_PEERS}.autofuse_engine:AutofusePeer"
PROBE = f"{_PEERS}.probe:ProbePeer"
ONNXRUNTIME = "onnxruntime"

# Engines that know nothing of autofuse's strategies.
_OTHERS: Mapping[str, str] = {
    "tvm-greedy": f"{_PEERS}.tvm_greedy:TvmGreedyPeer",
    "tvm-default": f"{_PEERS}.tvm_default:TvmDefaultPeer",
    ONNXRUNTIME: f"{_PEERS}.onnxruntime_cpu:OnnxRuntimePeer",
    "openvino": f"{_PEERS}.openvino_cpu:OpenVinoPeer",
    "torch": f"{_PEERS}.torch_eager:TorchPeer",
    "torch-compile": f"{_PEERS}.torch_compiled:TorchCompilePeer",
}
# Each is `autofuse` with that strategy, everything else as asked for.
_STRATEGIES = ("greedy", "none", "dp", "hybrid", "interval", "auto", "exhaustive")
_OF_ONE_COMPILE = ("plan", "dump_ir")


@dataclass(frozen=True)
class EngineSpec:
    """An engine to start: `peer` is "module:Class", `options` what its workload carries, `environment` of its own."""

    name: str
    peer: str
    options: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)


def known_engines() -> tuple[str, ...]:
    """Every name that a benchmark takes."""
    return ("autofuse", *_STRATEGIES, *_OTHERS)


def engine_specs(
    names: Iterable[str],
    *,
    compile_options: Mapping[str, Any],
    executables: Mapping[str, str],
    extra_peers: Mapping[str, str],
) -> list[EngineSpec]:
    """One spec a name, in the given order, without repeats; EngineError on a name that nobody knows.

    `compile_options` go to `autofuse.compile` for every engine of its family (the strategy names change only the
    strategy, and take no plan and dump no IR: these are of one compile, the engine `autofuse`);
    `executables` maps names to saved executables, which then are loaded and not compiled; `extra_peers` maps further
    names to "module:Class".
    """
    specs = []
    for name in dict.fromkeys(names):
        if name in executables:
            specs.append(EngineSpec(name, _AUTOFUSE, {"executable": executables[name]}))
        elif name in extra_peers:
            specs.append(EngineSpec(name, extra_peers[name], {}))
        elif name == "autofuse":
            specs.append(EngineSpec(name, _AUTOFUSE, {"compile": dict(compile_options)}))
        elif name in _STRATEGIES:
            shared = {key: value for key, value in compile_options.items() if key not in _OF_ONE_COMPILE}
            specs.append(EngineSpec(name, _AUTOFUSE, {"compile": {**shared, "strategy": name}}))
        elif name in _OTHERS:
            specs.append(EngineSpec(name, _OTHERS[name], {}))
        else:
            known = ", ".join((*known_engines(), *executables, *extra_peers))
            raise EngineError(f"no engine named {name!r}; known: {known}")
    return specs
