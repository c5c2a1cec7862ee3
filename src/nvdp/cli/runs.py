"""Commands about runs: train, eval, info, plot, models."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.errors import InputError
from nvdp.loading import find_run

Run = Annotated[
    Path,
    typer.Argument(
        help="The folder of a run, as --out of `nvdp train` left it, or a pretrained model's name: gp.",
        callback=lambda run: find_run(run),
    ),
]


@app.command()
def train(
    task: Annotated[
        str,
        typer.Argument(
            help="The family of tasks: gp, trig, mnist, omniglot, celeba or images; to classify: omniglot-fewshot, "
            "miniimagenet or folder-of-classes."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run; must be new unless --resume is given.")],
    model: Annotated[str | None, typer.Option(help="A name from `nvdp models`. (default: nvdp)")] = None,
    variance: Annotated[str | None, typer.Option(help="learned, or fixed (σ = 1). (default: learned)")] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="quick (minutes), cpu, paper (its steps and rate), released (its KL, clipped rates). (default: cpu)"
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps. (default: the preset's)")] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights, tasks and noise. (default: 0)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out, bit for bit.")] = False,
    learning_rate: Annotated[float | None, typer.Option(help="Adam's step size.")] = None,
    objective: Annotated[
        str | None,
        typer.Option(help="variational-prior, neural-process, likelihood or log-uniform. (default: the model's)"),
    ] = None,
    kl: Annotated[str | None, typer.Option(help="How the KL is reduced: elbo, text or released.")] = None,
    kl_weight: Annotated[float | None, typer.Option(help="Weight of the reduced KL.")] = None,
    rate_bounds: Annotated[str | None, typer.Option(help="affine or clip.")] = None,
    decoder_sees: Annotated[str | None, typer.Option(help="What NVDP's decoder is given: x or x,r.")] = None,
    aggregation: Annotated[
        str | None, typer.Option(help="How points make a set's representation: mean, bayesian or attention.")
    ] = None,
    weight_average: Annotated[float | None, typer.Option(help="Decay of averaged weights, e.g. 0.999.")] = None,
    way: Annotated[int | None, typer.Option(help="to classify: classes of an episode. (default: 5)")] = None,
    shot: Annotated[int | None, typer.Option(help="to classify: support images of a class. (default: 1)")] = None,
    queries: Annotated[
        int | None, typer.Option(help="to classify: images of a class to name. (default: the preset's)")
    ] = None,
    features: Annotated[
        Path | None, typer.Option(help="to classify: train on the features that `nvdp pretrain` left in this folder.")
    ] = None,
    folder: Annotated[
        Path | None, typer.Option(help="images: a folder of pictures; folder-of-classes: a sub-folder for each class.")
    ] = None,
    size: Annotated[int | None, typer.Option(help="of a folder: rows and columns to resize to. (default: 32)")] = None,
    channels: Annotated[
        int | None, typer.Option(help="of a folder: 1 takes all pictures to grey, 3 to colour. (default: as they are)")
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of data sets. (default: NVDP_DATA)")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, mps …")] = "auto",
    engine: Annotated[
        str,
        typer.Option(
            help="How a step is computed: fused (hand-derived gradients), compiled (the same, parts of it by "
            "torch.compile; needs a C++ compiler), or autograd."
        ),
    ] = "fused",
    devices: Annotated[int, typer.Option(help="Devices, or processes on CPUs, that share the tasks of a step.")] = 1,
    precision: Annotated[str, typer.Option(help="Fabric's precision, e.g. 32-true or bf16-mixed.")] = "32-true",
    threads: Annotated[int | None, typer.Option(help="PyTorch threads. (default: 1 on small machines)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a model on a family of tasks.

    Leaves config.json, model.safetensors, log.csv and checkpoint/ in --out. Ctrl-C saves and stops; the same command
    with --resume goes on as if it had never stopped.

    Example: nvdp train gp --model nvdp --preset quick --out runs/first

    Few-shot classification: nvdp train omniglot-fewshot --way 5 --shot 1 --model protonet --out runs/letters
    """
    from nvdp.cli.fewshot import episode_settings
    from nvdp.data.config import DataConfig
    from nvdp.data.fetch import use_data_folder
    from nvdp.data.fewshot_sets import FEWSHOT_TASKS
    from nvdp.data.registry import check_task
    from nvdp.training.config import RunConfig, preset_config
    from nvdp.training.fewshot_presets import fewshot_config
    from nvdp.training.run_folder import CONFIG
    from nvdp.training.trainer import Machine
    from nvdp.training.trainer import train as run_training

    check_task(task)
    use_data_folder(data_dir)
    pictures = _given({"folder": str(folder.resolve()) if folder else None, "size": size, "channels": channels})
    if pictures and task not in ("images", "folder-of-classes"):
        raise InputError(f"--{next(iter(pictures))} is for the tasks images and folder-of-classes; {task} takes none")
    episodes = episode_settings(task, way, shot, queries, features, variance)
    if resume and (out / CONFIG).exists():
        config = RunConfig.load(out / CONFIG)
    else:
        data = DataConfig(**pictures)
        if task in FEWSHOT_TASKS:
            config = fewshot_config(task, model or "nvdp", preset or "cpu", data=data, **episodes)
        else:
            config = preset_config(task, model or "nvdp", preset or "cpu", variance or "learned", data)
    architecture = {
        "name": model,
        "variance": variance,
        "rate_bounds": rate_bounds,
        "decoder_sees": decoder_sees,
        "aggregation": aggregation,
    }
    settings = {
        "task": task,
        "preset": preset,
        "steps": steps,
        "seed": seed,
        "learning_rate": learning_rate,
        "objective": objective,
        "weight_average": weight_average,
    }
    config = replace(
        config,
        model=replace(config.model, **_given(architecture)),
        kl=replace(config.kl, **_given({"reduction": kl, "weight": kl_weight})),
        data=replace(config.data, **pictures),
        episodes=None if config.episodes is None else replace(config.episodes, **episodes),
        **_given(settings),
    )
    if steps is not None and not resume:
        config = replace(config, warmup_steps=min(config.warmup_steps, steps // 4))
    outcome = run_training(
        config, out, resume, Machine(device, devices, precision, threads, engine), progress=not quiet
    )
    for note in outcome.notes:
        typer.echo(f"note: {note}", err=True)
    if outcome.stopped_by is not None:
        typer.echo(f"stopped and saved at step {outcome.step} of {config.steps}; go on with --resume", err=True)
        raise typer.Exit(128 + outcome.stopped_by)
    typer.echo(f"{config.model.name} on {task}: {outcome.step} steps in {outcome.seconds:.0f} s, saved in {out}")


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


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
    from nvdp.data.fetch import use_data_folder
    from nvdp.evaluation import VALIDATION_SEED, evaluate_run
    from nvdp.runtime import keep_freed_memory, use_threads

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


@app.command()
def models(
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON list instead of a table.")] = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="List the trained models that come with the package.")
    ] = False,
) -> None:
    """List the models by name."""
    from nvdp.models.registry import MODELS

    if pretrained:
        _show_pretrained(as_json)
        return
    rows = [
        {"name": s.name, "tasks": list(s.tasks), "objective": s.objective, "summary": s.summary}
        for s in MODELS.values()
    ]
    if as_json:
        typer.echo(json.dumps(rows))
        return
    table = Table("name", "trained by", "what it is")
    for row in rows:
        table.add_row(str(row["name"]), str(row["objective"]), str(row["summary"]))
    Console().print(table)


def _show_pretrained(as_json: bool) -> None:
    from nvdp.loading import pretrained_card, pretrained_names

    cards = [pretrained_card(name) for name in pretrained_names()]
    if as_json:
        typer.echo(json.dumps(cards))
        return
    table = Table("name", "model", "task", "steps", "score", "megabytes")
    for card in cards:
        score = ", ".join(f"{name} {value:.3f}" for name, value in card["scores"].items())
        cells = (card["name"], card["model"], card["task"], f"{card['steps']:,}", score, f"{card['bytes'] / 1e6:.1f}")
        table.add_row(*cells)
    Console().print(table)
