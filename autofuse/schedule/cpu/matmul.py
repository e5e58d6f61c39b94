"""Schedule family of matrix products with elementwise work before and after them, or with what reduces their rows.

A register tile of rows × blocks of columns accumulates over the whole depth; what follows is applied to it before it is
stored, moved to its place where heads are split or merged. Where the rows of the result are reduced (softmax), a task
takes tiles of rows with all their columns, or the whole product comes first and its rows are finished after it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar

from autofuse.graph.model import Group, MappingType, Operator
from autofuse.graph.reasons import Refusal, matched
from autofuse.schedule.cpu.product import Product, parse
from autofuse.schedule.cpu.window import chains_needed
from autofuse.schedule.family import Configuration, KernelShape, ScheduleFamily
from autofuse.target import Hardware

if TYPE_CHECKING:
    from tvm.tirx import PrimFunc

# Floating point operations below which a second thread costs more than it brings.
_SERIAL_FLOPS = 200_000
# Cycles that a step of the depth takes beyond its multiply-adds (fitted: 6 rows are some percent faster than 4).
_STEP = 0.25
# Share of the operands' traffic that multiply-adds wait for, although it goes on beside them (fitted: products that
# read the same weights from L3 once and eight times).
_WAITED = 0.3


@dataclass(frozen=True)
class MatmulConfiguration(Configuration):
    """Register tile: `mt` rows × `jt` blocks of 2·lanes columns. A task: `rb` tiles of rows × `cb` tiles of columns.

    order: 0 walks columns outside and rows inside, 1 the other way round (and finishes the rows that are reduced tile
    by tile); 2 is as 0, and finishes the rows that are reduced when all columns of all rows are there. pack: the
    right-hand side is read as it is (0), or put in blocks by each task (1) or before (2). stage: the same for the
    left-hand side, which is otherwise computed as it is read. parallel: 0 runs on the calling thread.
    """

    mt: int
    jt: int
    rb: int
    cb: int
    order: int
    pack: int
    stage: int
    parallel: int


class MatmulFamily(ScheduleFamily):
    """One float32 matrix product, packed or of two activations, and what can be computed with it."""

    name: ClassVar[str] = "matmul"
    version: ClassVar[int] = 4
    configuration: ClassVar[type[Configuration]] = MatmulConfiguration
    most_anchors: ClassVar[int] = 1
    results_behind: ClassVar[bool] = True

    def anchors(self, op: Operator) -> bool:
        """Matrix products."""
        return op.kind == "matmul"

    def match(self, group: Group, hardware: Hardware) -> Refusal | None:
        """One product; injective operators before it; after it such as move no vector apart, or reduce its rows."""
        found = parse(group, hardware.lanes)
        return found if isinstance(found, Refusal) else None

    def configs(self, group: Group, hardware: Hardware) -> Sequence[MatmulConfiguration]:
        """Register tiles that fit, each with the task shapes that suit the operands."""
        p = self._product(group, hardware)
        found: dict[MatmulConfiguration, None] = {}
        per_tile = [list(_tasks(p, mt, jt, hardware)) for mt, jt in _tiles(p.rows, p.columns, p.depth, hardware)[:3]]
        for rank in range(max(len(tasks) for tasks in per_tile)):
            for tasks in per_tile:
                if rank < len(tasks):
                    found[tasks[rank]] = None
        return list(found)[:10]

    def shape(self, group: Group, config: Configuration, hardware: Hardware) -> KernelShape:
        """Traffic from the loop order: a panel of columns stays near while rows pass by it, or the other way round."""
        assert isinstance(config, MatmulConfiguration)
        return _shape(self._product(group, hardware), config, hardware)

    def apply(self, func: PrimFunc, group: Group, config: Any, hardware: Hardware) -> PrimFunc:
        """See the module's description."""
        from autofuse.schedule import blocks
        from autofuse.schedule.cpu.matmul_nests import MatmulNests

        product = self._product(group, hardware)
        return blocks.guarded(
            f"matmul {config.text}", lambda: MatmulNests(func, product, config, hardware.lanes).build()
        )

    def _product(self, group: Group, hardware: Hardware) -> Product:
        return matched(parse(group, hardware.lanes))


