"""What kernels must give: takes candidates and how their inputs are filled, gives files that runners compare with."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import ThreadpoolController

from autofuse.cost.model import Candidate
from autofuse.measure.jobs import ArgumentSpec, fill_inputs

Arrays = Sequence[NDArray[Any]]
# Gives the right outputs of a candidate for its inputs; raises what says why there are none.
Reference = Callable[[Candidate, Arrays], Arrays]
# Bytes of right outputs that are kept: a group's configurations come in several batches.
_KEPT = 1 << 30


class RightOutputs:
    """Files in `folder`, computed once for the configurations of one group; the latest `least` groups' are all kept.

    `seed` fills the inputs.
    """

    def __init__(self, reference: Reference, folder: Path, seed: int, least: int) -> None:
        self._reference = reference
        self._folder = folder
        self._seed = seed
        self._least = least
        self._files: OrderedDict[object, Path] = OrderedDict()
        self._bytes = 0
        self._numbers = count()
        self._threads = ThreadpoolController()

    def file(self, candidate: Candidate, arguments: tuple[ArgumentSpec, ...]) -> Path:
        """An .npz file of the outputs in order. Raises what the reference raised."""
        group = candidate.group
        # The right outputs do not depend on the form in which a configuration takes its constants.
        key = (id(group.graph), group, tuple(replace(a, preparation="") for a in arguments))
        if key in self._files:
            self._files.move_to_end(key)
            return self._files[key]
        # The threads of a BLAS spin for a while when they are done, on the processors of the kernels timed next.
        with self._threads.limit(limits=1, user_api="blas"):
            outputs = self._reference(candidate, fill_inputs(arguments, self._seed))
        path = self._folder / f"expected{next(self._numbers)}.npz"
        np.savez(path, *[np.asarray(array) for array in outputs])
        self._bytes += path.stat().st_size
        self._files[key] = path
        # The jobs of one batch may all be waiting for theirs.
        while self._bytes > _KEPT and len(self._files) > self._least:
            oldest = self._files.popitem(last=False)[1]
            self._bytes -= oldest.stat().st_size
            oldest.unlink()
        return path
