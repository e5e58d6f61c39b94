"""The operator graph: what flows from lowering to legality, cost and search. Plain data, no TVM.

A graph is built from a lowered Relax module (`graph/build.py`) or by hand (tests). Operators are numbered in a
topological order of the program; tensors are numbered in order of first appearance.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property


class MappingType(enum.Enum):
    """How an operator's output indices map to the indices of one of its inputs (DESIGN: mapping type)."""

    ONE_TO_ONE = "One-to-One"
    ONE_TO_MANY = "One-to-Many"
    MANY_TO_ONE = "Many-to-One"
    MANY_TO_MANY = "Many-to-Many"
    REORGANIZE = "Reorganize"
    SHUFFLE = "Shuffle"
    OPAQUE = "Opaque"


class Role(enum.Enum):
    """Where a tensor comes from."""

    INPUT = "input"
    CONSTANT = "constant"
    VALUE = "value"


_DTYPE_BITS = {"float64": 64, "int64": 64, "float32": 32, "int32": 32, "float16": 16, "int16": 16, "int8": 8,
               "uint8": 8, "uint32": 32, "uint64": 64, "uint16": 16, "bool": 8, "bfloat16": 16}  # fmt: skip


@dataclass(frozen=True)
class Tensor:
    """A value of the graph. `shape` is the stored shape; `logical_shape` the shape before any layout rewrite."""

    index: int
    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"
    role: Role = Role.VALUE
    layout: str = ""  # "" = as the model has it, else the blocked layout's name, e.g. "NCHW8c"
    logical_shape: tuple[int, ...] = ()

    @cached_property
    def elements(self) -> int:
        """Number of stored elements."""
        n = 1
        for extent in self.shape:
            n *= extent
        return n

    @cached_property
    def bytes(self) -> int:
        """Stored size in bytes."""
        return self.elements * _DTYPE_BITS.get(self.dtype, 32) // 8


@dataclass(frozen=True)
class Access:
    """How one operand of an operator is read.

    `reads_per_output`: distinct input elements that one output element needs; `uses_per_element`: output elements
    that read one input element (the largest count). `stride`: distance, in elements, between what two neighbours on
    the innermost output axis read (0: the same element, 1: contiguous, other: strided; -1: not constant).
    """

    operand: int
    tensor: int
    mapping: MappingType
    reads_per_output: int = 1
    uses_per_element: int = 1
    stride: int = 1
    reason: str = ""


@dataclass(frozen=True)
class Work:
    """Scalar operations that the operator executes in total, by class."""

    fma: int = 0  # multiply-adds of a reduction
    simple: int = 0  # add, subtract, multiply, negate, cast ...
    divide: int = 0  # divisions and square roots
    special: int = 0  # exp, tanh, erf, log, sigmoid, pow ...
    compare: int = 0  # min, max, comparisons, selects

    def __add__(self, other: Work) -> Work:
        return Work(
            self.fma + other.fma,
            self.simple + other.simple,
            self.divide + other.divide,
            self.special + other.special,
            self.compare + other.compare,
        )

    @property
    def flops(self) -> int:
        """Floating point operations: a multiply-add counts as two, everything else as one."""
        return 2 * self.fma + self.simple + self.divide + self.special + self.compare


