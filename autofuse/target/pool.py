"""The environment that TVM's thread pool reads when a process runs its first parallel kernel. Plain data."""

from __future__ import annotations

import os

#: How often a waiting worker yields before it sleeps. A yield takes a fraction of a microsecond: this covers the gap
#: between two kernels of a model, while TVM's own 300,000 keep a processor busy for a tenth of a second after a call.
SPIN_COUNT = 4000


#: Whether TVM binds threads to processors, read whenever a pool is made or changed.
BIND = "TVM_BIND_THREADS"


def pool_environment(threads: int) -> dict[str, str]:
    """Variables for a pool of `threads` that TVM binds to no processor, and that sleeps soon when it has nothing to do.

    TVM would take half of the processors, and confine the calling thread to them for good. A spin count that the
    environment has already is kept.
    """
    return {
        "TVM_NUM_THREADS": str(threads),
        BIND: "0",
        "TVM_THREAD_POOL_SPIN_COUNT": os.environ.get("TVM_THREAD_POOL_SPIN_COUNT", str(SPIN_COUNT)),
    }