def _ceil_div(a: int, b: int) -> int:
    return -(-a // b)


@lru_cache(maxsize=4096)
def even_shares(tiles: int, wanted: int, cores: int) -> tuple[int, int]:
    """Tiles of a task, for at most `wanted` tasks: the smallest and the largest share of the most even ones.

    The pool gives each core as many tasks, one after another: even is what leaves the busiest core the least.
    """
    least = _ceil_div(tiles, wanted)
    shares = range(least, max(least, _ceil_div(tiles, min(cores, wanted))) + 1)
    busiest = {share: share * _ceil_div(_ceil_div(tiles, share), cores) for share in shares}
    fewest = min(busiest.values())
    even = [share for share in shares if busiest[share] == fewest]
    return even[0], even[-1]


@lru_cache(maxsize=1024)
def _tiles(rows: int, columns: int, depth: int, hardware: Hardware) -> list[tuple[int, int]]:
    """Register tiles (mt, jt), best first: accumulators, 2·jt weights and one broadcast must fit the registers."""
    registers = hardware.vector_registers
    most = registers - registers // 4
    chains = chains_needed(hardware)
    blocks = _ceil_div(columns, 2 * hardware.lanes)
    scored = []
    for jt in range(1, min(6, blocks) + 1):
        for mt in range(1, min(rows, 12) + 1):
            tile = mt * 2 * jt
            # With one row every weight is used once, straight from memory.
            weights = 2 * jt if mt > 1 else 0
            if tile > most or tile + weights + 1 > registers:
                continue

            def cost(m: int, j: int) -> float:
                # Weights that do not stay in L1 from one tile of rows to the next come from L2: 0.6 vectors a cycle.
                far = 4 * depth * j * 2 * hardware.lanes > hardware.l1_bytes // 2
                slots = max(m * j, (2 * j + m) / 2.5, chains / 2.0, 3.2 * j if far else 0.0)
                return slots + _STEP if m and j else 0.0

            full, rest = divmod(rows, mt)
            across, left = divmod(blocks, jt)
            time = across * (full * cost(mt, jt) + cost(rest, jt)) + full * cost(mt, left) + cost(rest, left)
            scored.append((round(time / rows / blocks, 3), rest != 0, jt if rows > 1 else -jt, -mt, (mt, jt)))
    scored.sort()
    return [item[-1] for item in scored]


def _tasks(p: Product, mt: int, jt: int, hardware: Hardware) -> list[MatmulConfiguration]:
    """Task shapes for one register tile, best first."""
    rows, columns = _ceil_div(p.rows, mt), _ceil_div(p.columns, jt * 2 * hardware.lanes)
    wanted = max(1, _ceil_div(4 * hardware.cores, p.batch))
    flops = 2 * p.batch * p.rows * p.columns * p.depth
    computed = any(op.mapping is not MappingType.REORGANIZE for op in p.left)
    direct = not p.packed and not p.transposed and not any(op.work.flops for op in p.right)
    made: dict[MatmulConfiguration, None] = {}

    def add(rb: int, cb: int, order: int, pack: int, stage: int, parallel: int = 1) -> None:
        rb, cb = max(1, min(rb, rows)), max(1, min(cb, columns))
        if p.along_rows and order < 2:
            cb = columns
        tasks = p.batch * _ceil_div(rows, rb) * _ceil_div(columns, cb)
        if hardware.cores == 1 or (tasks == 1 and pack != 2 and stage != 2):
            parallel = 0
        made[MatmulConfiguration(mt, jt, rb, cb, order, pack, stage, parallel)] = None

    # Columns are read by one task each, whatever its share; the more rows a task has, the less often.
    by_rows, by_columns = even_shares(rows, wanted, hardware.cores)[1], even_shares(columns, wanted, hardware.cores)[0]
    # A right-hand side that is packed pays off when several tiles of rows read it.
    packs = [0] if p.packed else ([0, 1] if direct else [1, 2] if rows > 1 else [1])
    if not p.packed and p.batch < hardware.cores:
        packs = [0, 2, 1] if direct else [2, 1]
    stages = [1, 2] if computed and _work_before(p) else [0, 1] if computed else [0]
    if stages == [0, 1] and _moved(p):
        stages = [2, 0] if columns > 4 else [0, 2]  # places are computed once, or for few tiles of columns
    serial = flops < _SERIAL_FLOPS
    if serial:
        add(rows, columns, 0, 1 if packs[0] == 2 else packs[0], 1 if stages[0] else 0, 0)
    for pack in packs:
        for stage in stages:
            if p.batch >= 2 * hardware.cores:
                add(rows, columns, int(p.along_rows), pack, stage)
            if stage != 1 and pack != 1 and (rows > 1 or not p.along_rows):
                add(rows, by_columns, 2 if p.along_rows else 0, pack, stage)
            if rows > 1:
                add(by_rows, columns, 0, pack, stage)
                add(by_rows, columns, 1, pack, stage)
            elif stage == 1 or pack == 1:
                add(rows, by_columns, 0, pack, stage)
    if not serial and flops < 10 * _SERIAL_FLOPS:
        add(rows, columns, 0, 1 if packs[0] == 2 else packs[0], 1 if stages[0] else 0, 0)
    return list(made)


def _work_before(p: Product) -> bool:
    """Whether computing an element of the left-hand side again for every tile of columns would cost."""
    return any(op.work.special or op.work.divide or op.work.flops for op in p.left)


def _moved(p: Product) -> bool:
    """Whether each element of the left-hand side has a place of its own, which is computed wherever it is read."""
    return p.packed and any(op.mapping is MappingType.SHUFFLE for op in p.left)


def _shape(p: Product, c: MatmulConfiguration, hardware: Hardware) -> KernelShape:
    lanes = hardware.lanes
    rows, columns = _ceil_div(p.rows, c.mt), _ceil_div(p.columns, c.jt * 2 * lanes)
    row_tasks, column_tasks = _ceil_div(rows, c.rb), _ceil_div(columns, c.cb)
    tasks = p.batch * row_tasks * column_tasks
    vectors = _ceil_div(p.columns, lanes)
    accumulators = min(c.mt, p.rows) * min(2 * c.jt, vectors)
    panel = 4 * p.depth * c.jt * 2 * lanes  # the columns of one tile
    strip = 4 * p.depth * c.mt  # the rows of one tile
    # The last tile of rows holds what is left: padded, tiles that divide would seem to read less.
    task_rows, task_columns = 4 * p.depth * p.rows // row_tasks, c.cb * panel
    out = 4 * p.batch * p.rows * p.columns
    l1 = p.batch * rows * columns * (panel + lanes * strip // lanes) + out
    # The panel (order 0 and 2) or the strip (order 1) stays in L1 across the inner loop if it fits.
    near = hardware.l1_bytes // 2
    if c.order == 1:
        l2 = tasks * (task_rows * (1 if strip <= near else c.cb) + c.rb * task_columns)
        far = tasks * (task_rows + task_columns * (1 if task_columns <= hardware.l2_bytes // 2 else c.rb))
    else:
        l2 = tasks * (c.cb * panel * (1 if panel <= near else c.rb) + c.cb * task_rows)
        far = tasks * (task_columns + task_rows * (1 if task_rows <= hardware.l2_bytes // 2 else c.cb))
    if p.along_rows and c.order == 2:
        l2, far = l2 + 2 * out, far + 2 * out
    flops = max(1, p.group.work.flops)
    again = 0.0
    before = sum(op.work.flops for op in p.left)
    if before:
        times = column_tasks if c.stage == 1 else 1 if c.stage == 2 else columns
        again += (times - 1) * before
    if c.pack == 1:
        again += (row_tasks - 1) * p.batch * p.depth * p.columns
    if c.pack:
        again += p.batch * p.depth * p.columns
    memory = p.memory_bytes
    operands = 4 * p.batch * p.depth * (p.rows + p.columns)
    beside = max(0, memory - operands - out)
    packed = p.batch * p.depth * p.columns * (row_tasks if c.pack == 1 else 1) if c.pack else 0
    packing = 8 * packed
    # Packing turns a transposed operand an element at a time; where heads are merged before the product, an element's
    # place is computed for each, in every tile of columns unless it is staged.
    moved = packed if p.transposed else 0
    if _moved(p):
        moved += p.rows * p.depth * (columns if c.stage == 0 else column_tasks if c.stage == 1 else 1)
    staging = 8 * p.batch * p.depth * p.rows * (column_tasks if c.stage == 1 else 1) if c.stage else 0
    near_traffic = l2 + out + packing + staging
    return KernelShape(
        tasks=tasks if c.parallel else 1,
        vector_fill=p.columns / (vectors * lanes),
        accumulators=accumulators,
        independent_chains=accumulators,
        recompute=1.0 + again / flops,
        loads_per_fma=(min(2 * c.jt, vectors) + c.mt) / max(1, accumulators),
        l1_bytes=l1 + packing + staging,
        l2_bytes=near_traffic,
        l3_bytes=far + out + beside,
        exposed=_WAITED + (1.0 - _WAITED) * staging / near_traffic,
        memory_bytes=memory,
        footprint=task_rows + task_columns + 4 * c.rb * c.mt * c.cb * c.jt * 2 * lanes,
        loops=1 + int(c.pack == 2) + int(c.stage == 2) + int(p.along_rows and c.order == 2),
        scattered=moved,
    )
