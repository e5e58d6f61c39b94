"""Splits of a dataset for honest validation: takes each row's workload (and models), gives row numbers.

Rows of one workload never stand on both sides of a split.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.intp]


@dataclass(frozen=True)
class Split:
    """Row numbers to train on and to test on. `left_out`: rows that would belong to both and are in neither."""

    name: str
    train: Rows
    test: Rows
    left_out: Rows = field(default_factory=lambda: np.empty(0, np.intp))


def grouped_folds(groups: Sequence[str], folds: int, seed: int = 0) -> NDArray[np.intp]:
    """The fold (0 .. folds-1) of each row. Whole groups, in an order shuffled by `seed`, each to the smallest fold."""
    names, member, counts = np.unique(np.asarray(groups, object), return_inverse=True, return_counts=True)
    order = np.random.default_rng(seed).permutation(len(names))
    fold_of = np.empty(len(names), np.intp)
    sizes = np.zeros(folds, np.intp)
    for group in order:
        fold = int(np.argmin(sizes))
        fold_of[group] = fold
        sizes[fold] += counts[group]
    result: NDArray[np.intp] = fold_of[member]
    return result


def by_workload(groups: Sequence[str], folds: int, seed: int = 0) -> Iterator[Split]:
    """Each of the folds left out once."""
    fold = grouped_folds(groups, folds, seed)
    for k in range(folds):
        yield Split(f"fold {k}", np.flatnonzero(fold != k), np.flatnonzero(fold == k))


def leave_one_network_out(groups: Sequence[str], models: Sequence[Sequence[str]]) -> Iterator[Split]:
    """Each network left out once: trained on what other networks contain, tested on what only this one contains.

    Rows of workloads that it shares with others are trained on and not tested; `left_out` counts them.
    """
    shared: dict[str, set[str]] = {}
    for key, names in zip(groups, models, strict=True):
        shared.setdefault(key, set()).update(names)
    for network in sorted(set().union(*shared.values())):
        inside = np.array([network in shared[key] for key in groups], bool)
        alone = np.array([shared[key] == {network} for key in groups], bool)
        yield Split(network, np.flatnonzero(~alone), np.flatnonzero(alone), np.flatnonzero(inside & ~alone))


def leave_one_family_out(
    groups: Sequence[str], models: Sequence[Sequence[str]], kinds: Mapping[str, str]
) -> Iterator[Split]:
    """Each family of networks left out once; `kinds` says which family a network is of. Shared workloads as above."""
    renamed = [sorted({kinds[name] for name in names}) for names in models]
    if len({kind for names in renamed for kind in names}) > 1:
        yield from leave_one_network_out(groups, renamed)


def leave_hardware_out(groups: Sequence[str], hardware: Sequence[str], folds: int, seed: int = 0) -> Iterator[Split]:
    """For each hardware and fold of the workloads: trained on other hardware and other workloads, tested on this one.

    `hardware` says what each row is of: a pool of threads, or a machine with all its pools.

    `left_out` counts rows of this hardware that are trained on in no split of it, and of the fold elsewhere.
    """
    names = sorted(set(hardware))
    if len(names) < 2:
        return
    fold = grouped_folds(groups, folds, seed)
    here = np.asarray(hardware, object)
    for name in names:
        for k in range(folds):
            test = (here == name) & (fold == k)
            train = (here != name) & (fold != k)
            if test.any() and train.any():
                yield Split(name, np.flatnonzero(train), np.flatnonzero(test), np.flatnonzero(~test & ~train))


def kinds_of_networks(
    models: Sequence[Sequence[str]], convolved: NDArray[np.float64], multiplied: NDArray[np.float64]
) -> dict[str, str]:
    """Network → "cnn" or "transformer": what most of its measured multiply-adds are, of convolutions or of products.

    `convolved` and `multiplied` (n,) are the multiply-adds of each row's convolutions and products.
    """
    totals: dict[str, NDArray[np.float64]] = {}
    for names, conv, product in zip(models, convolved, multiplied, strict=True):
        for name in names:
            totals.setdefault(name, np.zeros(2))
            totals[name] += (conv, product)
    return {name: "cnn" if conv >= product else "transformer" for name, (conv, product) in totals.items()}
