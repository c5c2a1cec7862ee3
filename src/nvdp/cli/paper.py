"""Commands about the paper: reproduce a table or figure, and build the results page."""

from functools import partial
from pathlib import Path
from shutil import copyfile
from tempfile import TemporaryDirectory
from typing import Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import PAPER, Address, DataDir, Device, Force
from nvdp.errors import InputError


@app.command(rich_help_panel=PAPER)
def reproduce(
    what: Annotated[
        str,
        typer.Argument(
            help="table1, table2, table3, figure2, figure3, figure4, figure9, attentive, learning, recipes, quarter, "
            "long, ablations, collapse, alive, rivals, tnp, fewshot-choices, pretrained, or all of them."
        ),
    ],
    budget: Annotated[
        str, typer.Option(help="quick (minutes), cpu (hours on 2 cores) or paper (for GPU owners).")
    ] = "cpu",
    out: Annotated[Path, typer.Option(help="Where results go: one JSON file per run.")] = Path("results"),
    runs: Annotated[Path, typer.Option(help="Where the runs themselves live.")] = Path("runs"),
    jobs: Annotated[int, typer.Option(help="Runs side by side, one thread each.", min=1)] = 1,
    only: Annotated[
        str | None,
        typer.Option(
            help="Only the run of this name, or those whose names contain it, e.g. celeba. Nothing is drawn then."
        ),
    ] = None,
    device: Device = "auto",
    executor: Annotated[
        str,
        typer.Option(help="Where runs take place: local (processes here) or ray (a cluster; needs nvdp\\[cluster])."),
    ] = "local",
    address: Address = None,
    data_dir: DataDir = None,
) -> None:
    """Train and score the models of a table or figure of the paper, and draw it.

    Finished runs are never repeated. If the command is stopped, the same command continues.

    Example: nvdp reproduce table1 --budget quick
    """
    from nvdp.data.public.fetch import use_data_folder
    from nvdp.errors import unknown_name
    from nvdp.experiments.executors import executor_named
    from nvdp.experiments.plan import BUDGETS
    from nvdp.experiments.reproduce import experiments_named
    from nvdp.experiments.reproduce import reproduce as reproduce_one
    from nvdp.system import keep_freed_memory, use_threads

    experiments = experiments_named(what, only)
    if budget not in BUDGETS:
        raise unknown_name("budget", budget, BUDGETS)
    place = executor_named(executor, address)
    use_data_folder(data_dir)
    keep_freed_memory()
    use_threads()
    failed = []
    for experiment in experiments:
        try:
            for line in reproduce_one(experiment, budget, out, runs, jobs, device, only, place):
                typer.echo(line)
        except InputError as error:
            if len(experiments) == 1:
                raise
            typer.echo(f"{experiment.name}: {error}", err=True)
            failed.append(experiment.name)
    if failed:
        raise InputError(f"{len(failed)} of {len(experiments)} experiments failed: {', '.join(failed)}")


@app.command(rich_help_panel=PAPER)
def report(
    results: Annotated[Path, typer.Argument(help="The folder of result files, as `nvdp reproduce` left it.")],
    out: Annotated[Path, typer.Option(help="The Markdown page to write; figures go beside it.")],
    budget: Annotated[str, typer.Option(help="Which budget's results.")] = "cpu",
    readme: Annotated[Path | None, typer.Option(help="Also update the results table of this README.")] = None,
    force: Force = False,
) -> None:
    """Write the results page and the page about speed, with their figures, from the result files alone.

    A page that this command has written, and the figures that such a page shows, are replaced. Any other file needs
    --force.

    Example: nvdp report results/ --out docs/results.md
    """
    from nvdp.experiments.report import (
        figures_of,
        marked,
        readme_block,
        results_page,
        text_of_own_page,
        with_block,
    )
    from nvdp.system import check_outputs, write_text, write_whole

    if out.is_dir():
        raise InputError(f"--out {out} is a folder; expected the name of a page to write")
    speed_file = out.with_name("speed.md")
    if len({path.resolve() for path in (out, speed_file, *([readme] if readme else []))}) < 2 + (readme is not None):
        raise InputError(f"--out {out}, the page {speed_file} and --readme must be different files")
    block = readme_block(results, budget) if readme else ""
    if readme is not None:
        with_block(_text(readme), block)  # refused before anything is written
    own = {path: text for path in (out, speed_file) if (text := text_of_own_page(path)) is not None}
    check_outputs([path for path in (out, speed_file) if path not in own], force=force)
    pages = {out: results_page(results, budget)}
    with TemporaryDirectory() as place:
        speed = _draw(results, budget, Path(place))
        pages |= {} if speed is None else {speed_file: speed}
        shown = figures_of(*pages.values())
        figures = {out.parent / "figures" / file.name: file for file in Path(place).iterdir() if file.stem in shown}
        check_outputs([path for path in figures if path.stem not in figures_of(*own.values())], force=force)
        out.parent.mkdir(parents=True, exist_ok=True)
        for path, file in figures.items():
            path.parent.mkdir(exist_ok=True)
            write_whole(path, partial(copyfile, file))
    for path, page in pages.items():
        write_text(path, marked(page))
        typer.echo(f"wrote {path}")
    if readme is not None:
        write_text(readme, with_block(_text(readme), block))
        typer.echo(f"updated the table in {readme}")


def _text(path: Path) -> str:
    try:
        return path.read_text()
    except UnicodeDecodeError:
        raise InputError(f"{path} is no text; expected a Markdown file") from None


def _draw(results: Path, budget: str, place: Path) -> str | None:
    """Draw all figures of both pages; returns the page on speed, if there are files for it."""
    from nvdp.bench.report import speed_page
    from nvdp.experiments.entries import reading
    from nvdp.experiments.hours import draw_hours
    from nvdp.experiments.report_tables import Results
    from nvdp.experiments.reproduce import EXPERIMENTS
    from nvdp.experiments.results import figure_path, read_figure

    _check_bench(results / "bench")
    for experiment in EXPERIMENTS.values():
        data = read_figure(results, experiment.name, budget)
        if experiment.draw is not None and data is not None:
            with reading(figure_path(results, experiment.name, budget)):
                experiment.draw(data, place / f"{experiment.name}.png")
    draw_hours(Results(results, budget), place / "hours.png")
    return speed_page(results / "bench", place)


def _check_bench(folder: Path) -> None:
    """Refuse a file of ``nvdp bench`` whose table cannot be made, by its name."""
    from nvdp.bench.report import TEXTS, other_machines
    from nvdp.bench.suites import measured_on, table_cells
    from nvdp.experiments.entries import read_entries, reading
    from nvdp.experiments.schemas import BENCH, EARLIER_QUALITY

    suites = {folder / f"{name}.json": name for name in TEXTS} | {folder / EARLIER_QUALITY: "quality"}
    others = {path: suite for suite in TEXTS for path in other_machines(folder, suite)}
    for path, suite in (suites | others).items():
        if path.exists():
            result = read_entries(path, BENCH[suite], "suite", "machine", "rows")
            with reading(path):
                table_cells(result)
                measured_on(result)
