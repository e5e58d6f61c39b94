"""The size of TVM's thread pool.

Every Python thread that runs kernels gets a pool of its own, whose size is fixed when its first parallel kernel runs.
Later the pool can use fewer of its threads, or all again, never more.
"""

from __future__ import annotations

import os
import threading
import warnings

from autofuse.target.pool import pool_environment

_pools = threading.local()


def configure_threads(threads: int) -> None:
    """Have the kernels that this thread runs next use `threads` threads; warns where its pool has fewer.

    Threads are not bound to processors: TVM would pin the calling thread to processor 0 for good.
    """
    size = getattr(_pools, "size", 0)
    if not size:
        os.environ.update(pool_environment(threads))
        _pools.size = _pools.used = threads
        return
    if threads > size:
        warnings.warn(f"this thread runs kernels on {size} threads already: {threads} need a new process", stacklevel=3)
    wanted = min(threads, size)
    if wanted != _pools.used:
        import tvm

        # Mode 1 prefers fast cores; which they are does not matter when threads are not bound.
        tvm.get_global_func("runtime.config_threadpool")(1, wanted)
        _pools.used = wanted
