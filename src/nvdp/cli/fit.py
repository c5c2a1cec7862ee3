"""The command that fits a model to a table of many short series: ``nvdp fit``."""

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.cli.options import OWN_DATA, seed_option
from nvdp.cli.tables import column_names, say
from nvdp.errors import InputError, counted

if TYPE_CHECKING:
    from nvdp.tables.fit import TableFit

DRAWN = 4  # tasks
MOST_COLUMNS = 4  # of errors, one for each output


@app.command(rich_help_panel=OWN_DATA)
def fit(
    file: Annotated[
        Path,
        typer.Argument(
            help="A CSV (also with ; or tabs, or .gz), .xlsx or Parquet file, one row a point; or a folder of Parquet."
        ),
    ],
    task: Annotated[str, typer.Option(help="The column that says which task a row belongs to.")],
    x: Annotated[
        str, typer.Option(help="The columns of inputs, separated by commas; dates as 2024-03-31, 31.3.2024, 2024-03 …")
    ],
    y: Annotated[str, typer.Option(help="The columns of outputs, separated by commas.")],
    out: Annotated[Path, typer.Option(help="Folder for the model; must be new or empty.")],
    minutes: Annotated[float, typer.Option(help="Most minutes to train; ends sooner when nothing is gained.")] = 5.0,
    folds: Annotated[
        int | None, typer.Option(help="Score every task by cross-validation: so many further fits, each as long.")
    ] = None,
    seed: Annotated[int, seed_option("Seed of held-out tasks, weights and noise.")] = 0,
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
    from nvdp.tables.fit import fit_table
    from nvdp.tables.fitted import HowToFit
    from nvdp.tables.report import write_report

    use_threads()
    if not 0 < minutes < float("inf"):
        raise InputError(f"--minutes is {minutes}; expected a positive number")
    constant, logs = (column_names(names) if names else () for names in (given, log))
    columns = Columns(task, column_names(x), column_names(y), split_by, constant, log=logs)
    try:
        how = HowToFit(model, steps, minutes, seed, not quiet, device, forecast)
        done = fit_table(file, columns, out, how, folds, say)
    except (KeyboardInterrupt, SystemExit):
        say(f"stopped; nothing was fitted, and nothing is left in {out}")
        raise
    report = done.report
    tasks = report["tasks"]
    if tasks["too_few_for_both"]:
        held = counted(tasks["held_out"], "held-out task")
        say(f"few tasks: the {held} also ended the training, so the scores are optimistic")
    typer.echo(report["verdict"])
    _print_scores(report, columns.y)
    typer.echo(
        f"{report['model']}: {report['steps']} steps on {tasks['training']} tasks ({report['recipe']}) in "
        f"{report['seconds']:.0f} s, best at step {report['best_step']}; saved in {out}"
    )
    if report["still_improving"]:
        say("held-out tasks were still predicted better and better at the end: more --minutes or --steps should help")
    figures = _draw(done, out)
    known = done.predictor.columns or columns
    for path in [*figures.values(), *write_report(out, report, known, figures)]:
        typer.echo(f"wrote {path}")


def _print_scores(report: dict[str, Any], outputs: Sequence[str]) -> None:
    """One table for each way to choose contexts; errors of several outputs have columns of their own."""
    tasks, folds = report["tasks"], report["folds"]
    of_all = "" if tasks["scored"] == tasks["held_out"] else f" of {tasks['held_out']}"
    way = f", by {folds}-fold cross-validation" if folds else ""
    kinds = {"forecast" if report["forecast"] else "random": report["scores"]}
    if report["forecast_scores"]:
        kinds["forecast"] = report["forecast_scores"]
    for kind, scores in kinds.items():
        low, high = report["context_sizes"][kind]
        size = counted(high, "point") if low == high else f"{low} to {high} points"
        chosen = "the first" if kind == "forecast" else "random"
        held = f"{tasks['scored']}{of_all} held-out {'task' if tasks['scored'] == 1 else 'tasks'}"
        by_output = report["by_output"].get(kind) or {"": scores}
        errors = by_output if len(by_output) <= MOST_COLUMNS else {}
        table = Table(title=f"{held}, each from {size} ({chosen}){way}")
        for column in ("", "LL", *(f"RMSE\n{output}".strip() for output in errors), "inside\n90 %"):
            table.add_column(column, justify="right" if column else "left", no_wrap=True)
        for name, row in scores.items():
            own = (f"{each[name]['RMSE']:.4g}" for each in errors.values())
            table.add_row(name, f"{row['LL']:.3f}", *own, f"{row['coverage90']:.1%}")
        Console().print(table)


def _draw(done: "TableFit", out: Path) -> dict[str, Path]:
    """Figures by the titles of their sections in the report."""
    import torch

    from nvdp.plots.tables import TaskRows, figure_calibration, figure_tasks
    from nvdp.tables.report import CALIBRATION, CURVES
    from nvdp.tables.rivals import scoring_task

    figures: dict[str, Path] = {}
    columns, forecast = done.predictor.columns, bool(done.report["forecast"])
    if columns is not None and len(columns.x) == 1:
        rows, shown = [], zip(done.names, done.shown, strict=True)
        for index, (name, (x, y)) in enumerate(islice(shown, DRAWN if len(columns.y) < 3 else DRAWN // 2)):
            case = scoring_task(torch.from_numpy(x), torch.from_numpy(y), 0, index, prefix=forecast)
            others = case.x_target.numpy(), case.y_target.numpy()
            rows.append(TaskRows(name, case.x_context.numpy(), case.y_context.numpy(), others))
        figures[CURVES], *_ = figure_tasks(done.predictor, rows, out / "heldout.png", columns)
    numbers = done.report["calibration"]
    named = {f"{name} calibration": shares for name, shares in numbers["shares"].items()}
    figures[CALIBRATION], *_ = figure_calibration(numbers["levels"], named, out / "calibration.png")
    return figures
