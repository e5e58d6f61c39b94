"""`tvm-default`: TVM's default build of the prepared module, which fuses nothing."""

from __future__ import annotations

from typing import Any

from autofuse.bench.peers.tvm_pipeline import TvmPipelinePeer


class TvmDefaultPeer(TvmPipelinePeer):
    """The pipeline that a plain `tvm.compile(module, target)` runs."""

    def pipeline(self, target: Any) -> Any:
        from tvm import relax

        return relax.get_pipeline("default_build")
