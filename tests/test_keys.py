"""Workload keys: the same for the same computation however it is written, different for different ones."""

from __future__ import annotations

import random
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autofuse.graph.keys import canonical_text, graph_digest, workload_key
from autofuse.graph.model import Graph, Group, Operator, Role, Tensor


@dataclass(frozen=True)
class Recipe:
    """A graph as plain lists: operators are (form, operand values, number of results); values -1, -2 ... are inputs."""

    inputs: int
    operators: tuple[tuple[str, tuple[int, ...]], ...]
    outputs: tuple[int, ...]


def build(recipe: Recipe, order: list[int] | None = None, prefix: str = "t", swap_inputs: bool = False) -> Graph:
    """The graph of a recipe; value n >= 0 is operator n's result. `order`: another topological order to number by."""
    order = list(range(len(recipe.operators))) if order is None else order
    tensors: list[Tensor] = []
    number: dict[int, int] = {}

    def declare(value: int, role: Role) -> None:
        number[value] = len(tensors)
        tensors.append(Tensor(len(tensors), f"{prefix}{len(tensors)}", (2, 3), role=role, logical_shape=(2, 3)))

    declared = list(range(-recipe.inputs, 0))
    for value in reversed(declared) if swap_inputs else declared:
        declare(value, Role.INPUT)
    operators = []
    for n in order:
        form, operands = recipe.operators[n]
        declare(n, Role.VALUE)
        operators.append(
            Operator(
                index=len(operators), name=f"{prefix}op{n}", kind=form, form=form,
                inputs=tuple(number[v] for v in operands), outputs=(number[n],),
            )
        )  # fmt: skip
    inputs = tuple(sorted(number[v] for v in declared))
    return Graph(prefix, tuple(tensors), tuple(operators), inputs, tuple(sorted(number[v] for v in recipe.outputs)))


def whole(graph: Graph) -> Group:
    return Group.of(graph, range(len(graph.operators)), graph.outputs)


def key(recipe: Recipe) -> str:
    return workload_key(whole(build(recipe)))


@st.composite
def recipes(draw: st.DrawFn) -> Recipe:
    inputs = draw(st.integers(1, 4))
    operators: list[tuple[str, tuple[int, ...]]] = []
    for n in range(draw(st.integers(1, 7))):
        arity = draw(st.integers(1, 2))
        operands = tuple(draw(st.integers(-inputs, n - 1)) for _ in range(arity))
        # Few forms, so that parts look alike.
        operators.append((f"{draw(st.sampled_from('ab'))}{arity}", operands))
    read = {v for _, operands in operators for v in operands}
    unread = [n for n in range(len(operators)) if n not in read]
    extra = draw(st.lists(st.integers(0, len(operators) - 1), max_size=2, unique=True))
    return Recipe(inputs, tuple(operators), tuple(sorted({*unread, *extra})))


def another_order(recipe: Recipe, seed: int) -> list[int]:
    chooser = random.Random(seed)
    left, done, order = set(range(len(recipe.operators))), set(range(-recipe.inputs, 0)), []
    while left:
        n = chooser.choice(sorted(n for n in left if all(v in done for v in recipe.operators[n][1])))
        left.remove(n)
        done.add(n)
        order.append(n)
    return order


slow = settings(max_examples=150, deadline=None, derandomize=True)


@slow
@given(recipes(), st.integers(0, 1 << 16))
def test_names_numbers_and_order_do_not_matter(recipe: Recipe, seed: int) -> None:
    again = build(recipe, another_order(recipe, seed), "renamed", swap_inputs=bool(seed % 2))
    assert canonical_text(whole(again)) == canonical_text(whole(build(recipe)))


@slow
@given(recipes(), st.data())
def test_every_change_of_what_is_computed_changes_the_key(recipe: Recipe, data: st.DataObject) -> None:
    n = data.draw(st.integers(0, len(recipe.operators) - 1))
    form, operands = recipe.operators[n]

    def with_operator(operator: tuple[str, tuple[int, ...]]) -> Recipe:
        return replace(recipe, operators=(*recipe.operators[:n], operator, *recipe.operators[n + 1 :]))

    assert key(with_operator(("another form", operands))) != key(recipe)
    other = replace(recipe, outputs=tuple(sorted(set(recipe.outputs) ^ {n})))
    assert key(other) != key(recipe)
    assert key(with_operator((form, (*operands, operands[0])))) != key(recipe)


@slow
@given(recipes(), recipes())
def test_equal_keys_only_for_equal_groups(one: Recipe, two: Recipe) -> None:
    """The text says all: from it a graph is read back whose key is the same, so no two groups share one by accident."""
    for recipe in (one, two):
        text = canonical_text(whole(build(recipe)))
        assert canonical_text(whole(build(parsed(text)))) == text
    assert (key(one) == key(two)) == (canonical_text(whole(build(one))) == canonical_text(whole(build(two))))


def parsed(text: str) -> Recipe:
    """The recipe that a canonical text describes."""
    number: dict[str, int] = {}
    operators, outputs, inputs = [], [], 0
    for line in text.splitlines():
        name = line.split(" ", 1)[0]
        bare = name.rstrip("!")
        if bare.startswith("$"):
            inputs += 1
            number[bare] = -inputs
            continue
        form, operands = line.split(" = ", 1)[1].rsplit(" (", 1)
        number[bare] = len(operators)
        if name != bare:
            outputs.append(number[bare])
        operators.append((form, tuple(number[o] for o in operands.rstrip(")").split(","))))
    return Recipe(inputs, tuple(operators), tuple(outputs))


