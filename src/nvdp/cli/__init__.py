"""The command line: ``nvdp COMMAND --help`` teaches each command.

Its modules import nothing heavy at the top. Each command imports what it needs when it runs, so that ``--help`` and
``--version`` answer at once.
"""

import sys
from importlib import import_module
from typing import Annotated

import typer

from nvdp import __version__
from nvdp.errors import InputError

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Each command has its own help with an example: nvdp COMMAND --help",
)

# Modules with commands, in the order in which --help lists them.
MODULES = ("fit", "store", "train", "evaluate", "runs", "images", "web", "data", "paper", "bench")


def _print_version(wanted: bool) -> bool:
    if wanted:
        typer.echo(__version__)
        raise typer.Exit
    return wanted


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_print_version, is_eager=True)
    ] = False,
) -> None:
    """Learn from many small related tasks; predict a new one from a few of its points, with honest uncertainty.

    To try it: nvdp serve opens a page with pretrained models. With a table of many short series, start with nvdp fit.
    For research, start with nvdp train and nvdp eval; nvdp reproduce makes the tables and figures of the paper.
    """


def main() -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    for module in MODULES:
        import_module(f"nvdp.cli.{module}")

    try:
        app()
    except InputError as error:
        print(f"nvdp: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"nvdp: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)
