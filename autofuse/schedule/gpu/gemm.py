"""Matrix products and dense convolutions on a GPU as one tiled product (implicit GEMM), elementwise around them.

A workgroup makes a tile of rows × columns of the result. For each piece of the depth its threads bring a tile of both
operands to LDS (what stands before the product is computed on the way, a convolution's padding too), and a thread
multiplies a micro-tile in registers. What follows is computed on the micro-tile.

Rows are what the data alone is indexed by (places of images, rows of a matrix), columns what the weights alone are
(output channels, columns of a matrix), the depth what is summed over; what indexes both are batches.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import prod
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, Operator, Work
from autofuse.graph.reasons import Refusal
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily, remembered
from autofuse.schedule.gpu.elementwise import INJECTIVE
from autofuse.schedule.gpu.roof import terms
from autofuse.schedule.gpu.shape import BASE_REGISTERS, GpuShape, ceil_div, computed_again
from autofuse.target import GpuHardware, Hardware
from autofuse.target.gpu import MOST_THREADS

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

_CONFIGURATIONS = 24
_TILES = (128, 64, 32, 16)
_MICRO = ((8, 8), (8, 4), (4, 8), (4, 4), (4, 2), (2, 4), (2, 2))
_DEPTHS = (16, 8)
# Instructions of a lane around each piece of the depth: addresses, loads, stores to LDS (counted in compiled kernels).
_AROUND_A_PIECE = 60
# What a piece waits where its tile is brought before it is multiplied, in barriers.
_WAITS_PER_PIECE = 4


@dataclass(frozen=True)
class GpuGemmConfig(Configuration):
    """rows, columns, depth: of a workgroup's tile; micro_rows, micro_columns: of a thread's; buffers: 2 to bring the
    next piece of the depth to LDS while one is multiplied, 1 to wait for it.
    """

    rows: int
    columns: int
    depth: int
    micro_rows: int
    micro_columns: int
    buffers: int

    @property
    def threads(self) -> int:
        """Threads of a workgroup."""
        return (self.rows // self.micro_rows) * (self.columns // self.micro_columns)

    @property
    def lds_bytes(self) -> int:
        """Bytes of LDS of a workgroup."""
        return 4 * self.buffers * self.depth * (self.rows + self.columns)

    @property
    def registers(self) -> int:
        """Vector registers of a lane, estimated: the micro-tile, its operands twice, what is on its way to LDS."""
        moved = ceil_div(self.depth * (self.rows + self.columns), self.threads)
        micro = self.micro_rows * self.micro_columns
        return BASE_REGISTERS + micro + 2 * (self.micro_rows + self.micro_columns) + moved + moved // 4


@dataclass(frozen=True)
class Product:
    """Extents of a product: batches × rows × columns, summed over depth."""

    batches: int
    rows: int
    columns: int
    depth: int


def product_of(op: Operator, group: Group) -> Product | Refusal:
    """The product that an operator is, or why it is none."""
    tensors = group.graph.tensors
    if op.kind == "matmul" and op.spatial and op.reduction:
        left, right = (tensors[t].shape for t in op.inputs[:2])
        lead = op.spatial[:-2]
        if op.attrs.get("variant") == "packed":
            return Product(1, prod(op.spatial[:-1]), op.spatial[-1], prod(op.reduction))
        pads = [(1,) * (len(op.spatial) - len(s)) + tuple(s) for s in (left, right)]
        batches = prod(e for i, e in enumerate(lead) if pads[0][i] == pads[1][i] == e)
        single = [e for i, e in enumerate(lead) if pads[0][i] != pads[1][i]]
        rows = prod(e for i, e in enumerate(lead) if pads[0][i] != pads[1][i] and pads[0][i] == e)
        if prod(single) != rows:
            return Refusal("operands", f"{op.name} (matmul) repeats its left operand", (op.index,))
        return Product(batches, rows * op.spatial[-2], op.spatial[-1], prod(op.reduction))
    dense = op.kind == "nn.conv2d" and op.attrs.get("variant") == "blocked" and op.attrs.get("groups", 1) == 1
    if dense and len(op.spatial) == 5:
        n, outer, height, width, block = op.spatial
        return Product(1, n * height * width, outer * block, prod(op.reduction))
    return Refusal("anchor", f"{op.name} ({op.kind}) is no product of matrices", (op.index,))


@remembered
def _product(group: Group) -> Product | Refusal:
    """The group's product, or why it is not taken."""
    anchors = [op for op in group.operators if op.mapping not in INJECTIVE or op.reduction]
    if len(anchors) != 1:
        return Refusal("anchor", "not one product with elementwise operators around it", group.members)
    found = product_of(anchors[0], group)
    if isinstance(found, Refusal):
        return found
    tensors = group.graph.tensors
    shape = tensors[anchors[0].outputs[0]].shape
    after = set(anchors[0].outputs)
    for op in group.operators:
        if op is not anchors[0] and after.intersection(op.inputs):
            if not op.elementwise or tensors[op.outputs[0]].shape != shape:
                return Refusal("shape", f"{op.name} ({op.kind}) moves or repeats the product", (op.index,))
            after.update(op.outputs)
    if not after.issuperset(group.outputs):
        return Refusal("results", "a result does not depend on the product", group.members)
    return found


