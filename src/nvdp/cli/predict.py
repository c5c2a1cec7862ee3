"""The command that predicts new tasks of a table, or of folders of Parquet files: ``nvdp predict``."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA, Address, Force
from nvdp.cli.tables import check_output_format, columns_of, say, without_far_warnings, write_predictions
from nvdp.errors import InputError, counted

if TYPE_CHECKING:
    import pandas as pd

    from nvdp.data.tables import Columns, TableTask
    from nvdp.loading import Predictor

GRID, DRAWN = 200, 4


@app.command(rich_help_panel=OWN_DATA)
def predict(
    folder: Annotated[
        str, typer.Argument(help="The folder that `nvdp fit` left, or a pretrained name: general.", metavar="MODEL")
    ],
    context: Annotated[
        Path, typer.Option(help="Rows to predict from, with the columns of the fitted table: a file or a folder.")
    ],
    out: Annotated[
        Path,
        typer.Option(
            help="The CSV or Parquet file to write: the rows of --at with mean, std, q05, q50, q95; or a new folder."
        ),
    ],
    at: Annotated[
        str, typer.Option(help="A file or folder with the task and input columns, or auto: an even grid, for files.")
    ] = "auto",
    task: Annotated[
        str | None, typer.Option(help="The column of tasks, for a pretrained model; left out, all rows are one task.")
    ] = None,
    x: Annotated[str | None, typer.Option(help="The columns of inputs, for a pretrained model.")] = None,
    y: Annotated[str | None, typer.Option(help="The column of outputs, for a pretrained model.")] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw up to four of the tasks: a PNG; a PDF goes beside it.")
    ] = None,
    explain: Annotated[
        Path | None,
        typer.Option(help="Write why, as JSON: the nearest training tasks, and what each context row changes."),
    ] = None,
    samples: Annotated[int, typer.Option(help="Sampled functions behind each prediction; 0 needs none.", min=0)] = 0,
    executor: Annotated[
        str, typer.Option(help="For folders: local (this machine) or ray (a cluster; needs nvdp\\[cluster]).")
    ] = "local",
    jobs: Annotated[
        int | None,
        typer.Option(help="For folders: processes of this machine that predict. [default: 1; ray: all CPUs]", min=1),
    ] = None,
    address: Address = None,
    force: Force = False,
) -> None:
    """Predict new tasks from a few rows of each; no training, several tasks may be in one file.

    A fitted model knows its columns; for a pretrained one name them. Files without the task column are of one task.
    Files that exist are replaced with --force only, inputs and folders never.

    --context and --at may both be folders of Parquet files with any number of tasks. Every file needs the columns, that
    of tasks among them; a task may be spread over files, and folders in a folder are read too, but no names that begin
    with a point or _. The rows are sorted by task into parts of about 25,000 (at most 1,000 parts), so that few are in
    memory at a time. --out becomes a folder with a file for each part: the rows of --at in another order, all rows of a
    task in one file. --jobs 4 predicts four parts at a time; with --executor ray all CPUs of a cluster predict.

    Examples: nvdp predict model/ --context new_tree.csv --at grid.csv --out pred.csv --plot pred.png
              nvdp predict general --context few.csv --x day --y size --out pred.csv
              nvdp predict model/ --context contexts/ --at queries/ --out predictions/
    """
    from nvdp.cluster import check_executor
    from nvdp.data.table_files import read_frame
    from nvdp.loading import load
    from nvdp.plots import figure_paths
    from nvdp.system import check_outputs, use_threads, write_text
    from nvdp.tables.notes import data_notes
    from nvdp.tables.predict import contexts_of, predictions, queries_of

    use_threads()
    check_executor(executor, address)
    if context.is_dir() or Path(at).is_dir():
        if plot is not None or explain is not None:
            raise InputError(f"--{'explain' if plot is None else 'plot'} needs files; {context} and {at} are folders")
        if address is not None and jobs is not None:
            raise InputError(f"--jobs is {jobs}; the cluster at {address} has CPUs of its own")
        _folders(folder, (task, x, y), context, Path(at), out, samples, executor, address, jobs)
        return
    if executor != "local" or jobs is not None:
        asked = f"--jobs {jobs}" if executor == "local" else f"--executor {executor}"
        raise InputError(f"{asked} needs folders of Parquet files; {context} is a file")
    check_output_format(out)
    drawn = [] if plot is None else figure_paths(plot)
    check_outputs([out, *drawn, *([explain] if explain else [])], [context, Path(at)], force)
    predictor = load(folder)
    columns = columns_of(predictor, folder, task, x, y)
    if plot is not None and len(columns.x) > 1:
        raise InputError(f"--plot draws functions of one input; there are {len(columns.x)}")
    given = read_frame(context)
    if predictor.columns is None:
        columns = columns.learned(given, str(context))  # which inputs are dates
    if predictor.columns is not None and columns.task not in given.columns:
        say(f"{context} has no column '{columns.task}': its {counted(len(given), 'row')} are of one task")
        columns = replace(columns, task=None)
    known = contexts_of(predictor, columns, given, str(context))
    say(known.note)
    names = [each.name for each in known.tasks]
    frame = _grid(columns, _reach(predictor, known.tasks), names) if at == "auto" else read_frame(Path(at))
    contexts = {each.name: each for each in known.tasks}
    queries = queries_of(predictor, columns, frame, contexts, at)
    say(queries.note)
    if unknown := [each.name for each in queries.tasks if each.name not in contexts]:
        without = "1 task has" if len(unknown) == 1 else f"{len(unknown)} tasks have"
        others = f" ({context} has '{names[0]}')" if len(unknown) == len(queries.tasks) else ""
        mean = [name for name in columns.given if name not in frame.columns]
        taken = f", with the mean of {', '.join(mean)}" if mean else ""
        say(f"{without} no context, the first is '{unknown[0]}'{others}: predicted without one{taken}")
    for note in data_notes(predictor.units, known.tasks, queries.tasks, columns):
        say(note)
    with without_far_warnings(predictor):
        parts = predictions(predictor, contexts, queries.tasks, columns.y, samples)
    write_predictions(frame, parts, out)
    done = counted(sum(map(len, parts)), "prediction")
    typer.echo(f"wrote {out}: {done} of {counted(len(queries.tasks), 'task')}")
    if explain is not None:
        reasons = [_explained(predictor, columns, each) for each in known.tasks]
        write_text(explain, json.dumps(reasons, indent=1, allow_nan=False) + "\n")
        typer.echo(f"wrote {explain}")
    if plot is not None:
        from nvdp.plots.tables import TaskRows, figure_tasks

        reach = _reach(predictor, [*known.tasks, *queries.tasks])
        rows = [TaskRows(each.name, each.x, each.y) for each in known.tasks[:DRAWN]]
        for path in figure_tasks(predictor, rows, plot, columns, reach):
            typer.echo(f"drew {path}")


def _folders(
    model: str,
    names: tuple[str | None, str | None, str | None],
    context: Path,
    at: Path,
    out: Path,
    samples: int,
    executor: str,
    address: str | None,
    jobs: int | None,
) -> None:
    import os

    from rich.console import Console
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    from nvdp.loading import load
    from nvdp.tables.folders import Question, predict_folder

    for option, path in (("--context", context), ("--at", at)):
        if not path.is_dir():
            raise InputError(f"{option} is {path}; expected a folder of Parquet files, as the other is one")
    check_output_format(out, folder=True)
    place = str(Path(model).resolve()) if Path(model).is_dir() else model
    question = Question(place, columns_of(load(place), model, *names), samples)
    columns = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), TimeElapsedColumn())
    cpus = jobs or (1 if executor == "local" else os.cpu_count() or 1)
    console = Console(stderr=True)
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        line = bar.add_task("parts", total=None)
        done = predict_folder(
            question, context, at, out, executor, address, cpus,
            lambda number, parts: bar.update(line, completed=number, total=parts),
        )  # fmt: skip
    if done.left_out:
        say(f"left out {counted(done.left_out, 'row')}: a cell is empty")
    if done.without:
        first = f"the first is '{done.first_without}'"
        say(f"{counted(done.without, 'task')} without a context, {first}: predicted all the same")
    for note in done.in_words():
        say(note)
    typer.echo(f"wrote {out}: {counted(done.rows, 'prediction')} of {counted(done.tasks, 'task')}")


def _explained(predictor: "Predictor", columns: "Columns", task: "TableTask") -> dict[str, Any]:
    """Why a task is predicted so; dates as dates, and a missing output as null."""
    found = predictor.explain(task.x, task.y)
    x = [list(columns.written(name, task.x[:, place].tolist())) for place, name in enumerate(columns.input_names)]
    y = [[None if value != value else value for value in row] for row in task.y.tolist()]
    rows = zip(zip(*x, strict=True), y, found.change, found.expected, found.std, strict=True)
    without = [
        {"x": list(x), "y": y, "change": change.tolist(), "expected": expected.tolist(), "std": std.tolist()}
        for x, y, change, expected, std in rows
    ]
    return {"task": task.name, "nearest": found.nearest, "without": without}


def _reach(predictor: "Predictor", tasks: "Sequence[TableTask]") -> tuple[float, float]:
    """The range of the first input: that of training, or of all contexts where a model takes any."""
    import math

    units = predictor.units
    if units.x_low and math.isfinite(units.x_high[0] - units.x_low[0]):
        return units.x_low[0], units.x_high[0]
    low, high = (float(end(end(each.x[:, 0]) for each in tasks)) for end in (min, max))
    return (low, high) if low < high else (low - 1, high + 1)


def _grid(columns: "Columns", reach: tuple[float, float], names: list[str]) -> "pd.DataFrame":
    import numpy as np
    import pandas as pd

    if len(columns.x) > 1:
        raise InputError(f"--at auto makes a grid of one input; there are {len(columns.x)}: give a file")
    space = np.geomspace if columns.x[0] in columns.log else np.linspace
    x = columns.x[0]
    inputs: dict[str, Any] = {x: np.tile(columns.written(x, space(*reach, GRID)), len(names))}
    return pd.DataFrame({columns.task: np.repeat(names, GRID), **inputs} if columns.task else inputs)
