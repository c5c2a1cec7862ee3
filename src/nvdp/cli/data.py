"""Commands about data sets: list, fetch, path, check, and a sample table."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import PAPER, DataDir, Force, seed_option
from nvdp.errors import InputError, unknown_name

if TYPE_CHECKING:
    from nvdp.data.public.fetch import Found, PublicSet

data = typer.Typer(help="Public image sets: list, download and check them. A sample table.", no_args_is_help=True)
app.add_typer(data, name="data", rich_help_panel=PAPER)

Name = Annotated[str, typer.Argument(help="mnist, omniglot, celeba or miniimagenet.")]


def _sets() -> "dict[str, PublicSet]":
    from nvdp.data.episodes import PUBLIC_CLASS_SETS
    from nvdp.data.images import PUBLIC_SETS

    return {**PUBLIC_SETS, **PUBLIC_CLASS_SETS}


def _set(name: str) -> "PublicSet":
    if name not in _sets():
        raise unknown_name("data set", name, _sets())
    return _sets()[name]


def _located(name: str, data_dir: Path | None) -> "Found":
    """Where a set is on this machine; refused if it is not."""
    from nvdp.data.public.fetch import locate, use_data_folder, ways_to_provide

    use_data_folder(data_dir)
    found = locate(_set(name))
    if found is None:
        raise InputError(f"{name} is not on this machine: {ways_to_provide(_set(name))}")
    return found


@data.command("list")
def list_sets(data_dir: DataDir = None) -> None:
    """List the image sets, and where each is on this machine."""
    from nvdp.data.public.fetch import locate, use_data_folder, ways_to_provide

    use_data_folder(data_dir)
    for each in {known.name: known for known in _sets().values()}.values():
        found = locate(each)
        place = " and ".join(map(str, found.paths)) if found else f"not here: {ways_to_provide(each)}"
        counts = ", ".join(f"{count:,} {split}" for split, count in each.counts.items())
        typer.echo(f"{each.name}: {each.size}×{each.size}×{each.channels}; {counts} if complete; {each.terms}")
        typer.echo(f"  {place}")


@data.command()
def fetch(name: Name) -> None:
    """Download an image set from its public home into the user's cache, and compare its checksum."""
    from nvdp.data.public.fetch import download

    for path in download(_set(name)):
        typer.echo(str(path))


@data.command()
def path(name: Name, data_dir: DataDir = None) -> None:
    """Print the files that an image set is read from, one on each line."""
    for each in _located(name, data_dir).paths:
        typer.echo(str(each))


@data.command()
def check(name: Name, data_dir: DataDir = None) -> None:
    """Compare an image set's checksums with the published ones; read and count all its images."""
    from nvdp.data.public.fetch import verify

    found = _located(name, data_dir)
    counts = {split: len(images) for split, images in _set(name).read(found).items()}
    for line in verify(_set(name), found):
        typer.echo(line)
    complete = counts == _set(name).counts
    numbers = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    typer.echo(f"{name}: {numbers}; {'complete' if complete else 'a part of the set'}")


TREES, KNOWN_DAYS = 40, 5


@data.command()
def sample(
    folder: Annotated[Path, typer.Argument(help="Where to write growth.csv, new.csv and grid.csv.")],
    seed: Annotated[int, seed_option("Seed of the simulated trees.")] = 0,
    force: Force = False,
) -> None:
    """Write a table to try nvdp fit and nvdp predict with: simulated trees that grow in S-shaped curves.

    growth.csv has 40 trees, new.csv the first five rows of another tree, and grid.csv days to predict it at.

    Example: nvdp data sample sample/
    """
    import numpy as np
    import pandas as pd

    from nvdp.system import check_outputs, write_text

    random = np.random.default_rng(seed)
    parts = []
    for tree in range(TREES + 1):
        day = np.sort(random.choice(np.arange(0, 200, 5), random.integers(8, 14), replace=False))
        height, middle, pace = random.normal([10, 90, 25], [2, 15, 3])
        size = height / (1 + np.exp((middle - day) / pace)) + random.normal(0, 0.15, len(day))
        parts.append(pd.DataFrame({"tree": f"tree {tree + 1}", "day": day, "size": size.round(3)}))
    tables = {
        "growth.csv": pd.concat(parts[:-1]),
        "new.csv": parts[-1][:KNOWN_DAYS],
        "grid.csv": pd.DataFrame({"tree": f"tree {TREES + 1}", "day": np.arange(0, 205, 5)}),
    }
    check_outputs([folder / name for name in tables], [], force)
    folder.mkdir(parents=True, exist_ok=True)
    for name, table in tables.items():
        write_text(folder / name, table.to_csv(index=False))
        typer.echo(f"wrote {folder / name}: {len(table)} rows")
