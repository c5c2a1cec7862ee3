"""Commands of few-shot classification: pretrain an extractor, classify one's own pictures."""

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table

from nvdp.cli import app
from nvdp.errors import InputError
from nvdp.loading import find_run

DEFAULT_MINUTES = 30.0
SHOWN_CLASSES = 8  # columns of the table of probabilities


@app.command()
def pretrain(
    task: Annotated[str, typer.Argument(help="omniglot-fewshot, miniimagenet or folder-of-classes.")],
    out: Annotated[Path, typer.Option(help="Folder for the extractor and the features; new unless --resume is given.")],
    minutes: Annotated[
        float | None, typer.Option(help="How long to train, as measured at the start. (default: 30)", min=0.01)
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Steps instead of minutes: the same on any machine.")] = None,
    head: Annotated[str | None, typer.Option(help="cosine or linear; it is thrown away. (default: cosine)")] = None,
    learning_rate: Annotated[float | None, typer.Option(help="Largest step size. (default: 0.1)")] = None,
    batch: Annotated[int | None, typer.Option(help="Images a step. (default: 128; 64 at 64 pixels or more)")] = None,
    precision: Annotated[
        str | None, typer.Option(help="32-true or bf16-mixed. (default: the quicker one on this machine)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Seed of weights and order. (default: 0)")] = None,
    folder: Annotated[Path | None, typer.Option(help="folder-of-classes: a folder with a sub-folder a class.")] = None,
    size: Annotated[int | None, typer.Option(help="folder-of-classes: rows and columns. (default: 32)")] = None,
    channels: Annotated[
        int | None, typer.Option(help="folder-of-classes: 1 for grey, 3 for colour. (default: as they are)")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with --out; make damaged features again.")] = False,
    data_dir: Annotated[Path | None, typer.Option(help="Folder of data sets. (default: NVDP_DATA)")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda …")] = "auto",
    threads: Annotated[int | None, typer.Option(help="PyTorch threads. (default: 1 on small machines)")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress bar.")] = False,
) -> None:
    """Train a feature extractor to classify the training classes, and keep the features of all images.

    Few-shot classifiers are then trained on the features in minutes: nvdp train … --features DIR. Validation and test
    classes take no part in the training. Ctrl-C saves and stops.

    Example: nvdp pretrain miniimagenet --minutes 30 --out runs/extractor
    """
    from nvdp.data.public.fetch import use_data_folder
    from nvdp.data.source import DataConfig
    from nvdp.system import use_threads
    from nvdp.training.pretrain import PretrainConfig, pretrain_config, timed
    from nvdp.training.pretrain import pretrain as run_pretraining
    from nvdp.training.run_folder import CONFIG

    use_data_folder(data_dir)
    use_threads(threads)
    if minutes is not None and steps is not None:
        raise InputError(f"--minutes {minutes:g} and --steps {steps} exclude each other")
    if resume and (out / CONFIG).exists():
        config = PretrainConfig.load(out / CONFIG)
        if config.task != task:
            raise InputError(f"{out} holds an extractor of {config.task}; got {task}")
    else:
        if not resume and (out / CONFIG).exists():
            raise InputError(f"{out} already holds a run; add --resume to go on, or choose another --out")
        data = DataConfig(**_given({"folder": _absolute(folder), "size": size, "channels": channels}))
        if data != DataConfig() and task != "folder-of-classes":
            raise InputError(f"--folder, --size and --channels are for the task folder-of-classes; got {task}")
        settings = {"steps": steps, "head": head, "learning_rate": learning_rate, "batch": batch, "seed": seed}
        config = pretrain_config(task, data, **_given(settings | {"precision": precision}))
        if precision is None or steps is None:
            config = timed(config, None if steps else minutes or DEFAULT_MINUTES, precision)
        typer.echo(f"{config.steps} steps of {config.batch} images, {config.precision}", err=True)
    stopped = run_pretraining(config, out, resume, device, threads, not quiet, lambda line: typer.echo(line, err=True))
    if stopped is not None:
        typer.echo("stopped and saved; go on with --resume", err=True)
        raise typer.Exit(128 + stopped)
    typer.echo(f"{config.extractor} on {task}: saved in {out}; train on it with --features {out}")


@app.command()
def classify(
    run: Annotated[
        Path,
        typer.Argument(
            help="The folder of a run of few-shot classification, or the pretrained omniglot.",
            callback=lambda run: find_run(run),
        ),
    ],
    support: Annotated[Path, typer.Option(help="Folder of labelled pictures: a sub-folder for each class.")],
    query: Annotated[
        Path, typer.Option(help="Folder of pictures to name; in sub-folders named as the classes, they are scored too.")
    ],
    invert: Annotated[
        bool, typer.Option("--invert", help="Swap dark and light: models of Omniglot know white ink on black.")
    ] = False,
    samples: Annotated[int, typer.Option(help="Sampled classifiers whose probabilities are averaged.", min=1)] = 10,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Name your own pictures from a few labelled ones, with probabilities.

    The model adapts to the support pictures at once; there is no training. Each picture is cut to its central square
    and resized to the model's size.

    Example: nvdp classify runs/letters --support known/ --query new/
    """
    from nvdp.data.class_pools import class_files
    from nvdp.images.classify import PictureClassifier, query_files
    from nvdp.system import use_threads

    use_threads()
    classes = class_files(support)
    files, truth = query_files(query, list(classes))
    prediction = PictureClassifier.load(run, invert).classify(classes, files, samples)
    names = list(classes)
    rows: list[dict[str, Any]] = []
    for index, (file, true) in enumerate(zip(files, truth, strict=True)):
        probabilities = prediction.probabilities[index].tolist()
        row: dict[str, Any] = {
            "file": str(file.relative_to(query)),
            "class": names[int(prediction.top_class[index])],
            "probabilities": dict(zip(names, probabilities, strict=True)),
            "disagreement": float(prediction.disagreement[index]),
        }
        rows.append(row | ({"true": true} if true is not None else {}))
    known = [row for row in rows if "true" in row]
    accuracy = sum(row["class"] == row["true"] for row in known) / len(known) if known else None
    if as_json:
        typer.echo(json.dumps({"classes": names, "queries": rows, "accuracy": accuracy}))
        return
    _show(names, rows)
    if accuracy is not None:
        typer.echo(f"accuracy {accuracy:.1%} of {len(known)} pictures in folders of their class")


def _show(names: list[str], rows: list[dict[str, Any]]) -> None:
    wide = len(names) > SHOWN_CLASSES
    table = Table("picture", "class", *(["probability"] if wide else names))
    for row in rows:
        top = row["class"]
        right = row.get("true", top) == top
        shown = [top] if wide else names
        cells = [f"{row['probabilities'][name]:.3f}" for name in shown]
        table.add_row(row["file"], top if right else f"[red]{top} (is {row['true']})", *cells)
    Console().print(table)


def episode_settings(
    task: str, way: int | None, shot: int | None, queries: int | None, features: Path | None, variance: str | None
) -> dict[str, Any]:
    """What `nvdp train` was told about episodes; refused for a task that has none."""
    from nvdp.data.episodes import FEWSHOT_TASKS

    place = None if features is None else str(features.resolve() if features.is_dir() else features)
    settings = _given({"way": way, "shot": shot, "queries": queries, "features": place})
    if settings and task not in FEWSHOT_TASKS:
        raise InputError(f"--{next(iter(settings))} is for {', '.join(FEWSHOT_TASKS)}; {task} has no classes")
    if variance is not None and task in FEWSHOT_TASKS:
        raise InputError(f"--variance {variance} is for regression; {task} has classes")
    return settings


def is_classifier(run: Path) -> bool:
    """Whether a run's folder holds a few-shot classifier."""
    from nvdp.training.config import RunConfig
    from nvdp.training.run_folder import CONFIG

    return RunConfig.load(run / CONFIG).episodes is not None


def evaluate_classifier(run: Path, as_json: bool, **how: Any) -> None:
    """What `nvdp eval` prints for a few-shot classifier."""
    from nvdp.evaluation.run import evaluate_classifier_run

    scores = evaluate_classifier_run(run, **how)
    if as_json:
        typer.echo(json.dumps(scores))
        return
    shape = f"{scores['way']}-way {scores['shot']}-shot"
    kind = ", transductive" if scores["transductive"] else ""
    table = Table(
        "accuracy", "95 % interval", "NLL", "ECE",
        title=f"{scores['model']} on {scores['task']} ({scores['split']}), {shape}, {scores['tasks']} episodes{kind}",
    )  # fmt: skip
    table.add_row(
        f"{scores['accuracy']:.2%}", f"± {scores['interval95']:.2%}", f"{scores['nll']:.3f}", f"{scores['ece']:.3f}"
    )
    Console().print(table)


def _absolute(folder: Path | None) -> str | None:
    return str(folder.resolve()) if folder else None


def _given(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}
