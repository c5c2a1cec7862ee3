"""The command that scores a fitted model on tasks that it has not seen: ``nvdp score``."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA, AsJson, seed_option
from nvdp.errors import InputError, counted


@app.command(rich_help_panel=OWN_DATA)
def score(
    folder: Annotated[
        str, typer.Argument(help="The folder that `nvdp fit` left, or a pretrained name: general.", metavar="MODEL")
    ],
    table: Annotated[Path, typer.Argument(help="New tasks: CSV or Parquet, with the columns of the fitted table.")],
    task: Annotated[str | None, typer.Option(help="The column of tasks, for a pretrained model.")] = None,
    x: Annotated[str | None, typer.Option(help="The columns of inputs, for a pretrained model.")] = None,
    y: Annotated[str | None, typer.Option(help="The column of outputs, for a pretrained model.")] = None,
    context: Annotated[
        int | None, typer.Option(help="Points of each task to predict from. (default: a third, from 3 to 10)", min=1)
    ] = None,
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Predict from the first points of each task, not from random ones.")
    ] = False,
    seed: Annotated[int, seed_option("Which points are the context.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Score a model on new tasks: each is predicted from some of its points and compared with the others.

    LL is the log-likelihood of an output in the units of the table, higher is better; RMSE is the error of the mean.

    Examples: nvdp score model/ test.csv --forecast
              nvdp score general test.csv --task tree --x day --y size
    """
    from nvdp.cli.tables import columns_of, say, without_far_warnings
    from nvdp.data.tables import read_tasks
    from nvdp.loading import load
    from nvdp.system import use_threads
    from nvdp.tables.notes import far_notes
    from nvdp.tables.rivals import fitted_model, once, score_cases, scored_cases, summary

    use_threads()
    predictor = load(folder)
    columns = columns_of(predictor, folder, task, x, y)
    read = read_tasks(table, replace(columns, group=None), partial=predictor.fills_in)
    say(read.note)
    least = 2 if context is None else context + 1
    usable = [(task.x, task.y) for task in read.tasks if len(task.x) >= least]
    if not usable:
        raise InputError(f"{table} has {counted(len(read.tasks), 'task')}, none with at least {least} whole rows")
    if len(usable) < len(read.tasks):
        say(f"left out {counted(len(read.tasks) - len(usable), 'task')} with fewer than {least} whole rows")
    cases = scored_cases(usable, seed, context, forecast, most=len(usable))
    for note in far_notes(predictor.units, {"rows": read.tasks}, columns):
        say(note)
    with without_far_warnings(predictor):
        ours = once(fitted_model(predictor))
        found = {"": score_cases(ours, cases)}
        for place, name in enumerate(columns.y if len(columns.y) > 1 else ()):
            found[name] = score_cases(ours, cases, place)
    scores, *by_output = (asdict(summary(each)) for each in found.values() if each)
    outputs = dict(zip([name for name, each in found.items() if name and each], by_output, strict=True))
    about = {"model": predictor.model.config.name, "tasks": len(usable), "forecast": forecast}
    if as_json:
        typer.echo(json.dumps(about | {"scores": scores} | ({"by_output": outputs} if outputs else {})))
        return
    title = f"{counted(len(usable), 'task')}, each from {'its first' if forecast else 'some of its'} points"
    shown = Table("output", "LL", "RMSE", "in 90 % interval", "in 50 % interval", title=title)
    for name, row in {"all" if outputs else columns.y[0]: scores, **outputs}.items():
        error = "" if outputs and row is scores else f"{row['RMSE']:.4g}"  # units differ from output to output
        shown.add_row(name, f"{row['LL']:.3f}", error, f"{row['coverage90']:.1%}", f"{row['coverage50']:.1%}")
    Console().print(shown)