@dataclass(frozen=True)
class Operator:
    """One operator: `kind` is the Relax operator's name without its prefix ("nn.conv2d", "add", "layout_change").

    `form` is the canonical text of what it computes on logical shapes (kind, attributes, logical operand and result
    types): the workload key hashes it. `attrs` holds what schedules need (strides, padding, "variant" ...).
    `spatial` are the extents of the stored output, `reduction` those of its main reduction (empty if none).
    """

    index: int
    name: str
    kind: str
    form: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    accesses: tuple[Access, ...] = ()
    work: Work = Work()
    attrs: Mapping[str, object] = field(default_factory=dict, hash=False, compare=False)
    spatial: tuple[int, ...] = ()
    reduction: tuple[int, ...] = ()
    blocks: int = 1  # loop nests that its unscheduled kernel has (softmax has four)

    @property
    def fusable(self) -> bool:
        """False for operators that are no tensor program (kept outside every group)."""
        return all(a.mapping is not MappingType.OPAQUE for a in self.accesses) and len(self.outputs) == 1

    @cached_property
    def elementwise(self) -> bool:
        """Whether it has one result, and reads all operands element by element or under a broadcast."""
        plain = (MappingType.ONE_TO_ONE, MappingType.ONE_TO_MANY)
        return len(self.outputs) == 1 and all(a.mapping in plain for a in self.accesses)

    @cached_property
    def mapping(self) -> MappingType:
        """The operator's mapping type as a whole: that of the operand that constrains fusion most."""
        order = (
            MappingType.OPAQUE,
            MappingType.MANY_TO_MANY,
            MappingType.MANY_TO_ONE,
            MappingType.SHUFFLE,
            MappingType.REORGANIZE,
        )
        kinds = {a.mapping for a in self.accesses}
        for kind in order:
            if kind in kinds:
                return kind
        # A broadcast operand (a bias) does not make its operator One-to-Many while another operand is read One-to-One.
        if MappingType.ONE_TO_ONE in kinds or not kinds:
            return MappingType.ONE_TO_ONE
        return MappingType.ONE_TO_MANY


