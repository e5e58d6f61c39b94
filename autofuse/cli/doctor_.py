"""`autofuse doctor`."""

from __future__ import annotations

import importlib.metadata
import sys
from typing import Any

import click

from autofuse.cli.options import json_option, print_json
from autofuse.errors import TargetError

_PACKAGES = (
    "apache-tvm", "apache-tvm-ffi", "numpy", "onnx", "onnxslim", "xgboost-cpu", "scikit-learn", "optuna",
    "sqlite-utils", "onnxruntime", "openvino", "torch",
)  # fmt: skip
_OPTIONAL = {"onnxruntime": "autofuse[bench]", "openvino": "autofuse[bench]", "torch": "autofuse[torch]"}


@click.command("doctor")
@click.option("--target", default="llvm", show_default=True)
@click.option("--threads", type=click.IntRange(min=1), help="Size of the thread pool (default: all processors).")
@click.option("--calibrate", is_flag=True, help="Measure this machine (under a minute) and keep the result.")
@json_option
def command(target: str, threads: int | None, calibrate: bool, as_json: bool) -> None:
    """Say what autofuse sees of this machine and of the target, and what is missing."""
    from dataclasses import asdict

    from autofuse.codegen.link import linker_command
    from autofuse.target import default_hardware, fingerprint, load_hardware, resolve
    from autofuse.target.hardware_file import hardware_path, is_host, save_hardware
    from autofuse.target.host import read_host

    chosen = resolve(target, threads)
    if chosen.device == "gpu":
        _gpu(chosen, calibrate, as_json)
        return
    row = fingerprint(chosen.threads)
    here = is_host(chosen)
    if calibrate and not here:
        raise TargetError(f"{chosen.text} does not run on this machine: calibrate on one that it is for")
    if calibrate:
        save_hardware(_measure(chosen.threads), row)
    path = hardware_path(row)
    hardware = load_hardware(chosen)
    calibrated = here and path.exists() and hardware != default_hardware(chosen, read_host())
    try:
        link = linker_command(chosen.triple)[0]
    except TargetError as error:
        link = f"missing: {error}"
    packages = {name: _version(name) for name in _PACKAGES}
    if as_json:
        print_json(
            {
                "target": chosen.description,
                "isa": chosen.isa,
                "runs_here": here,
                "linker": link,
                "python": sys.version.split()[0],
                "packages": packages,
                "hardware_row": {**row.to_json(), "digest": row.digest},
                "calibrated": calibrated,
                "calibration_file": str(path),
                "hardware": asdict(hardware),
            }
        )
        return
    click.echo(f"target        {chosen.text} ({chosen.isa}, {chosen.threads} threads)")
    click.echo(
        f"vectors       {hardware.vector_registers} registers of {hardware.lanes} float32,"
        f" multiply-add {'fused' if hardware.fused else 'in two instructions'}; images in NCHW{hardware.lanes}c"
    )
    click.echo(
        f"tiles for     L1 {hardware.l1_bytes >> 10} KiB, L2 {hardware.l2_bytes >> 10} KiB a core;"
        f" L3 {hardware.l3_bytes / (1 << 20):.3g} MiB"
    )
    click.echo(f"runs here     {'yes' if here else 'no: another architecture or missing instructions'}; linker {link}")
    click.echo(f"hardware      {row.model_name or row.vendor} (row {row.digest})")
    click.echo(
        f"caches        L1 {row.l1_bytes >> 10} KiB, L2 {row.l2_bytes >> 10} KiB a core; L3 {row.l3_bytes >> 20} MiB"
    )
    if calibrated:
        click.echo(f"calibration   {path}")
    elif here:
        click.echo("calibration   none: defaults are used; measure with `autofuse doctor --calibrate`")
    else:
        click.echo("calibration   none for this target: defaults of its instruction set are used")
    rates = asdict(hardware)
    click.echo(
        f"rates         {2 * rates['fma_per_second'] / 1e9:.0f} GFLOP/s a core; memory"
        f" {rates['memory_bandwidth'] / 1e9:.1f} GB/s, L3 {rates['l3_bandwidth'] / 1e9:.0f}, L2"
        f" {rates['l2_bandwidth'] / 1e9:.0f}, L1 {rates['l1_bandwidth'] / 1e9:.0f} GB/s a core;"
        f" parallel region {rates['parallel_overhead'] * 1e6:.1f} µs"
    )
    for name, version in packages.items():
        if version is None:
            hint = f"pip install '{_OPTIONAL[name]}'" if name in _OPTIONAL else "pip install autofuse again"
            click.echo(f"{name:13s} missing ({hint})")
        else:
            click.echo(f"{name:13s} {version}")


def _gpu(chosen: Any, calibrate: bool, as_json: bool) -> None:
    from autofuse.cli.doctor_gpu import gpu_report, print_gpu

    if calibrate:
        raise TargetError(f"{chosen.card or chosen.mcpu} cannot be calibrated: its description is a data file")
    if as_json:
        packages = {name: _version(name) for name in _PACKAGES}
        print_json({**gpu_report(chosen), "python": sys.version.split()[0], "packages": packages})
    else:
        print_gpu(chosen)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def _measure(threads: int) -> Any:
    from rich.console import Console
    from rich.progress import Progress

    from autofuse.measure.calibrate import calibrate

    console = Console(stderr=True)
    if not console.is_terminal:
        return calibrate(threads)
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task("calibrating", total=1.0)
        return calibrate(threads, lambda step, share: progress.update(task, completed=share, description=step))
