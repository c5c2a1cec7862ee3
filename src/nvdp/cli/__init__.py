"""The command line: ``nvdp COMMAND --help`` teaches each command.

Its modules import nothing heavy at the top. Each command imports what it needs when it runs, so that ``--help`` and
``--version`` answer at once.
"""

import inspect
import io
import re
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from itertools import pairwise
from typing import Annotated, Any

import typer

from nvdp import __version__
from nvdp.errors import FarNote, InputError, Note

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    epilog="Each command has its own help with an example: nvdp COMMAND --help",
)

# Modules with commands, in the order in which --help lists them.
MODULES = (
    "fit",
    "predict",
    "score",
    "store",
    "export",
    "train",
    "pretrain",
    "evaluate",
    "runs",
    "images",
    "web",
    "data",
    "paper",
    "bench",
)


SHOW = warnings.showwarning
# What typer raises for wrong commands, options, arguments and files, which it does not export
USAGE_ERROR: type[Exception] = next(each for each in typer.BadParameter.__mro__ if each.__name__ == "ClickException")


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

    To try it, run nvdp serve: it opens a page with pretrained models.

    With a table of many short series, start with nvdp fit.

    For research, start with nvdp train. The paper's results: nvdp reproduce.
    """


def main() -> None:
    """Run the command line; bad input is one line on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without ± shows a question mark
    warnings.formatwarning = _format
    warnings.showwarning = _show_once(SHOW)
    for module in MODULES:
        import_module(f"nvdp.cli.{module}")
    _unwrap_help(app)

    try:
        _check_out(sys.argv[1:])
        sys.exit(app(prog_name="nvdp", standalone_mode=False))  # the code of typer.Exit
    except USAGE_ERROR as error:
        if said := _usage_line(error):
            print(said, file=sys.stderr)
        sys.exit(2)
    except InputError as error:
        print(f"nvdp: {_one_line(error)}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"nvdp: {_one_line(place + (error.strerror or str(error)))}", file=sys.stderr)
        sys.exit(2)
    except (KeyboardInterrupt, typer.Abort):
        sys.exit(130)
    except (MemoryError, RuntimeError) as error:
        wanted = re.search(r"tried to allocate (\d+) bytes", str(error))  # PyTorch's words
        if wanted is None and not isinstance(error, MemoryError):
            raise
        size = f": an array of {int(wanted[1]) / 1e9:.1f} GB was asked for" if wanted else ""
        print(f"nvdp: there is not enough memory{size}", file=sys.stderr)
        sys.exit(2)


def _one_line(said: object) -> str:
    """A message whose quoted values may have line breaks, on one line.

    >>> _one_line("--out is 'a\\nb'; expected a path")
    "--out is 'a b'; expected a path"
    """
    return " ".join(str(said).splitlines())


def _check_out(arguments: Sequence[str]) -> None:
    """Refuse an empty --out of any command: as a path it is the current folder, which is not told from "." later."""
    if ("--out", "") in pairwise(arguments) or "--out=" in arguments:
        raise InputError("--out is ''; expected a path")


def _usage_line(error: Any) -> str:
    """What typer says about a wrong command, option or argument, in one line with the value at fault."""
    if type(error).__name__ == "NoArgsIsHelpError":  # the help; empty where typer has printed it already
        return str(error.format_message())
    said = " ".join(error.format_message().split())
    details = getattr(error.__cause__, "errors", None)  # of pydantic, which does not quote the value
    if details is not None:
        said = said.replace("Invalid value", f"Invalid value {details()[0]['input']!r}", 1)
    place = getattr(error, "ctx", None)  # that of a file has none
    command = "nvdp COMMAND" if place is None else place.command_path
    return f"nvdp: {said[:1].lower()}{said[1:].rstrip('.')} (see {command} --help)"


def _unwrap_help(commands: typer.Typer) -> None:
    """Make each paragraph of a help one line, as docstrings are wrapped for a page of code and not for the terminal."""
    for command in commands.registered_commands:
        if command.callback is not None and command.help is None:
            command.help = unwrapped(command.callback.__doc__ or "")
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _unwrap_help(group.typer_instance)


def unwrapped(docstring: str) -> str:
    """A docstring with one line for each paragraph; a line that is indented stays a line of its own.

    >>> unwrapped("One\\n    two.\\n\\n    Examples: a\\n              b")
    'One two.\\n\\nExamples: a\\n          b'
    """
    return re.sub(r"(?<!\n)\n(?=[^\s])", " ", inspect.cleandoc(docstring))


def _show_once(show: Callable[..., None]) -> Callable[..., None]:
    """Shows the first note about far data alone: with many tasks there may be one for each."""
    seen: set[type[Warning]] = set()

    def show_first(message: Warning | str, category: type[Warning], *more: Any) -> None:
        if category is FarNote and category in seen:
            return
        seen.add(category)
        show(message, category, *more)

    return show_first


def _format(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, line: str | None = None
) -> str:
    return (
        f"note: {message}\n" if issubclass(category, Note) else f"{filename}:{lineno}: {category.__name__}: {message}\n"
    )