@dataclass(frozen=True)
class Graph:
    """Operators in topological order, their tensors, and which tensors go in and come out."""

    name: str
    tensors: tuple[Tensor, ...]
    operators: tuple[Operator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @cached_property
    def producer(self) -> dict[int, int]:
        """Tensor → index of the operator that makes it (inputs and constants are absent)."""
        return {t: op.index for op in self.operators for t in op.outputs}

    @cached_property
    def users(self) -> dict[int, tuple[int, ...]]:
        """Tensor → indices of the operators that read it, ascending, each once."""
        users: dict[int, list[int]] = {}
        for op in self.operators:
            for t in dict.fromkeys(op.inputs):
                users.setdefault(t, []).append(op.index)
        return {t: tuple(ops) for t, ops in users.items()}

    @cached_property
    def predecessors(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the operators whose results it reads, ascending, each once."""
        return tuple(
            tuple(sorted({self.producer[t] for t in op.inputs if t in self.producer})) for op in self.operators
        )

    @cached_property
    def successors(self) -> tuple[tuple[int, ...], ...]:
        """For each operator, the operators that read its results, ascending, each once."""
        after: list[set[int]] = [set() for _ in self.operators]
        for op in self.operators:
            for p in self.predecessors[op.index]:
                after[p].add(op.index)
        return tuple(tuple(sorted(s)) for s in after)

    @cached_property
    def user_masks(self) -> tuple[int, ...]:
        """For each operator, the bit set of its successors, with one bit more where a result is an output."""
        final, outside = set(self.outputs), 1 << len(self.operators)
        masks = []
        for op in self.operators:
            mask = 0 if final.isdisjoint(op.outputs) else outside
            for s in self.successors[op.index]:
                mask |= 1 << s
            masks.append(mask)
        return tuple(masks)

    @cached_property
    def ancestors(self) -> tuple[int, ...]:
        """For each operator, the bit set of operators that it depends on, itself excluded."""
        masks: list[int] = []
        for op in self.operators:
            mask = 0
            for p in self.predecessors[op.index]:
                mask |= masks[p] | (1 << p)
            masks.append(mask)
        return tuple(masks)

    @cached_property
    def descendants(self) -> tuple[int, ...]:
        """For each operator, the bit set of operators that depend on it, itself excluded."""
        masks = [0] * len(self.operators)
        for op in reversed(self.operators):
            for s in self.successors[op.index]:
                masks[op.index] |= masks[s] | (1 << s)
        return tuple(masks)


def bits(mask: int) -> Iterator[int]:
    """The positions of the set bits, ascending."""
    if mask:
        # Counted from the lowest one: sets of neighbours then are small numbers.
        first = (mask & -mask).bit_length() - 1
        mask >>= first
        while mask:
            low = mask & -mask
            yield first + low.bit_length() - 1
            mask ^= low


_OF_BYTE = tuple(tuple(bits(byte)) for byte in range(256))


def positions(mask: int) -> list[int]:
    """The positions of the set bits, ascending: quicker than `bits` where all of them are wanted and lie close."""
    found: list[int] = []
    if mask:
        first = (mask & -mask).bit_length() - 1
        mask >>= first
        while mask:
            found += [first + bit for bit in _OF_BYTE[mask & 255]]
            mask >>= 8
            first += 8
    return found


@dataclass(frozen=True)
class Group:
    """A set of operators that becomes one kernel. `members` ascend; `outputs` are the tensors it writes to memory.

    A member whose tensor is used outside but is not among `outputs` is recomputed: some other group computes it too.
    Two groups are equal if members and outputs are; the graph is shared and does not take part.
    """

    graph: Graph = field(compare=False, repr=False, hash=False)
    members: tuple[int, ...]
    outputs: tuple[int, ...]

    @classmethod
    def of(cls, graph: Graph, members: Iterable[int], outputs: Iterable[int] | None = None) -> Group:
        """Group of `members`; by default it writes what is used outside or is an output of the graph."""
        chosen = tuple(sorted(set(members)))
        if outputs is None:
            inside = set(chosen)
            final = set(graph.outputs)
            outputs = [
                t
                for m in chosen
                for t in graph.operators[m].outputs
                if t in final or any(u not in inside for u in graph.users.get(t, ()))
            ]
        return cls(graph, chosen, tuple(sorted(outputs)))

    @classmethod
    def made(cls, graph: Graph, members: tuple[int, ...], outputs: tuple[int, ...], mask: int) -> Group:
        """A group whose bit set is known already: quicker where thousands are made."""
        group: Group = object.__new__(cls)
        group.__dict__.update(graph=graph, members=members, outputs=outputs, mask=mask)
        return group

    @cached_property
    def mask(self) -> int:
        """The members as a bit set."""
        mask = 0
        for m in self.members:
            mask |= 1 << m
        return mask

    @cached_property
    def operators(self) -> tuple[Operator, ...]:
        """The member operators, in topological order."""
        operators = self.graph.operators
        return tuple([operators[m] for m in self.members])

    @cached_property
    def inputs(self) -> tuple[int, ...]:
        """Tensors that it reads from outside (constants too), in order of first use, each once."""
        made = {t for op in self.operators for t in op.outputs}
        return tuple(dict.fromkeys([t for op in self.operators for t in op.inputs if t not in made]))

    @cached_property
    def internal(self) -> tuple[int, ...]:
        """Tensors made inside and not written to memory."""
        written = set(self.outputs)
        return tuple([t for op in self.operators for t in op.outputs if t not in written])

    @cached_property
    def work(self) -> Work:
        """Sum of the members' work, no recompute counted."""
        fma = simple = divide = special = compare = 0
        for op in self.operators:
            work = op.work
            fma += work.fma
            simple += work.simple
            divide += work.divide
            special += work.special
            compare += work.compare
        return Work(fma, simple, divide, special, compare)

    @cached_property
    def anchors(self) -> tuple[Operator, ...]:
        """Members that are Many-to-Many (convolutions, matmuls), in topological order."""
        return tuple(op for op in self.operators if op.mapping is MappingType.MANY_TO_MANY)

    @property
    def label(self) -> str:
        """Short readable name: the members' kinds joined, long ones cut."""
        kinds = [op.kind.removeprefix("nn.") for op in self.operators]
        text = "+".join(kinds[:6])
        return text if len(kinds) <= 6 else f"{text}+{len(kinds) - 6} more"
