"""Options that several commands share, and the panels of ``nvdp --help``."""

from pathlib import Path
from typing import Annotated, Any

import typer

OWN_DATA, TRAINING, PICTURES, PAPER = "Your own tables", "Train and evaluate", "Pictures and the page", "The paper"
MAX_SEED = 2**63 - 1  # PyTorch's generators take every smaller one


def find(run: Path) -> Path:
    """The folder of a run or of a pretrained model."""
    from nvdp.loading import find_run

    return find_run(run)


def seed_option(help: str) -> Any:
    """An option for a seed that PyTorch's generators take."""
    return typer.Option(help=help, min=0, max=MAX_SEED)


def say_new_run(out: Path) -> None:
    """Say that --resume found nothing."""
    typer.echo(f"nothing to resume in {out}; a new run begins", err=True)


Run = Annotated[
    Path,
    typer.Argument(
        help="The folder that `nvdp train` or `nvdp fit` left in --out, or a name of `nvdp models --pretrained`.",
        callback=find,
    ),
]
DataDir = Annotated[Path | None, typer.Option(help="Folder of data sets. (default: NVDP_DATA)")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, mps …")]
Threads = Annotated[int | None, typer.Option(help="PyTorch threads. (default: 1 on small machines)")]
Quiet = Annotated[bool, typer.Option("--quiet", help="No progress bar.")]
Address = Annotated[
    str | None, typer.Option(help="ray: the cluster's address, e.g. 10.0.0.1:6379. [default: one started here]")
]
Force = Annotated[bool, typer.Option("--force", help="Replace output files that exist.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]


def given(values: dict[str, Any]) -> dict[str, Any]:
    """The options that were given: those that are not None.

    >>> given({"steps": 10, "seed": None})
    {'steps': 10}
    """
    return {name: value for name, value in values.items() if value is not None}
