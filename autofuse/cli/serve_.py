"""`autofuse serve`."""

from __future__ import annotations

import click

from autofuse.cli.options import address


@click.command("serve")
@click.option("--tracker", required=True, metavar="HOST:PORT", help="TVM's RPC tracker to register with.")
@click.option("--key", required=True, metavar="NAME", help="What clients ask the tracker for.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to run kernels with (default: all processors).")
@click.option("--target", default="llvm", show_default=True, help="What kernels are for: this CPU, or a GPU, e.g. dcu.")
@click.option("--device", metavar="DEVICE", help="The GPU: opencl:NAME, rocm, cuda (default: the first that there is).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="First port to try.")
def command(tracker: str, key: str, threads: int | None, target: str, device: str | None, host: str, port: int) -> None:
    """Offer this machine, or its GPU, to `autofuse collect --rpc` as a device.

    WARNING: TVM's RPC has no passwords and runs whatever it is sent. Whoever reaches the port, or the tracker, can
    run any code as this user. Use it on a trusted network only; unless --host says otherwise, only this machine can
    connect.

    The tracker is TVM's: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190
    """
    from autofuse.errors import InputError
    from autofuse.measure.server import describe_gpu, serve
    from autofuse.target import HardwareRow, fingerprint, resolve

    chosen = resolve(target) if target != "llvm" else None
    if chosen is not None and chosen.device != "gpu":
        raise InputError(f"--target {target!r} is a CPU's: this machine's own is what it offers without --target")
    if device is not None and chosen is None:
        raise InputError(f"--device {device!r} is a GPU: say what kernels are for, e.g. --target dcu")
    gpu = describe_gpu(chosen.text, device or "") if chosen is not None else None
    row = HardwareRow.from_json(gpu["hardware"]) if gpu is not None else fingerprint(threads)

    def ready(at: int) -> None:
        what = row.model_name if gpu else f"{row.model_name}, {row.threads} threads"
        click.echo(f"{key} on {host}:{at}: {what}, hardware {row.digest}")

    serve(address(tracker, "--tracker"), key, threads, host, (port, min(port + 110, 65536)), ready, gpu)
