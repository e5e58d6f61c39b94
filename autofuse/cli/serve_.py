"""`autofuse serve`."""

from __future__ import annotations

import click

from autofuse.cli.options import address


@click.command("serve")
@click.option("--tracker", required=True, metavar="HOST:PORT", help="TVM's RPC tracker to register with.")
@click.option("--key", required=True, metavar="NAME", help="What clients ask the tracker for.")
@click.option("--threads", type=click.IntRange(min=1), help="Threads to run kernels with (default: all processors).")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(1, 65535), default=9090, show_default=True, help="First port to try.")
def command(tracker: str, key: str, threads: int | None, host: str, port: int) -> None:
    """Offer this machine to `autofuse collect --rpc` as a device.

    WARNING: TVM's RPC has no passwords and runs whatever it is sent. Whoever reaches the port, or the tracker, can
    run any code as this user. Use it on a trusted network only; unless --host says otherwise, only this machine can
    connect.

    The tracker is TVM's: python -m tvm.exec.rpc_tracker --host 127.0.0.1 --port 9190
    """
    from autofuse.measure.server import serve
    from autofuse.target import fingerprint

    row = fingerprint(threads)

    def ready(at: int) -> None:
        click.echo(f"{key} on {host}:{at}: {row.model_name}, {row.threads} threads, hardware {row.digest}")

    serve(address(tracker, "--tracker"), key, threads, host, (port, min(port + 110, 65536)), ready)