class GpuGemmFamily(ScheduleFamily):
    """One matrix product or dense convolution, anything injective before, elementwise operators after it."""

    name: ClassVar[str] = "gpu_gemm"
    version: ClassVar[int] = 2
    configuration: ClassVar[type[Configuration]] = GpuGemmConfig
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True
    one_shape: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Matrix products and convolutions."""
        return op.kind in ("matmul", "nn.conv2d")

    def admits(self, op: Operator) -> bool:
        """Those, and what neither reduces nor contracts."""
        return self.anchors(op) or (op.mapping in INJECTIVE and not op.reduction)

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """See the module's description."""
        found = _product(group)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[GpuGemmConfig]:
        """Tiles that fit the card, those first that take least by `roof.terms`."""
        assert isinstance(hardware, GpuHardware)
        return ranked(_extents(group), hardware)[:_CONFIGURATIONS]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """See `tiled`; what stands before the product is computed for each tile that reads it."""
        assert isinstance(config, GpuGemmConfig) and isinstance(hardware, GpuHardware)
        tensors, size = group.graph.tensors, _extents(group)
        memory = sum(tensors[t].bytes for t in (*group.inputs, *group.outputs))
        made = tiled(size, config, memory, sum(tensors[t].bytes for t in group.outputs))
        anchor = next(op for op in group.operators if op.reduction)
        brought = made.tasks * ceil_div(size.depth, config.depth) * config.depth
        again = computed_again(group, anchor, (brought * config.rows, brought * config.columns))
        return replace(made, extra_simple=made.extra_simple + int(again / made.recompute))

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule.gpu.gemm_nests import build

        return build(func, config)


def _extents(group: Group) -> Product:
    found = _product(group)
    assert isinstance(found, Product)
    return found


def _sensible(config: GpuGemmConfig, size: Product, hardware: GpuHardware) -> bool:
    """Whole waves of at most as many threads as there may be, whose tiles and registers fit."""
    threads = config.threads
    if not hardware.wave <= threads <= MOST_THREADS or threads % hardware.wave:
        return False
    if config.depth * min(config.rows, config.columns) < threads:
        return False  # threads would have nothing to bring
    if config.rows >= 2 * size.rows and config.rows > _TILES[-1]:
        return False
    if config.columns >= 2 * size.columns and config.columns > _TILES[-1]:
        return False
    if config.depth >= 2 * size.depth and config.depth > _DEPTHS[-1]:
        return False
    registers = config.registers
    return registers <= 128 and hardware.resident_waves(registers, config.lds_bytes, threads) > 0


@lru_cache(maxsize=1024)
def ranked(size: Product, hardware: GpuHardware) -> tuple[GpuGemmConfig, ...]:
    """The configurations that fit, best guess first: what stands around a product hardly changes their order."""
    work = Work(fma=size.batches * size.rows * size.columns * size.depth)
    found: dict[GpuGemmConfig, float] = {}
    for rows, columns, (micro_rows, micro_columns), depth, buffers in product(_TILES, _TILES, _MICRO, _DEPTHS, (2, 1)):
        config = GpuGemmConfig(rows, columns, depth, micro_rows, micro_columns, buffers)
        if _sensible(config, size, hardware):
            found[config] = terms(work, tiled(size, config, 0, 0), hardware)["total"]
    return tuple(sorted(found, key=lambda c: (found[c], c.text)))


def tiled(size: Product, config: GpuGemmConfig, memory: int, results: int) -> GpuShape:
    """A product in tiles (bytes: memory, results).

    Each workgroup reads its rows and columns once; L2 is asked for all of it, memory once. A lane does a little besides
    its multiply-adds: reads from LDS, and addresses of what it brings there.
    """
    rows, columns = ceil_div(size.rows, config.rows), ceil_div(size.columns, config.columns)
    groups = size.batches * rows * columns
    pieces = ceil_div(size.depth, config.depth)
    depth = pieces * config.depth
    moved = 4 * groups * depth * (config.rows + config.columns)
    micro, operands = config.micro_rows * config.micro_columns, config.micro_rows + config.micro_columns
    executed = groups * config.rows * config.columns * depth
    needed = size.batches * size.rows * size.columns * size.depth
    lanes = groups * config.threads
    return GpuShape(
        tasks=groups,
        accumulators=micro,
        independent_chains=micro,
        recompute=executed / needed,
        loads_per_fma=operands / (4 * micro),
        l1_bytes=moved + results,
        l2_bytes=moved + results,
        l3_bytes=memory,
        memory_bytes=memory,
        footprint=ceil_div(moved, groups),
        extra_simple=int(lanes * (depth * (operands / 4 + 0.5) + pieces * _AROUND_A_PIECE) * needed / executed),
        threads=config.threads,
        registers=config.registers,
        lds_bytes=config.lds_bytes,
        lds_traffic=moved + executed // micro * operands * 4,
        barriers=pieces * (1 if config.buffers == 2 else 1 + _WAITS_PER_PIECE),
    )
