"""Commands about runs: eval, info, plot."""

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.errors import InputError
from nvdp.loading import find_run

Run = Annotated[
    Path,
    typer.Argument(
        help="The folder of a run, as --out of `nvdp train` left it, or a name of `nvdp models --pretrained`.",
        callback=lambda run: find_run(run),
    ),
]


@app.command("eval")
def evaluate(
    run: Run,
    tasks: Annotated[
        int | None, typer.Option(help="The first so many tasks of a fixed set. (default: 2,048; 600 episodes)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Which validation set. (default: the published one)")] = None,
    samples: Annotated[
        int | None, typer.Option(help="Sampled functions per task. (default: 16; 10 classifiers)")
    ] = None,
    on: Annotated[str | None, typer.Option(help="Another family of tasks, for transfer, e.g. omniglot.")] = None,
    split: Annotated[
        str | None,
        typer.Option(
            help="Images to score: validation, test or train. (default: validation; test of another set or of classes)"
        ),
    ] = None,
    way: Annotated[int | None, typer.Option(help="Classifiers: classes of an episode. (default: as trained)")] = None,
    shot: Annotated[int | None, typer.Option(help="Classifiers: support images of a class. (as trained)")] = None,
    queries: Annotated[
        int | None, typer.Option(help="Classifiers: images of a class to name. (default: 15; of a folder as trained)")
    ] = None,
    transductive: Annotated[
        bool, typer.Option("--transductive", help="Classifiers: batch norm uses the statistics of an episode's images.")
    ] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of data sets. (default: NVDP_DATA)")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Score a run on the fixed validation set, beside the exact GP where there is one.

    LL is over all points, RLL over the context, PLL over the targets; higher is better. A few-shot classifier is scored
    on episodes of test classes: accuracy with its 95 % interval, NLL and calibration error.
    """
    from nvdp.cli.fewshot import evaluate_classifier, is_classifier
    from nvdp.data.public.fetch import use_data_folder
    from nvdp.evaluation.run import VALIDATION_SEED, evaluate_run
    from nvdp.system import keep_freed_memory, use_threads

    keep_freed_memory()
    use_threads()
    use_data_folder(data_dir)
    seed = VALIDATION_SEED if seed is None else seed
    shape = {"way": way, "shot": shot, "queries": queries, "transductive": transductive}
    if on is None and (is_classifier(run) or any(shape.values())):
        evaluate_classifier(run, as_json, tasks=tasks, seed=seed, samples=samples, split=split, device=device, **shape)
        return
    evaluation = evaluate_run(run, tasks, seed, samples, on, split, device)
    if as_json:
        typer.echo(json.dumps(evaluation))
        return
    place = f"{evaluation['on']} ({evaluation['split']})" if "on" in evaluation else evaluation["task"]
    table = Table(title=f"{evaluation['model']} on {place}, {evaluation['tasks']} tasks")
    oracle = evaluation.get("oracle", {})
    for column in ("", "mean parameters", "E log p", "log E p", "± s.e.", *(["oracle"] if oracle else [])):
        table.add_column(column, justify="right")
    for name, row in evaluation["scores"].items():
        numbers = [row[key] for key in ("mean_parameters", "expected_log", "log_expected", "stderr")]
        numbers += [oracle[name]] if oracle else []
        table.add_row(name, *[f"{number:.3f}" for number in numbers])
    Console().print(table)
    if oracle:
        typer.echo("oracle: the exact GP that knows each task's true kernel. Higher is better.")
    coverage = ", ".join(f"{value:.1%} in {level}" for level, value in evaluation["coverage"].items())
    typer.echo(f"coverage of intervals: {coverage}; CRPS {evaluation['crps']:.4f}; RMSE {evaluation['rmse']:.4f}")
    rate = "" if evaluation["mean_rate"] is None else f"; mean dropout rate {evaluation['mean_rate']:.3f}"
    typer.echo(f"spread of sampled functions {evaluation['spread']:.4f}{rate}")


@app.command()
def plot(
    run: Run,
    out: Annotated[Path, typer.Option(help="The PNG to write; a PDF goes beside it.")] = Path("functions.png"),
    seed: Annotated[int, typer.Option(help="Which three functions.")] = 0,
) -> None:
    """Draw what a model of GP functions predicts from five points of three new functions, beside the exact GP."""
    from dataclasses import replace as changed

    from nvdp.plots import figure_functions, five_point_task, gp_function_panel, oracle_panel
    from nvdp.training.run_folder import load_run

    config, model, _ = load_run(run)
    if config.task != "gp":
        raise InputError(f"{run} was trained on {config.task}; nvdp plot draws models of gp functions")
    panels = []
    for column in range(3):
        task = five_point_task(seed + column)
        title = f"new function {column + 1}"
        panels.append(gp_function_panel(model, title, config.model.name.upper(), task))
        panels.append(changed(oracle_panel(task, "exact GP"), title=title))
    for path in figure_functions(panels, out):
        typer.echo(f"drew {path}")


@app.command()
def info(run: Run) -> None:
    """Say what a run is: its configuration, progress and size."""
    from nvdp.models.registry import build_model
    from nvdp.training.checkpoint import checkpoint_paths
    from nvdp.training.config import RunConfig
    from nvdp.training.run_folder import CHECKPOINTS, CONFIG, WEIGHTS

    config = RunConfig.load(run / CONFIG)
    parameters = sum(p.numel() for p in build_model(config.model).parameters())
    typer.echo(config.to_json(), nl=False)
    state = "finished" if (run / WEIGHTS).exists() else "unfinished"
    saved = [path.stem.removeprefix("step-").lstrip("0") or "0" for path in checkpoint_paths(run / CHECKPOINTS)]
    typer.echo(f"{state}; {parameters} parameters; checkpoints at steps {', '.join(saved) or 'none'}")
