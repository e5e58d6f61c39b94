"""The schedule families that exist, by kind of target, in order of preference."""

from __future__ import annotations

from functools import cache

from autofuse.schedule.family import ScheduleFamily


def families(kind: str = "cpu") -> tuple[ScheduleFamily, ...]:
    """The families for a kind of target, most specific first: the first that matches a group is preferred.

    Families that stand beside others come after those that take the same groups. There is one object of each family.
    """
    return _families(kind)


@cache
def _families(kind: str) -> tuple[ScheduleFamily, ...]:
    if kind == "gpu":
        return _gpu_families()
    from autofuse.schedule.cpu.attention import AttentionFamily
    from autofuse.schedule.cpu.conv2d import Conv2dFamily
    from autofuse.schedule.cpu.conv_pool import ConvPoolFamily
    from autofuse.schedule.cpu.depthwise import DepthwiseFamily
    from autofuse.schedule.cpu.depthwise_pointwise import DepthwisePointwiseFamily
    from autofuse.schedule.cpu.elementwise import ElementwiseFamily
    from autofuse.schedule.cpu.group_norm import GroupNormFamily
    from autofuse.schedule.cpu.grouped import GroupedFamily
    from autofuse.schedule.cpu.matmul import MatmulFamily
    from autofuse.schedule.cpu.plain import PlainFamily
    from autofuse.schedule.cpu.pointwise_depthwise import PointwiseDepthwiseFamily
    from autofuse.schedule.cpu.pool import PoolFamily
    from autofuse.schedule.cpu.resize import ResizeFamily
    from autofuse.schedule.cpu.rows import RowsFamily
    from autofuse.schedule.cpu.staged import StagedFamily
    from autofuse.schedule.cpu.transposed import TransposedFamily
    from autofuse.schedule.cpu.view import ViewFamily
    from autofuse.schedule.cpu.winograd import WinogradFamily

    return (
        AttentionFamily(),
        ConvPoolFamily(),
        DepthwisePointwiseFamily(),
        PointwiseDepthwiseFamily(),
        Conv2dFamily(),
        WinogradFamily(),
        DepthwiseFamily(),
        GroupedFamily(),
        TransposedFamily(),
        PoolFamily(),
        GroupNormFamily(),
        ResizeFamily(),
        MatmulFamily(),
        RowsFamily(),
        StagedFamily(),
        ViewFamily(),
        ElementwiseFamily(),
        PlainFamily(),
    )


def _gpu_families() -> tuple[ScheduleFamily, ...]:
    from autofuse.schedule.cpu.view import ViewFamily
    from autofuse.schedule.gpu.attention import GpuAttentionFamily
    from autofuse.schedule.gpu.conv_pool import GpuConvPoolFamily
    from autofuse.schedule.gpu.depthwise_gemm import GpuDepthwiseGemmFamily
    from autofuse.schedule.gpu.direct import GpuDirectFamily
    from autofuse.schedule.gpu.dlight import DlightFamily
    from autofuse.schedule.gpu.elementwise import GpuElementwiseFamily
    from autofuse.schedule.gpu.gemm import GpuGemmFamily
    from autofuse.schedule.gpu.rows import GpuRowsFamily

    return (
        GpuAttentionFamily(), GpuConvPoolFamily(), GpuDepthwiseGemmFamily(), GpuGemmFamily(), GpuRowsFamily(),
        GpuDirectFamily(), ViewFamily(), GpuElementwiseFamily(), DlightFamily(),
    )  # fmt: skip


def any_family(name: str) -> ScheduleFamily:
    """The family of that name for any kind of target: those of different kinds have different names. KeyError."""
    for candidate in (*families("cpu"), *families("gpu")):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no schedule family {name!r}")


def family(name: str, kind: str = "cpu") -> ScheduleFamily:
    """The family called `name`. KeyError if there is none."""
    for candidate in families(kind):
        if candidate.name == name:
            return candidate
    raise KeyError(f"no schedule family {name!r} for {kind}; known: {', '.join(f.name for f in families(kind))}")
