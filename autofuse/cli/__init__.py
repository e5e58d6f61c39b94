"""The command line: one command a file, loaded when it is called. `main` is the entry point."""

from __future__ import annotations

import importlib
import logging
import os
import sys
import warnings
from typing import Any

import click

from autofuse import __version__
from autofuse.errors import AutofuseError

#: Command → its one-line help; the module autofuse.cli.NAME_ holds it.
COMMANDS = {
    "compile": "Compile a model into one file that `run` executes.",
    "run": "Run a compiled model on arrays from an .npz file.",
    "bench": "Time a model under autofuse and its peers, side by side.",
    "explain": "Say why operators are, or are not, in one kernel.",
    "profile": "Time every kernel of a model, beside what was predicted.",
    "collect": "Measure candidate kernels into a record store.",
    "serve": "Offer this machine to `collect --rpc` as a device.",
    "train": "Train a predictor on a record store.",
    "evaluate": "Test a predictor on what it was not trained on.",
    "tune": "Tune the search's thresholds by replaying costs.",
    "records": "Look into, exchange, check and clean record stores.",
    "zoo": "List the networks that come along, or export one.",
    "doctor": "Check this machine; measure it with --calibrate.",
}


class LazyGroup(click.Group):
    """Imports a command's module only when the command is called: `autofuse --help` stays quick."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """All command names, in the order of the work."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """The command, from its module."""
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(f"autofuse.cli.{cmd_name}_")
        command = module.command
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list of commands without importing any."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 120})
@click.version_option(__version__, prog_name="autofuse")
def cli() -> None:
    """Fuse a model's operators into kernels by measuring, learning and searching, and compile it."""


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Errors that a user can act on are one line on stderr and exit code 2."""
    logging.basicConfig(format="%(levelname)s: %(message)s", level=logging.WARNING, stream=sys.stderr)
    warnings.showwarning = _show_warning
    try:
        outcome = cli.main(args=arguments, standalone_mode=False)
    except AutofuseError as error:
        click.echo(f"error: {error}", err=True)
        sys.exit(2)
    except click.ClickException as error:
        context = getattr(error, "ctx", None)
        hint = f" (see {context.command_path} --help)" if context else ""
        click.echo(f"error: {error.format_message().rstrip('.')}{hint}", err=True)
        sys.exit(2)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except BrokenPipeError:
        # The reader went away (`| head`): not an error, and Python must not complain when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(0)
    sys.exit(outcome if isinstance(outcome, int) else 0)


def _show_warning(message: Any, category: Any, *_: Any, **__: Any) -> None:
    # TVM and others warn on every import; what autofuse warns of is a UserWarning of one line.
    if issubclass(category, UserWarning):
        click.echo(f"warning: {message}", err=True)
