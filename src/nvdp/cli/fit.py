"""Commands for a table of many short series: fit and predict."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA, Force
from nvdp.cli.tables import (
    column_names,
    columns_of,
    predicted_rows,
    predicted_together,
    say,
    say_far,
    together,
    write_predictions,
)
from nvdp.errors import InputError, counted

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nvdp.data.tables import Columns, TableTask
    from nvdp.loading import Predictor
    from nvdp.plots.tables import TablePanel

GRID, DRAWN = 200, 4


@app.command(rich_help_panel=OWN_DATA)
def fit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV (also with ; or as .gz), Excel or Parquet file, one row a point; or a folder of Parquet."
        ),
    ],
    task: Annotated[str, typer.Option(help="The column that says which task a row belongs to.")],
    x: Annotated[str, typer.Option(help="The columns of inputs, separated by commas; dates as 2024-03-31.")],
    y: Annotated[str, typer.Option(help="The columns of outputs, separated by commas.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; must be new or empty.")],
    minutes: Annotated[float, typer.Option(help="Most minutes to train; ends sooner when nothing is gained.")] = 5.0,
    folds: Annotated[
        int | None, typer.Option(help="Score every task by cross-validation: so many further fits, each as long.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of held-out tasks, weights and noise.")] = 0,
    model: Annotated[
        str, typer.Option(help="A regression model from `nvdp models`, or auto: held-out tasks choose.")
    ] = "auto",
    forecast: Annotated[
        bool, typer.Option("--forecast", help="Predict what comes later: contexts are the rows that come first in x.")
    ] = False,
    split_by: Annotated[
        str | None, typer.Option(help="A column: tasks with the same value are held out together.")
    ] = None,
    given: Annotated[
        str | None, typer.Option(help="Columns that are constant within a task (sex, diet …): numbers or words.")
    ] = None,
    log: Annotated[
        str | None, typer.Option(help="Columns of --x or --y to take by their logarithm: positive, over decades.")
    ] = None,
    steps: Annotated[int, typer.Option(help="Most training steps.", min=1)] = 30_000,
    device: Annotated[str, typer.Option(help="Where to train: cpu, cuda, mps … or auto.")] = "cpu",
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Fit a model to a table of many short series (patients, machines, trees …).

    Whole tasks are held out: some end the training and choose the model, others score it beside what an expert would
    use: a hierarchical Gaussian process, a mixed model, and simpler rivals. The first line says which is best.
    The model and report.html are left in --out.

    A row whose input is empty is left out, and so is one without any output; of several outputs some may be empty.
    Rows with the same x are repeated observations: each counts, and none is averaged. There are no weights; a row that
    stands for n observations may be repeated n times.

    Example: nvdp fit growth.csv --task tree --x day --y size --out model/
    """
    from nvdp.data.tables import Columns
    from nvdp.system import use_threads
    from nvdp.tables.fit import MOST_ROWS, HowToFit, fit_table
    from nvdp.tables.report import write_report

    use_threads()
    if not 0 < minutes < float("inf"):
        raise InputError(f"--minutes is {minutes}; expected a positive number")
    constant, logs = (column_names(names) if names else () for names in (given, log))
    columns = Columns(task, column_names(x), column_names(y), split_by, constant, log=logs)
    try:
        done = fit_table(file, columns, out, HowToFit(model, steps, minutes, seed, not quiet, device, forecast), folds)
    except (KeyboardInterrupt, SystemExit):
        say(f"stopped; nothing was fitted, and nothing is left in {out}")
        raise
    report = done.report
    if left_out := report["rows"]["left_out"]:
        say(f"left out {left_out} of {report['rows']['read']} rows: a cell is empty")
    if partial := report["rows"]["partial"]:
        say(f"{partial} rows lack some of their outputs; the others are used")
    for name, (low, high) in report["wide"].items():
        say(f"column '{name}' goes from {low:g} to {high:g}: try --log {name}")
    if in_all := report["rows"]["tasks_in_all"]:
        say(f"of about {in_all} tasks a random sample was kept; more are not needed to learn from")
    for name in report["constant_outputs"]:
        say(f"column '{name}' is constant; there is nothing to learn about it")
    tasks = report["tasks"]
    if tasks["too_short"]:
        say(f"left out {counted(tasks['too_short'], 'task')} with fewer than 2 whole rows")
    if tasks["thinned"]:
        large = counted(tasks["thinned"], "task")
        say(f"of {large} with more than {MOST_ROWS:,} rows a random {MOST_ROWS:,} were kept")
    if tasks["too_few_for_both"]:
        say(f"so few tasks: the {tasks['held_out']} held-out ones also ended the training, so their scores flatter")
    way = f", by {folds}-fold cross-validation" if folds else ""
    of_all = "" if tasks["scored"] == tasks["held_out"] else f" of {tasks['held_out']}"
    kinds = {"from the first points of each" if forecast else "each from 3 to 10 of its points": report["scores"]}
    if not forecast and report["forecast_scores"]:
        kinds["from the first points of each"] = report["forecast_scores"]
    typer.echo(report["verdict"])
    for kind, scores in kinds.items():
        table = Table(title=f"{tasks['scored']}{of_all} held-out tasks, {kind}{way}")
        for column in ("", "LL", "RMSE", "in 90 % interval"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name, row in scores.items():
            table.add_row(name, f"{row['LL']:.3f}", f"{row['RMSE']:.4g}", f"{row['coverage90']:.1%}")
        Console().print(table)
    typer.echo(
        f"{report['model']}: {report['steps']} steps on {tasks['training']} tasks ({report['recipe']}) in "
        f"{report['seconds']:.0f} s, best at step {report['best_step']}; saved in {out}"
    )
    if report["still_improving"]:
        say("held-out tasks were still predicted better and better at the end: more --minutes or --steps should help")
    from nvdp.plots.tables import figure_calibration, figure_tables

    figures: dict[str, Path] = {}
    if len(columns.x) == 1:
        panels = [_held_out_panel(done.predictor, *task, i) for i, task in enumerate(done.shown[:DRAWN])]
        figures["Held-out tasks"], *_ = figure_tables(panels, out / "heldout.png", columns.x[0], columns.y[0])
    numbers = report["calibration"]
    named = {f"{name} calibration": shares for name, shares in numbers["shares"].items()}
    figures["Intervals of held-out tasks"], *_ = figure_calibration(numbers["levels"], named, out / "calibration.png")
    for path in [*figures.values(), *write_report(out, report, columns, figures)]:
        typer.echo(f"wrote {path}")


@app.command(rich_help_panel=OWN_DATA)
def predict(
    folder: Annotated[
        str, typer.Argument(help="The folder that `nvdp fit` left, or a pretrained name: general.", metavar="MODEL")
    ],
    context: Annotated[Path, typer.Option(help="Rows to predict from: the columns of the fitted table.")],
    out: Annotated[Path, typer.Option(help="The CSV to write: the rows of --at with mean, std, q05, q50 and q95.")],
    at: Annotated[str, typer.Option(help="A file with the task and input columns, or auto: an even grid.")] = "auto",
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
    force: Force = False,
) -> None:
    """Predict new tasks from a few rows of each; no training, several tasks may be in one file.

    A fitted model knows its columns; for a pretrained one name them. Files without the task column are of one task.
    Files that exist are replaced with --force only, inputs never.

    Examples: nvdp predict model/ --context new_tree.csv --at grid.csv --out pred.csv --plot pred.png
              nvdp predict general --context few.csv --x day --y size --out pred.csv
    """
    from nvdp.data.tables import read_frame, split_tasks
    from nvdp.loading import load
    from nvdp.plots import figure_paths
    from nvdp.system import check_outputs, use_threads, write_text

    use_threads()
    drawn = [] if plot is None else figure_paths(plot)
    check_outputs([out, *drawn, *([explain] if explain else [])], [context, Path(at)], force)
    predictor = load(folder)
    columns = columns_of(predictor, folder, task, x, y)
    if plot is not None and len(columns.x) > 1:
        raise InputError(f"--plot draws functions of one input; there are {len(columns.x)}")
    given = read_frame(context)
    if predictor.columns is not None and columns.task not in given.columns:
        columns = replace(columns, task=None)
    blended = predictor.adjustment is not None and predictor.adjustment.process is not None
    known = split_tasks(given, replace(columns, group=None), str(context), partial=blended)
    say(known.note)
    names = [each.name for each in known.tasks]
    frame = _grid(columns, _reach(predictor, known.tasks), names) if at == "auto" else read_frame(Path(at))
    there = all(name in frame.columns for name in columns.given)
    asked = replace(columns, y=(), group=None, log=tuple(set(columns.log) & set(columns.x)))
    queries = split_tasks(frame, asked if there else replace(asked, given=(), levels=()), at)
    say(queries.note)
    contexts = {each.name: each for each in known.tasks}
    if not there:
        queries = replace(queries, tasks=tuple(_with_given(predictor, each, contexts) for each in queries.tasks))
    if unknown := [each.name for each in queries.tasks if each.name not in contexts]:
        without = "1 task has" if len(unknown) == 1 else f"{len(unknown)} tasks have"
        say(f"{without} no context, the first is '{unknown[0]}': predicted without one")
    parts = []
    with say_far(predictor, known.tasks, queries.tasks):
        for pairs in together(queries.tasks, contexts):
            if samples or len(pairs) == 1:
                posteriors = ((_posterior(predictor, known, query), query) for known, query in pairs)
                parts += [predicted_rows(posterior, query, samples, columns.y) for posterior, query in posteriors]
            else:
                parts.append(predicted_together(predictor, pairs, columns.y))
    write_predictions(frame, parts, out)
    done = counted(sum(map(len, parts)), "prediction")
    typer.echo(f"wrote {out}: {done} of {counted(len(queries.tasks), 'task')}")
    if explain is not None:
        write_text(explain, json.dumps([_explained(predictor, each) for each in known.tasks], indent=1) + "\n")
        typer.echo(f"wrote {explain}")
    if plot is not None:
        from nvdp.plots.tables import figure_tables, task_panel

        reach = _reach(predictor, [*known.tasks, *queries.tasks])
        panels = [task_panel(predictor, each.x, each.y, None, each.name, reach) for each in known.tasks[:DRAWN]]
        for path in figure_tables(panels, plot, columns.x[0], columns.y[0]):
            typer.echo(f"drew {path}")


def _explained(predictor: "Predictor", task: "TableTask") -> dict[str, Any]:
    found = predictor.explain(task.x, task.y)
    rows = zip(task.x.tolist(), task.y.tolist(), found.change, found.expected, found.std, strict=True)
    without = [
        {"x": x, "y": y, "change": change.tolist(), "expected": expected.tolist(), "std": std.tolist()}
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
    inputs: dict[str, Any] = {columns.x[0]: np.tile(space(*reach, GRID), len(names))}
    return pd.DataFrame({columns.task: np.repeat(names, GRID), **inputs} if columns.task else inputs)


def _with_given(predictor: "Predictor", task: "TableTask", contexts: "dict[str, TableTask]") -> "TableTask":
    """A query with what is given of its task's context, or the mean of the fitted table if it has none."""
    import numpy as np

    context, inputs = contexts.get(task.name), task.x.shape[1]
    own = np.array(predictor.units.x_centre[inputs:]) if context is None else context.x[0, inputs:]
    return replace(task, x=np.concatenate([task.x, np.tile(own, (len(task.x), 1))], 1))


def _posterior(predictor: "Predictor", context: "TableTask | None", query: "TableTask") -> Any:
    if context is not None:
        return predictor.adapt(context.x, context.y)
    import numpy as np

    return predictor.adapt(np.empty((0, query.x.shape[1])), np.empty((0, predictor.widths.y)))


def _held_out_panel(predictor: "Predictor", x: "np.ndarray", y: "np.ndarray", index: int) -> "TablePanel":
    import torch

    from nvdp.plots.tables import task_panel
    from nvdp.tables.rivals import scoring_task

    case = scoring_task(torch.from_numpy(x), torch.from_numpy(y), 0, index)
    others = case.x_target.numpy(), case.y_target.numpy()
    title = f"held-out task {index + 1}"
    return task_panel(predictor, case.x_context.numpy(), case.y_context.numpy(), others, title)
