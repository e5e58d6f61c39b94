"""The child's side of a child process: `python -m autofuse.measure.child MODULE:FACTORY [ARGUMENT...]`.

FACTORY(ARGUMENT...) gives a handler; each line on standard input is a request (a JSON object), answered by one line
with the handler's answer. The child leaves at once when its standard input closes, hence when its parent dies.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import signal
import sys
import threading
from collections.abc import Callable
from typing import Any, TextIO

Handler = Callable[[dict[str, Any]], dict[str, Any]]


def _private_output() -> TextIO:
    """The pipe to the parent, out of the reach of whatever prints to standard output."""
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", newline="\n")
    os.dup2(2, 1)
    return answers


def _read(requests: queue.SimpleQueue[str]) -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)  # from this thread, so that a kernel that hangs cannot keep the process alive


def main() -> None:
    """Serve until the parent closes the pipe."""
    answers = _private_output()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # an interrupt is the parent's to handle
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(requests,), daemon=True).start()
    module, _, name = sys.argv[1].partition(":")
    handler: Handler = getattr(importlib.import_module(module), name)(*sys.argv[2:])

    def answer(value: dict[str, Any]) -> None:
        answers.write(json.dumps(value) + "\n")
        answers.flush()

    answer({"ready": True})
    while True:
        request = json.loads(requests.get())
        try:
            answer({"value": handler(request)})
        except MemoryError as error:
            answer({"error": f"out of memory {error}", "kind": "oom"})
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            # TVM reports an allocation that failed as an ordinary error.
            kind = "oom" if "bad_alloc" in text or "out of memory" in text.lower() else "failed"
            answer({"error": text, "kind": kind})


if __name__ == "__main__":
    main()
