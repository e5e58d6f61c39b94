"""Hypothesis strategies for graphs and for choices over them, without TVM; small builders of graphs by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import strategies as st

from autofuse.graph.legality import check_structure, convex_hull, recomputable
from autofuse.graph.model import Access, Graph, Group, MappingType, Operator, Role, Tensor, Work, bits
from autofuse.search.problem import Choice, SearchProblem, Thresholds

ONE, SPREAD, REDUCE, HEAVY, SAME, MOVE, OPAQUE = (
    MappingType.ONE_TO_ONE,
    MappingType.ONE_TO_MANY,
    MappingType.MANY_TO_ONE,
    MappingType.MANY_TO_MANY,
    MappingType.REORGANIZE,
    MappingType.SHUFFLE,
    MappingType.OPAQUE,
)


class GraphBuilder:
    """Builds a Graph operator by operator. Methods take and give tensor indices; shapes are those of matrices."""

    def __init__(self, name: str = "graph") -> None:
        self.name = name
        self.tensors: list[Tensor] = []
        self.operators: list[Operator] = []
        self.inputs: list[int] = []

    def _tensor(self, name: str, shape: tuple[int, ...], role: Role) -> int:
        self.tensors.append(Tensor(len(self.tensors), name, shape, role=role, logical_shape=shape))
        return len(self.tensors) - 1

    def shape(self, tensor: int) -> tuple[int, ...]:
        """Shape of a tensor."""
        return self.tensors[tensor].shape

    def input(self, *shape: int) -> int:
        """A new input of the graph."""
        t = self._tensor(f"x{len(self.inputs)}", shape or (16, 32), Role.INPUT)
        self.inputs.append(t)
        return t

    def constant(self, *shape: int) -> int:
        """A new constant."""
        return self._tensor(f"c{len(self.tensors)}", shape, Role.CONSTANT)

    def operator(
        self,
        kind: str,
        inputs: Sequence[int],
        mappings: Sequence[MappingType],
        shape: tuple[int, ...],
        *,
        reduction: tuple[int, ...] = (),
        work: Work | None = None,
    ) -> int:
        """A new operator; gives its result."""
        index = len(self.operators)
        out = self._tensor(f"v{index}", shape, Role.VALUE)
        elements = self.tensors[out].elements
        span = 1
        for extent in reduction:
            span *= extent
        accesses = tuple(
            Access(i, t, m, reads_per_output=span if m in (REDUCE, HEAVY) else 1)
            for i, (t, m) in enumerate(zip(inputs, mappings, strict=True))
        )
        shapes = ",".join("x".join(map(str, self.shape(t))) for t in inputs)
        self.operators.append(
            Operator(
                index,
                f"{kind.removeprefix('nn.')}_{index}",
                kind,
                f"{kind}({shapes})->{'x'.join(map(str, shape))}",
                tuple(inputs),
                (out,),
                accesses,
                work or (Work(fma=elements * span) if HEAVY in mappings else Work(simple=elements * span)),
                spatial=shape,
                reduction=reduction,
            )
        )
        return out

    def unary(self, x: int, kind: str = "nn.relu") -> int:
        """Element by element."""
        return self.operator(kind, [x], [ONE], self.shape(x))

    def binary(self, a: int, b: int, kind: str = "add") -> int:
        """Element by element; an operand with extent 1 where the result has more is broadcast."""
        shape = tuple(max(m, n) for m, n in zip(self.shape(a), self.shape(b), strict=True))
        return self.operator(kind, [a, b], [ONE if self.shape(t) == shape else SPREAD for t in (a, b)], shape)

    def reduce(self, x: int, kind: str = "sum") -> int:
        """Over the last axis, kept with extent 1."""
        rows, columns = self.shape(x)
        return self.operator(kind, [x], [REDUCE], (rows, 1), reduction=(columns,))

    def matmul(self, x: int, w: int | None = None, columns: int = 32) -> int:
        """x times w, or times a new constant with so many columns."""
        rows, inner = self.shape(x)
        w = self.constant(inner, columns) if w is None else w
        return self.operator("matmul", [x, w], [HEAVY, HEAVY], (rows, self.shape(w)[1]), reduction=(inner,))

    def transpose(self, x: int) -> int:
        """Axes swapped."""
        rows, columns = self.shape(x)
        return self.operator("permute_dims", [x], [MOVE], (columns, rows))

    def reshape(self, x: int, shape: tuple[int, ...]) -> int:
        """The same elements in the same order."""
        return self.operator("reshape", [x], [SAME], shape)

    def concat(self, parts: Sequence[int]) -> int:
        """Along the first axis."""
        rows = sum(self.shape(t)[0] for t in parts)
        return self.operator("concat", parts, [ONE] * len(parts), (rows, self.shape(parts[0])[1]))

    def opaque(self, x: int) -> int:
        """A call that is no tensor program."""
        return self.operator("call_packed", [x], [OPAQUE], self.shape(x))

    def build(self, outputs: Sequence[int] = ()) -> Graph:
        """The graph; by default everything that nothing reads is an output."""
        used = {t for op in self.operators for t in op.inputs}
        ends = [t for op in self.operators for t in op.outputs if t not in used]
        final = tuple(dict.fromkeys([*outputs, *ends]))
        return Graph(self.name, tuple(self.tensors), tuple(self.operators), tuple(self.inputs), final)


def chain(length: int, kinds: Sequence[str] = ("nn.relu", "exp", "negative", "tanh")) -> Graph:
    """A chain of operators that work element by element."""
    b = GraphBuilder("chain")
    x = b.input(64, 64)
    for i in range(length):
        x = b.unary(x, kinds[i % len(kinds)])
    return b.build()


@st.composite
def graphs(draw: st.DrawFn, max_operators: int = 12, opaque: bool = False) -> Graph:
    """A graph of matrices: element-by-element, broadcast, reductions, matmuls, transposes, reshapes; maybe opaque."""
    b = GraphBuilder("random")
    for _ in range(draw(st.integers(1, 2))):
        b.input(16, 32)
    kinds = ["unary", "unary", "binary", "binary", "bias", "reduce", "matmul", "transpose", "reshape"]
    kinds += ["opaque"] if opaque else []
    values = list(b.inputs)
    for _ in range(draw(st.integers(1, max_operators))):
        # recent values more often: deep graphs as well as wide ones
        x = values[-1 - min(draw(st.integers(0, 5)), len(values) - 1)]
        kind = draw(st.sampled_from(kinds))
        if kind == "unary":
            made = b.unary(x, draw(st.sampled_from(["nn.relu", "exp", "negative"])))
        elif kind == "binary":
            rows, columns = b.shape(x)
            fits = [t for t in values if b.shape(t) in ((rows, columns), (rows, 1))]
            made = b.binary(x, draw(st.sampled_from(fits)), draw(st.sampled_from(["add", "multiply"])))
        elif kind == "bias":
            made = b.binary(x, b.constant(1, b.shape(x)[1]))
        elif kind == "reduce":
            made = b.reduce(x)
        elif kind == "matmul":
            made = b.matmul(x)
        elif kind == "transpose":
            made = b.transpose(x)
        elif kind == "reshape":
            rows, columns = b.shape(x)
            made = b.reshape(x, (rows, columns) if columns == 1 else (rows * 2, columns // 2))
        else:
            made = b.opaque(x)
        values.append(made)
    extra = draw(st.lists(st.sampled_from([t for op in b.operators for t in op.outputs]), max_size=2))
    return b.build(extra)


def legal_groups(graph: Graph, *, recompute: bool = True, max_size: int = 12, limit: int = 400) -> list[Group]:
    """Convex connected groups of a small graph, with several outputs and recomputed producers, in a fixed order."""
    seen = {1 << op.index for op in graph.operators}
    todo = sorted(seen)
    for mask in todo:
        if len(todo) >= limit:
            break
        near = 0
        for m in bits(mask):
            for other in (*graph.successors[m], *graph.predecessors[m]):
                near |= 1 << other
        for x in bits(near & ~mask):
            bigger = convex_hull(graph, mask | 1 << x)
            if bigger not in seen and bigger.bit_count() <= max_size:
                seen.add(bigger)
                todo.append(bigger)
    groups = []
    for mask in todo:
        group = Group.of(graph, bits(mask))
        variants = [group]
        if recompute:
            for m in group.members:
                made = graph.operators[m].outputs[0]
                if made in group.outputs and recomputable(graph.operators[m]) and len(group.outputs) > 1:
                    variants.append(replace(group, outputs=tuple(t for t in group.outputs if t != made)))
        groups += [g for g in variants if check_structure(g, max_arguments=99, max_group_size=max_size) is None]
    singles = [Group.of(graph, [op.index]) for op in graph.operators]
    return list(dict.fromkeys([*singles, *groups]))


@st.composite
def problems(
    draw: st.DrawFn,
    max_operators: int = 12,
    max_choices: int = 40,
    recompute: bool = True,
    thresholds: Thresholds | None = None,
) -> SearchProblem:
    """A random graph, random choices over it with random costs, a random greedy partition among them."""
    graph = draw(graphs(max_operators))
    groups = legal_groups(graph, recompute=recompute)
    count = len(graph.operators)
    singles, more = groups[:count], groups[count:]
    rng = draw(st.randoms(use_true_random=False))
    private = [g for g in more if Choice(g, 0.0).recomputed]
    more = rng.sample(more, min(len(more), rng.randint(0, max_choices)))
    more += [g for g in private[:8] if g not in more]
    alone = [rng.uniform(1.0, 10.0) for _ in singles]
    choices = [Choice(g, c) for g, c in zip(singles, alone, strict=True)]
    for g in more:
        # between a good deal cheaper than apart and a little dearer
        choices.append(Choice(g, sum(alone[m] for m in g.members) * rng.uniform(0.3, 1.2)))
    greedy: list[tuple[int, ...]] = []
    free = (1 << count) - 1
    for c in rng.sample(choices, len(choices)):
        if not c.recomputed and not c.group.mask & ~free and rng.random() < 0.7:
            greedy.append(c.group.members)
            free &= ~c.group.mask
    return SearchProblem(
        graph,
        tuple(choices),
        thresholds or Thresholds(frontier_values=99, groups_per_state=10_000, states_per_region=10**9),
        call_cost=draw(st.sampled_from([0.0, 0.5, 2.0])),
        greedy=tuple(greedy),
    )
