"""What two measurements of a kernel differ by, for other ways to make one number of their samples: `ratio_forms.py`.

Usage: python scripts/ratio_forms.py [STORE...]

Prints, as a table, the median and the 95th percentile of the differences within all pairs that `autofuse records noise`
counts, a column for each hardware that a store has such pairs of. Default: the stores of data/. Nothing is measured,
and the stores are not changed.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from autofuse.errors import AutofuseError
from autofuse.records import Identity, Record, open_store
from autofuse.records.machines import row_names
from autofuse.records.noise import difference, pairs, quantiles
from autofuse.records.record import calmer_pairs, quiet, ratio_of
from autofuse.report.results import table

ROOT = Path(__file__).resolve().parent.parent
STORES = (ROOT / "data" / "records.db", ROOT / "data" / "unseen.db")
Form = Callable[[Sequence[float], Sequence[float]], float]


def _paired(times: Sequence[float], beside: Sequence[float]) -> float:
    return statistics.median(time / other for time, other in calmer_pairs(times, beside))


#: From the samples of a kernel, and those of its reference beside them, to one number.
FORMS: Mapping[str, Form] = {
    "quiet times, no reference": lambda times, _: quiet(times),
    "ratio of quiet times": lambda times, beside: quiet(times) / quiet(beside),
    "median of the pairs' ratios": _paired,
    "both, as it is": ratio_of,
}


class Found(NamedTuple):
    """What a store says: how many kernels it has twice or more, and the differences within their pairs, by form."""

    kernels: int
    differences: Mapping[str, Sequence[float]]


def differences(repeated: Iterable[tuple[Record, Record]]) -> Found:
    """Of all pairs whose records both have samples of the reference that counts for them."""
    found: dict[str, list[float]] = {name: [] for name in FORMS}
    kernels: set[Identity] = set()
    for pair in repeated:
        beside = [record.reference_samples.get(record.reference) for record in pair]
        if not all(beside):
            continue
        kernels.add(pair[0].identity)
        for name, form in FORMS.items():
            a, b = (form(record.samples, others or ()) for record, others in zip(pair, beside, strict=True))
            found[name].append(difference(a, b))
    return Found(len(kernels), found)


def page(stores: Mapping[str, Found]) -> str:
    """A Markdown table: a row a form, a column for what is found in each place."""

    def cell(values: Sequence[float]) -> str:
        both = quantiles(values)
        return "–" if both is None else ", ".join(f"{100 * value:.1f} %" for value in both)

    headings = [f"{found.kernels} kernels of {name}" for name, found in stores.items()]
    rows = [[name, *(cell(found.differences[name]) for found in stores.values())] for name in FORMS]
    return table(["median, 95th percentile", *headings], rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Reads the stores and prints the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("stores", nargs="*", type=Path, default=STORES, metavar="STORE", help="default: those of data/")
    found = {}
    for path in parser.parse_args(arguments).stores:
        try:
            with open_store(path, readonly=True) as store:
                for digest, name in row_names(store.hardware()).items():
                    if (one := differences(pairs(store, digest))).kernels:
                        found[f"{path.name}, {name}"] = one
        except AutofuseError as error:
            print(f"error: {error}", file=sys.stderr)
            return 2
    print(page(found), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
