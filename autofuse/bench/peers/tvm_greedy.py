"""`tvm-greedy`: TVM's CPU pipeline, which fuses by operator pattern and leaves loops as legalisation made them."""

from __future__ import annotations

from typing import Any

from autofuse.bench.peers.tvm_pipeline import TvmPipelinePeer


class TvmGreedyPeer(TvmPipelinePeer):
    """TVM's `get_default_pipeline` for the target: FuseOps and FuseTIR, no schedules."""

    def pipeline(self, target: Any) -> Any:
        from tvm import relax

        return relax.get_default_pipeline(target)
