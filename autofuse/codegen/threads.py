"""The size of TVM's thread pool, and the processors that its threads run on.

Every Python thread that runs kernels gets a pool of its own, whose size is fixed when its first parallel kernel runs.
Later the pool can use fewer of its threads, or all again, never more.

Where pools run is the scheduler's to decide. Only in processes that do nothing but time kernels has each thread of the
pool, the caller's too, a processor of its own (`stay_at_home`).
"""

from __future__ import annotations

import os
import threading
import warnings

from autofuse.target.host import places
from autofuse.target.pool import BIND, pool_environment

#: TVM's mode of a pool in which each thread has one of the processors that are listed.
_ONE_EACH = -2


class _Pool(threading.local):
    """This thread's pool: its size, and how many of its threads are used."""

    size = 0
    used = 0


_pool = _Pool()


def configure_threads(threads: int) -> None:
    """Have the kernels that this thread runs next use `threads` threads; warns where its pool has fewer.

    Threads are not bound to processors: TVM would confine the calling thread to those of its pool for good.
    """
    if not _pool.size:
        os.environ.update(pool_environment(threads))
        _pool.size = _pool.used = threads
        return
    if threads > _pool.size:
        warnings.warn(
            f"this thread runs kernels on {_pool.size} threads already: {threads} need a new process", stacklevel=3
        )
    wanted = min(threads, _pool.size)
    if wanted != _pool.used:
        import tvm

        # Mode 1 prefers fast cores; which they are does not matter: no thread is bound by this.
        tvm.get_global_func("runtime.config_threadpool")(1, wanted)
        _pool.used = wanted


def stay_at_home(threads: int) -> None:
    """As `configure_threads`, for the one thread of a process that runs kernels; makes its pool.

    A pool that takes all processors has each of its threads on one of them, the calling thread on the first, for good;
    what that thread starts later stays there too. Left to themselves, caller and worker may stand on one processor for
    tenths of a second, since a worker that waits looks as busy as one that works.
    """
    configure_threads(threads)
    chosen = places()
    if threads < 2 or len(chosen) != threads or not hasattr(os, "sched_setaffinity"):
        return
    import tvm

    os.environ[BIND] = "1"
    try:
        tvm.get_global_func("runtime.config_threadpool")(_ONE_EACH, threads, [str(cpu) for cpu in chosen])
    finally:
        os.environ[BIND] = "0"
    os.sched_setaffinity(0, chosen[:1])
