"""The command that fits a model to a table of many short series: ``nvdp fit``."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA
from nvdp.cli.tables import column_names, say
from nvdp.errors import InputError, counted

if TYPE_CHECKING:
    import numpy as np

    from nvdp.loading import Predictor
    from nvdp.plots.tables import TablePanel

DRAWN = 4


@app.command(rich_help_panel=OWN_DATA)
def fit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV (also with ; or as .gz), Excel or Parquet file, one row a point; or a folder of Parquet."
        ),
    ],
    task: Annotated[str, typer.Option(help="The column that says which task a row belongs to.")],
    x: Annotated[
        str, typer.Option(help="The columns of inputs, separated by commas; dates as 2024-03-31 or 31.3.2024.")
    ],
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
    from nvdp.tables.fit import MOST_ROWS, fit_table
    from nvdp.tables.fitted import HowToFit
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
        say(f"so few tasks: the held-out ones ({tasks['held_out']}) also ended the training, so their scores flatter")
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
        shown = enumerate(zip(done.names, done.shown, strict=True))
        panels = [_held_out_panel(done.predictor, *task, name, i) for i, (name, task) in shown if i < DRAWN]
        dates = columns.x[0] in done.predictor.columns.dates if done.predictor.columns else False
        names = columns.x[0], columns.y[0]
        figures["Held-out tasks"], *_ = figure_tables(panels, out / "heldout.png", *names, dates)
    numbers = report["calibration"]
    named = {f"{name} calibration": shares for name, shares in numbers["shares"].items()}
    figures["Intervals of held-out tasks"], *_ = figure_calibration(numbers["levels"], named, out / "calibration.png")
    for path in [*figures.values(), *write_report(out, report, columns, figures)]:
        typer.echo(f"wrote {path}")


def _held_out_panel(predictor: "Predictor", x: "np.ndarray", y: "np.ndarray", name: str, index: int) -> "TablePanel":
    import torch

    from nvdp.plots.tables import task_panel
    from nvdp.tables.rivals import scoring_task

    case = scoring_task(torch.from_numpy(x), torch.from_numpy(y), 0, index)
    others = case.x_target.numpy(), case.y_target.numpy()
    return task_panel(predictor, case.x_context.numpy(), case.y_context.numpy(), others, name)
