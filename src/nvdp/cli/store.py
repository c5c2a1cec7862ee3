"""Commands about a store of many small tasks: observe, predict and stats."""

import json
from pathlib import Path
from typing import Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA, Force
from nvdp.errors import InputError, counted

store = typer.Typer(help="Keep the states of many small tasks in one file, or on a server.", no_args_is_help=True)
app.add_typer(store, name="store", rich_help_panel=OWN_DATA)

File = Annotated[
    str,
    typer.Argument(help="The store: an SQLite file, which observe makes if it is not there, or a postgresql:// URL."),
]
Table = Annotated[Path, typer.Argument(help="A CSV or Parquet file, one row a point.")]
Model = Annotated[str, typer.Option(help="A run folder, a folder of `nvdp fit`, or a pretrained name: gp-nvdp.")]
TaskColumn = Annotated[str, typer.Option(help="The column that names the task.")]
Inputs = Annotated[str, typer.Option(help="The columns of inputs, separated by commas.")]
Outputs = Annotated[str, typer.Option(help="The columns of outputs, separated by commas.")]


@store.command()
def observe(file: File, table: Table, model: Model, task: TaskColumn, x: Inputs, y: Outputs) -> None:
    """Take in the rows of a table, all or none; tasks that are known already go on from where they are.

    Example: nvdp store observe trees.db new_rows.csv --model gp-nvdp --task tree --x day --y size
    """
    from nvdp.cli.tables import column_names, say
    from nvdp.data.tables import Columns, read_tasks
    from nvdp.loading import load
    from nvdp.models.state import PointError
    from nvdp.store import TaskStore

    predictor = load(model)
    rows = read_tasks(table, Columns(task, column_names(x), column_names(y)))
    say(rows.note)
    with TaskStore(file, predictor) as tasks:
        try:
            tasks.observe_many(*zip(*((each.name, each.x, each.y) for each in rows.tasks), strict=True))
        except PointError as error:
            which, point = error.place
            line = rows.line(rows.tasks[which].rows[point])
            raise InputError(f"{table}, line {line}, {error}; nothing of the file was taken in") from None
        points = sum(len(each.x) for each in rows.tasks)
        taken = f"observed {counted(points, 'point')} of {counted(len(rows.tasks), 'task')}"
        typer.echo(f"{taken}; {tasks.place} holds {counted(len(tasks), 'task')}")


@store.command()
def predict(
    file: File,
    at: Annotated[Path, typer.Argument(help="A CSV or Parquet file with the task and input columns.")],
    model: Model,
    task: TaskColumn,
    x: Inputs,
    out: Annotated[Path, typer.Option(help="The CSV to write: the rows of AT with mean, std, q05, q50 and q95.")],
    samples: Annotated[int, typer.Option(help="Sampled functions behind each prediction; 0 needs none.", min=0)] = 0,
    force: Force = False,
) -> None:
    """Predict at the rows of a table, each from what the store knows of its task.

    Example: nvdp store predict trees.db grid.csv --model gp-nvdp --task tree --x day --out predictions.csv
    """
    from nvdp.cli.tables import check_output_format, column_names, say, without_far_warnings, write_predictions
    from nvdp.data.table_files import read_frame
    from nvdp.data.tables import Columns, split_tasks
    from nvdp.loading import load
    from nvdp.store import TaskStore, check_exists
    from nvdp.system import check_outputs
    from nvdp.tables.notes import far_notes
    from nvdp.tables.predict import predicted_rows

    check_output_format(out)
    check_outputs([out], [at, Path(file)], force)
    predictor = load(model)
    check_exists(file)
    frame = read_frame(at)
    queries = split_tasks(frame, Columns(task, column_names(x)), str(at))
    say(queries.note)
    with TaskStore(file, predictor) as tasks:
        unknown = [each.name for each in queries.tasks if not tasks.count(each.name)]
        for note in far_notes(predictor.units, {"rows to predict": queries.tasks}):
            say(note)
        with without_far_warnings(predictor):
            parts = [predicted_rows(tasks.posterior(each.name), each, samples) for each in queries.tasks]
    if unknown:
        never = "1 task was" if len(unknown) == 1 else f"{len(unknown)} tasks were"
        say(f"{never} never observed, the first is '{unknown[0]}': predicted without a context")
    write_predictions(frame, parts, out)
    typer.echo(f"wrote {out}: {counted(sum(len(each.rows) for each in queries.tasks), 'prediction')}")


@store.command()
def stats(
    file: File,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a line.")] = False,
) -> None:
    """Say how many tasks and points a store holds, and its size on disk."""
    from nvdp.store import store_stats

    numbers = store_stats(file)
    if as_json:
        typer.echo(json.dumps(numbers))
        return
    held = ", ".join(counted(int(numbers[f"{what}s"]), what) for what in ("task", "point"))
    typer.echo(f"{held}, {numbers['bytes'] / 1e6:.1f} MB, {numbers['bytes_per_task']} bytes a task")
