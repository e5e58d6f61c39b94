"""The size of TVM's thread pool, and the processors that its threads run on.

Every Python thread that runs kernels gets a pool of its own, whose size is fixed when its first parallel kernel runs.
Later the pool can use fewer of its threads, or all again, never more.

A pool that takes all processors is bound, one thread to each, its caller too while kernels run. Left to themselves,
caller and worker are put on one processor now and then and stay there for tenths of a second, since a worker that
waits looks as busy as one that works: kernels then take twice their time, or until the next tick of the scheduler.
"""

from __future__ import annotations

import os
import threading
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

from autofuse.target.host import places
from autofuse.target.pool import BIND, BIND_TVM, pool_environment

T = TypeVar("T")

#: TVM's mode of a pool in which each thread has one of the processors that are listed.
_ONE_EACH = -2
#: The environment belongs to the process, pools to threads.
_environment = threading.Lock()


class _Pool(threading.local):
    """This thread's pool: its size, how many of its threads are used, the caller's processor while kernels run."""

    size = 0
    used = 0
    home: frozenset[int] = frozenset()


_pool = _Pool()


def configure_threads(threads: int) -> None:
    """Have the kernels that this thread runs next use `threads` threads; warns where its pool has fewer.

    A pool of all processors is bound to them, unless the environment has AUTOFUSE_BIND=0; the calling thread is not,
    see `run_at_home`.
    """
    if not _pool.size:
        with _environment:
            os.environ.update(pool_environment(threads))
        _pool.size = _pool.used = threads
        _bind(threads)
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


def run_at_home(kernels: Callable[..., T], *arguments: Any) -> T:
    """`kernels(*arguments)` on the processor that no other thread of this thread's pool is bound to, if there is one.

    Afterwards the calling thread may run where it could before: threads and processes that it starts are not bound.
    """
    if not _pool.home or _pool.used != _pool.size:
        return kernels(*arguments)
    allowed = os.sched_getaffinity(0)
    if allowed == _pool.home or not _pool.home <= allowed:
        return kernels(*arguments)
    os.sched_setaffinity(0, _pool.home)
    try:
        return kernels(*arguments)
    finally:
        os.sched_setaffinity(0, allowed)


def stay_at_home(threads: int) -> None:
    """As `configure_threads`, for a thread that does nothing but run kernels: it stays on its processor for good."""
    configure_threads(threads)
    if _pool.home:
        os.sched_setaffinity(0, _pool.home)


def _bind(threads: int) -> None:
    """Bind this thread's pool if it takes all processors, each of its threads to one. Makes the pool."""
    if threads < 2 or os.environ.get(BIND) == "0" or not hasattr(os, "sched_setaffinity"):
        return
    chosen = places()
    if len(chosen) != threads:
        return
    import tvm

    allowed = os.sched_getaffinity(0)
    with _environment:
        os.environ[BIND_TVM] = "1"
        try:
            tvm.get_global_func("runtime.config_threadpool")(_ONE_EACH, threads, [str(cpu) for cpu in chosen])
        finally:
            os.environ[BIND_TVM] = "0"
    # TVM has confined the caller to the processors of its pool.
    os.sched_setaffinity(0, allowed)
    _pool.home = frozenset(chosen[:1])
