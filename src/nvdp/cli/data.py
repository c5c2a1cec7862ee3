"""Commands about data sets: list, fetch, path and check."""

from typing import TYPE_CHECKING, Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import PAPER, DataDir
from nvdp.errors import InputError, unknown_name

if TYPE_CHECKING:
    from nvdp.data.public.fetch import PublicSet

data = typer.Typer(help="Public image sets: list, download and check them.", no_args_is_help=True)
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
    from nvdp.data.public.fetch import locate, use_data_folder, ways_to_provide

    use_data_folder(data_dir)
    found = locate(_set(name))
    if found is None:
        raise InputError(f"{name} is not on this machine: {ways_to_provide(_set(name))}")
    for each in found.paths:
        typer.echo(str(each))


@data.command()
def check(name: Name, data_dir: DataDir = None) -> None:
    """Compare an image set's checksums with the published ones; read and count all its images."""
    from nvdp.data.public.fetch import locate, use_data_folder, verify, ways_to_provide

    use_data_folder(data_dir)
    found = locate(_set(name))
    if found is None:
        raise InputError(f"{name} is not on this machine: {ways_to_provide(_set(name))}")
    counts = {split: len(images) for split, images in _set(name).read(found).items()}
    for line in verify(_set(name), found):
        typer.echo(line)
    complete = counts == _set(name).counts
    numbers = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    typer.echo(f"{name}: {numbers}; {'complete' if complete else 'a part of the set'}")
