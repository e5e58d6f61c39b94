"""The size of TVM's thread pool. It is fixed when the first parallel kernel of a process runs."""

from __future__ import annotations

import os
import warnings

_started: int | None = None


def configure_threads(threads: int) -> None:
    """Ask for a pool of `threads`. Before the first kernel it is set, later it can only be lowered (with a warning).

    Threads are not bound to processors: TVM would pin the calling thread to processor 0 for good.
    """
    global _started
    if _started is None:
        os.environ["TVM_NUM_THREADS"] = str(threads)
        os.environ["TVM_BIND_THREADS"] = "0"
        _started = threads
        return
    if threads == _started:
        return
    if threads > _started:
        warnings.warn(
            f"this process runs kernels on {_started} threads already: {threads} need a new process", stacklevel=2
        )
        return
    import tvm

    tvm.get_global_func("runtime.config_threadpool")(1, threads)
    _started = threads
