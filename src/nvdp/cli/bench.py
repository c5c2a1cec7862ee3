"""The command that measures speed: ``nvdp bench``."""

import json
import math
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from nvdp.cli import app
from nvdp.cli.options import PAPER, Force
from nvdp.errors import InputError, unknown_name


@app.command(rich_help_panel=PAPER)
def bench(
    suite: Annotated[str, typer.Option(help="step, adapt, fewshot, growth, quality, tables or real.")] = "step",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write all numbers to this file.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw them: a PNG; a PDF goes beside it.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases or rounds: a minute or two.")] = False,
    threads: Annotated[int, typer.Option(help="PyTorch threads.", min=1)] = 1,
    run: Annotated[Path | None, typer.Option(help="adapt, real: the run folder of a model of yours.")] = None,
    seconds: Annotated[
        float | None,
        typer.Option(
            help="Processor seconds of each training. quality: 30, 60, 120, 300 and 1,200, quick 1 and 3; "
            "tables: 150, quick 6.",
            min=1,
        ),
    ] = None,
    folds: Annotated[int, typer.Option(help="tables: how many of the five folds to fit and score.", min=1, max=5)] = 5,
    before: Annotated[
        Path | None, typer.Option(help="step: the src folder of an earlier version, whose steps take turns with ours.")
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="quality: keep the rows of the file, add the others.")
    ] = False,
    jobs: Annotated[int, typer.Option(help="quality: trainings side by side, one process each.", min=1)] = 1,
    model: Annotated[
        list[str] | None,
        typer.Option(help="quality: only this model, by each of its recipes. Repeat it for several. (default: all)"),
    ] = None,
    work: Annotated[
        Path | None, typer.Option(help="tables: a folder that keeps each fold; a later call goes on from it.")
    ] = None,
    force: Force = False,
) -> None:
    """Measure speed: ours, the straightforward version (autograd) and the matrix products alone (floor), in turns.

    step: a training step of each model. adapt: adapt + predict beside Gaussian processes and fine-tuning.
    fewshot: the time of each few-shot classifier for a new task.
    growth: time and memory as tasks, points, width and layers grow. quality: log-likelihood against seconds.
    tables: scores of nvdp fit on public tables beside a hierarchical Gaussian process, a mixed model and others.
    real: the pretrained general model on public data sets.

    Example: nvdp bench --suite step --quick --json step.json --plot step.png
    """
    from nvdp.bench import Settings, run_suite, suite_result
    from nvdp.bench.adapt import missing_peers
    from nvdp.bench.draw import draw
    from nvdp.bench.files import earlier_rows, only_writer
    from nvdp.bench.suites import SUITES
    from nvdp.bench.terminal import table
    from nvdp.bench.timing import check_source
    from nvdp.plots import figure_paths
    from nvdp.system import check_outputs, write_text

    if before is not None:
        if suite != "step":
            raise InputError(f"--before is for --suite step, not {suite}")
        check_source(before)
    if seconds is not None and not math.isfinite(seconds):
        raise InputError(f"--seconds is {seconds}; expected a finite number")
    if resume and (suite != "quality" or json_file is None):
        raise InputError("--resume is for --suite quality with --json FILE, whose rows are kept")
    if suite != "quality" and (jobs > 1 or model):
        raise InputError(f"--jobs and --model are for --suite quality, not {suite}")
    if suite not in SUITES:
        raise unknown_name("suite", suite, SUITES)
    json_file = json_file and json_file.resolve()  # a link stays a link
    check_outputs([json_file] if json_file else [], force=True)  # a folder is refused before it is locked
    check_outputs(figure_paths(plot) if plot else [], force=force)
    if json_file is not None:
        json_file.parent.mkdir(parents=True, exist_ok=True)
    if suite == "adapt" and (missing := missing_peers()):
        typer.echo(f"not installed, so not measured: {', '.join(missing)}; pip install 'nvdp[bench]'", err=True)
    with nullcontext() if json_file is None else only_writer(json_file):
        if suite == "quality" and json_file is not None and json_file.is_file() and not (force or resume):
            raise InputError(f"{json_file} exists; add --resume to keep its rows and go on, or --force to replace it")
        check_outputs([json_file] if json_file else [], force=force or resume)
        rows = earlier_rows(json_file, threads) if resume and json_file and json_file.exists() else []

        def save(measured: list[dict[str, Any]]) -> None:
            rows[:] = measured
            if json_file is not None:
                write_text(json_file, json.dumps(suite_result(suite, measured, quick), indent=1) + "\n")

        settings = Settings(
            quick=quick,
            run=run,
            seconds=seconds,
            folds=folds,
            before=before,
            done=tuple(rows),
            save=save,
            say=_say,
            jobs=jobs,
            models=tuple(model or ()),
            work=work,
        )
        try:
            result = run_suite(suite, settings, threads)
        except KeyboardInterrupt:
            if suite == "quality":
                _say(_what_is_saved(json_file, len(rows)))
            raise
        console = Console()
        console.print(table(result, console.width))
        if json_file is not None:
            write_text(json_file, json.dumps(result, indent=1) + "\n")
            typer.echo(f"wrote {json_file}")
    if plot is not None:
        for path in draw(result, plot):
            typer.echo(f"drew {path}")


def _say(line: str) -> None:
    typer.echo(line, err=True)


def _what_is_saved(file: Path | None, rows: int) -> str:
    if file is None:
        return "stopped; no row is saved: with --json FILE each row is, and --resume goes on"
    if not rows:
        return "stopped before the first row was measured; nothing is saved"
    return f"stopped; the rows so far ({rows}) are saved in {file}: repeat the command with --resume to go on"
