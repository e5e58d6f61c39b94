"""The layouts at a group's borders, as records keep them: they depend on what is stored how, not on numbering."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_keys import Recipe, another_order, build, recipes, whole

from autofuse.graph.keys import canonical_text, workload_key
from autofuse.graph.model import Group
from autofuse.records.identity import layouts_text

slow = settings(max_examples=150, deadline=None, derandomize=True)
BLOCKED = "NCHW8c"


def stored(
    recipe: Recipe, layouts: dict[int, str], order: list[int] | None = None, prefix: str = "t", swap: bool = False
) -> Group:
    """The whole graph of a recipe; `layouts` of its values (n >= 0 is operator n's result, -1, -2 ... are inputs)."""
    graph = build(recipe, order, prefix, swap)
    given_order = range(-recipe.inputs, 0)
    number = dict(zip(reversed(given_order) if swap else given_order, range(recipe.inputs), strict=True))
    number |= {int(op.name.removeprefix(f"{prefix}op")): op.outputs[0] for op in graph.operators}
    names = {number[v]: layout for v, layout in layouts.items()}
    return whole(replace(graph, tensors=tuple(replace(t, layout=names.get(t.index, "")) for t in graph.tensors)))


@slow
@given(recipes(), st.integers(0, 1 << 16), st.data())
def test_names_numbers_and_order_do_not_matter(recipe: Recipe, seed: int, data: st.DataObject) -> None:
    values = range(-recipe.inputs, len(recipe.operators))
    layouts = {v: data.draw(st.sampled_from(["", BLOCKED])) for v in values}
    again = stored(recipe, layouts, another_order(recipe, seed), "renamed", bool(seed % 2))
    first = stored(recipe, layouts)
    assert layouts_text(again) == layouts_text(first)
    assert canonical_text(again) == canonical_text(first)
    asked_before = stored(recipe, layouts)
    workload_key(asked_before)
    assert layouts_text(asked_before) == layouts_text(first)


def test_equal_operators_side_by_side_may_be_swapped() -> None:
    """One reads and writes blocks, the other does not: which of them comes first is chance."""
    pair = Recipe(2, (("relu", (-1,)), ("relu", (-2,))), (0, 1))
    one = stored(pair, {-1: BLOCKED, 0: BLOCKED})
    other = stored(pair, {-2: BLOCKED, 1: BLOCKED})
    assert layouts_text(one) == layouts_text(other) == f",{BLOCKED}->,{BLOCKED}"


def test_what_belongs_together_stays_together() -> None:
    """Blocks in and plain out beside plain in and blocks out is not blocks through beside plain through."""
    pair = Recipe(2, (("relu", (-1,)), ("relu", (-2,))), (0, 1))
    through, crossed = stored(pair, {-1: BLOCKED, 0: BLOCKED}), stored(pair, {-1: BLOCKED, 1: BLOCKED})
    assert workload_key(through) == workload_key(crossed)
    assert layouts_text(through) != layouts_text(crossed)


def test_every_way_of_storing_symmetric_siblings_has_one_text() -> None:
    """Three equal products of one input: all that matters is how many weights are stored in blocks."""
    three = Recipe(4, (("mm", (-1, -2)), ("mm", (-1, -3)), ("mm", (-1, -4))), (0, 1, 2))
    texts: dict[int, set[str]] = {}
    for chosen in itertools.product(["", BLOCKED], repeat=3):
        texts.setdefault(chosen.count(BLOCKED), set()).add(
            layouts_text(stored(three, {-1: "NCHW", **dict(zip((-2, -3, -4), chosen, strict=True))}))
        )
    assert [len(texts[n]) for n in range(4)] == [1, 1, 1, 1]
    assert len(set.union(*texts.values())) == 4


@pytest.mark.parametrize("size", [4, 30])
def test_a_ring_may_be_turned(size: int) -> None:
    """More equal operators than numberings are compared: which are compared must not be chance either."""
    ring = Recipe(size, tuple(("add", (-1 - i, -1 - (i + 1) % size)) for i in range(size)), tuple(range(size)))
    texts = {layouts_text(stored(ring, {-1 - i: BLOCKED, (i + 2) % size: "NHWC"})) for i in range(0, size, 3)}
    assert len(texts) == 1
    assert layouts_text(stored(ring, {-1: BLOCKED, 3: "NHWC"})) not in texts


def test_a_result_stored_twice_names_both_layouts() -> None:
    recipe = Recipe(1, (("relu", (-1,)), ("layout_change", (0,))), (0, 1))
    assert layouts_text(stored(recipe, {0: BLOCKED})) == f"->,{BLOCKED}"
    assert layouts_text(stored(recipe, {1: BLOCKED})) == f"->,{BLOCKED}"


def test_layouts_of_a_chain_stand_in_the_order_of_use() -> None:
    recipe = Recipe(3, (("conv", (-1, -2)), ("add", (0, -3))), (1,))
    assert layouts_text(stored(recipe, {-2: "OIHW8i8o", -3: BLOCKED, 1: BLOCKED})) == f",OIHW8i8o,{BLOCKED}->{BLOCKED}"
    assert layouts_text(stored(recipe, {})) == ""


OTHER_PROCESS = """
import sys
sys.path.insert(0, {folder!r})
from test_keys_layouts import samples
print("\\n".join(samples()))
"""


def samples() -> list[str]:
    """Keys, graph digests and layouts of a few groups, symmetric ones among them."""
    from autofuse.graph.keys import graph_digest

    ring = tuple(("add", (-1 - i, -1 - (i + 1) % 5)) for i in range(5))
    chosen = [
        Recipe(2, (("add", (-1, -2)), ("relu", (0,))), (1,)),
        Recipe(4, (("mm", (-1, -2)), ("mm", (-1, -3)), ("mm", (-1, -4))), (0, 1, 2)),
        Recipe(5, ring, tuple(range(5))),
    ]
    groups = [stored(recipe, {-1: BLOCKED, 0: BLOCKED}) for recipe in chosen]
    return [f"{workload_key(g)} {graph_digest(g.graph)} {layouts_text(g)}" for g in groups]


def test_other_processes_with_other_hash_seeds_find_the_same_keys() -> None:
    code = OTHER_PROCESS.format(folder=str(Path(__file__).parent))
    here = samples()
    for seed in ("0", "1", "4242"):
        run = subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True
        )
        assert run.returncode == 0, run.stderr
        assert run.stdout.splitlines() == here