def test_one_tensor_twice_is_not_two_tensors() -> None:
    assert key(Recipe(1, (("add", (-1, -1)),), (0,))) != key(Recipe(2, (("add", (-1, -2)),), (0,)))


def test_operand_order_matters() -> None:
    recipe = Recipe(2, (("neg", (-1,)), ("sub", (0, -2))), (1,))
    assert key(recipe) != key(replace(recipe, operators=(("neg", (-1,)), ("sub", (-2, 0)))))


def test_siblings_that_share_an_input_differ_from_siblings_that_do_not() -> None:
    shared = Recipe(3, (("mm", (-1, -2)), ("mm", (-1, -3))), (0, 1))
    apart = Recipe(4, (("mm", (-1, -2)), ("mm", (-3, -4))), (0, 1))
    crossed = Recipe(3, (("mm", (-1, -2)), ("mm", (-2, -3))), (0, 1))
    assert len({key(shared), key(apart), key(crossed)}) == 3


def test_rings_of_equal_operators_are_told_apart_and_found_again() -> None:
    """Refinement alone cannot tell one ring of five from a ring of two beside a ring of three."""

    def ring(first: int, size: int) -> list[tuple[str, tuple[int, ...]]]:
        return [("add", (-(first + i), -(first + (i + 1) % size))) for i in range(size)]

    five = Recipe(5, tuple(ring(1, 5)), tuple(range(5)))
    split = Recipe(5, tuple(ring(1, 2) + ring(3, 3)), tuple(range(5)))
    turned = Recipe(5, tuple(ring(1, 3) + ring(4, 2)), tuple(range(5)))
    assert key(five) != key(split)
    assert key(split) == key(turned)


def test_many_equal_siblings_take_no_factorial_time() -> None:
    many = Recipe(41, tuple(("mm", (-1, -2 - i)) for i in range(40)), tuple(range(40)))
    order = list(reversed(range(40)))
    assert workload_key(whole(build(many, order))) == key(many)


def test_shapes_and_dtypes_of_outside_tensors_matter() -> None:
    graph = build(Recipe(1, (("relu", (-1,)),), (0,)))
    keys = {workload_key(whole(graph))}
    for changed in ({"dtype": "float16"}, {"logical_shape": (3, 2)}):
        tensors = (replace(graph.tensors[0], **changed), *graph.tensors[1:])  # type: ignore[arg-type]
        keys.add(workload_key(whole(replace(graph, tensors=tensors))))
    assert len(keys) == 3


def test_constants_and_inputs_are_operands_alike() -> None:
    graph = build(Recipe(2, (("add", (-1, -2)),), (0,)))
    tensors = (replace(graph.tensors[0], role=Role.CONSTANT), *graph.tensors[1:])
    assert workload_key(whole(replace(graph, tensors=tensors))) == workload_key(whole(graph))


def test_stored_shape_and_layout_do_not_matter() -> None:
    graph = build(Recipe(1, (("relu", (-1,)),), (0,)))
    tensors = tuple(replace(t, shape=(1, 2, 4), layout="NCHW4c") for t in graph.tensors)
    assert workload_key(whole(replace(graph, tensors=tensors))) == workload_key(whole(graph))


def test_a_layout_change_is_no_statement() -> None:
    plain = Recipe(1, (("conv", (-1,)), ("relu", (0,))), (1,))
    changed = Recipe(1, (("layout_change", (-1,)), ("conv", (0,)), ("relu", (1,)), ("layout_change", (2,))), (3,))
    assert key(changed) == key(plain)
    alone = Recipe(1, (("layout_change", (-1,)),), (0,))
    assert canonical_text(whole(build(alone))) == "$0! : float32[2, 3]"


def test_members_outside_a_group_do_not_matter() -> None:
    short = build(Recipe(1, (("a", (-1,)), ("b", (0,))), (1,)))
    long = build(Recipe(1, (("z", (-1,)), ("a", (0,)), ("b", (1,)), ("c", (2,))), (3,)))
    assert workload_key(Group.of(short, (0, 1))) == workload_key(Group.of(long, (1, 2)))


def test_keys_are_fixed_text_of_32_hex_digits() -> None:
    """A key is stored in records for years: this one must never change by accident."""
    got = key(Recipe(2, (("add", (-1, -2)), ("relu", (0,))), (1,)))
    assert canonical_text(whole(build(Recipe(2, (("add", (-1, -2)), ("relu", (0,))), (1,))))).splitlines() == [
        "$0 : float32[2, 3]", "$1 : float32[2, 3]", "%0 = add ($0,$1)", "%1! = relu (%0)",
    ]  # fmt: skip
    assert got == "f7c52221737360edeb4df1a427e3ed8c"


@pytest.mark.parametrize("length", [600, 3000])
def test_long_chains_are_no_problem(length: int) -> None:
    chain = Recipe(1, tuple(("relu", (n - 1,)) for n in range(length)), (length - 1,))
    assert len(key(chain)) == 32


def test_graph_digest_ignores_names_and_layouts_and_sees_the_rest() -> None:
    recipe = Recipe(2, (("add", (-1, -2)), ("relu", (0,))), (1,))
    graph = build(recipe)
    assert graph_digest(build(recipe, prefix="renamed")) == graph_digest(graph)
    blocked = replace(graph, tensors=tuple(replace(t, shape=(1, 2, 4), layout="NCHW4c") for t in graph.tensors))
    assert graph_digest(blocked) == graph_digest(graph)
    assert graph_digest(build(replace(recipe, outputs=(0, 1)))) != graph_digest(graph)
    assert graph_digest(build(replace(recipe, operators=(("mul", (-1, -2)), ("relu", (0,)))))) != graph_digest(graph)
