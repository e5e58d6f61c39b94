"""The environment that TVM's thread pool reads when a process runs its first parallel kernel. Plain data."""

from __future__ import annotations

import os

#: How often a waiting worker yields before it sleeps. A yield takes a fraction of a microsecond: this covers the gap
#: between two kernels of a model, while TVM's own 300,000 keep a processor busy for a tenth of a second after a call.
SPIN_COUNT = 4000


def pool_environment(threads: int) -> dict[str, str]:
    """Variables for a pool of `threads` that is bound to no processor and sleeps soon when there is nothing to do.

    TVM would take half of the processors and pin the calling thread to the first for good. A spin count that the
    environment has already is kept.
    """
    return {
        "TVM_NUM_THREADS": str(threads),
        "TVM_BIND_THREADS": "0",
        "TVM_THREAD_POOL_SPIN_COUNT": os.environ.get("TVM_THREAD_POOL_SPIN_COUNT", str(SPIN_COUNT)),
    }
