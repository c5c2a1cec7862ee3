"""The command line: ``nvdp COMMAND --help`` teaches each command."""

import sys
from importlib import import_module
from typing import Annotated

import typer

from nvdp.errors import InputError

app = typer.Typer(
    help="Bayesian meta-learning with Neural Variational Dropout Processes.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)

# Modules whose commands are listed by --help, in the order in which one comes to need them.
ROOMS = ("train", "runs", "models", "fit", "images", "fewshot", "store", "web", "data", "paper", "bench")


def _version(wanted: bool) -> bool:
    if wanted:
        import nvdp

        typer.echo(nvdp.__version__)
        raise typer.Exit
    return wanted


@app.callback()
def _common(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version.", callback=_version, is_eager=True)
    ] = False,
) -> None:
    """Bayesian meta-learning with Neural Variational Dropout Processes."""


def main() -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    for room in ROOMS:
        import_module(f"nvdp.cli.{room}")

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
