"""Commands of feature extractors for few-shot classification: train one, and join it with a classifier."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from nvdp.cli import app
from nvdp.cli.options import TRAINING, DataDir, Device, Quiet, Threads, given, say_new_run, seed_option
from nvdp.errors import InputError

DEFAULT_MINUTES = 30.0


@app.command(rich_help_panel=TRAINING)
def pretrain(
    task: Annotated[str, typer.Argument(help="omniglot-fewshot, miniimagenet or folder-of-classes.")],
    out: Annotated[Path, typer.Option(help="Folder for the extractor and the features; new unless --resume is given.")],
    minutes: Annotated[
        float | None,
        typer.Option(
            help="How long to train; a measurement at the start of a new run turns it into steps. (default: 30)",
            min=0.01,
        ),
    ] = None,
    steps: Annotated[
        int | None, typer.Option(help="Steps instead of minutes; with --precision the result is the same each time.")
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            help="conv4, conv5, conv5-patches, or a wide one: conv4-wide has 9 times the weights of conv4, conv5-wide "
            "11 times those of conv5-patches. "
            "(default: conv4; conv5-patches at 64 pixels or more)"
        ),
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="The classifier on top, which is not kept: cosine or linear. (default: cosine)")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            help="What it learns from: classes, or episodes of one shot. (default: classes; omniglot-fewshot: episodes)"
        ),
    ] = None,
    per_class: Annotated[
        int | None, typer.Option(help="Episodes: images of a class in a step. (default: 4; omniglot-fewshot: 2)")
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(help="Largest step size. (default: 0.01; omniglot-fewshot: 0.02)")
    ] = None,
    muon_rows: Annotated[
        int | None,
        typer.Option(
            help="Rows of a weight matrix up to which Muon moves it; wider ones take Adam's steps, without decay. "
            "(default: 96)"
        ),
    ] = None,
    batch: Annotated[
        int | None,
        typer.Option(help="Images a step. (default: 128; 64 at 64 pixels or more; omniglot-fewshot: 256)"),
    ] = None,
    shifts: Annotated[
        int | None, typer.Option(help="Move images by up to so many pixels. (default: 0; miniimagenet: 8)")
    ] = None,
    warps: Annotated[
        float | None,
        typer.Option(
            help="Random affine maps: 0.2 scales by up to 20 % and turns by 15°. (default: 0; omniglot-fewshot: 0.2)"
        ),
    ] = None,
    crops: Annotated[
        float | None,
        typer.Option(help="Enlarge random parts of images: 0.4 leaves out up to 40 % of either side. (default: 0)"),
    ] = None,
    colours: Annotated[
        float | None,
        typer.Option(help="Change brightness, contrast and saturation at random: 0.4 by up to 40 % each. (default: 0)"),
    ] = None,
    turns: Annotated[
        float | None,
        typer.Option(
            help="Share of images to turn by quarters; a class in each direction is a class of its own. (default: 0)"
        ),
    ] = None,
    views: Annotated[
        str | None,
        typer.Option(
            help="Features are means over these views: image; moved: the image and four moved copies; mirrored: moved "
            "and the mirror image; warped: moved and six turned, scaled or sheared copies. May change with --resume; "
            "the features are then written again. (default: moved; miniimagenet: mirrored)"
        ),
    ] = None,
    components: Annotated[
        int | None,
        typer.Option(
            help="Reduce features to this many principal components, so that those of several extractors together stay "
            "few; 0: all features. May change with --resume; the features are then written again. (default: 0)"
        ),
    ] = None,
    precision: Annotated[
        str | None, typer.Option(help="32-true or bf16-mixed. (default: the quicker one on this machine)")
    ] = None,
    seed: Annotated[int | None, seed_option("Seed of weights and order. (default: 0)")] = None,
    folder: Annotated[Path | None, typer.Option(help="folder-of-classes: a folder with a sub-folder a class.")] = None,
    size: Annotated[int | None, typer.Option(help="folder-of-classes: rows and columns. (default: 32)")] = None,
    channels: Annotated[
        int | None, typer.Option(help="folder-of-classes: 1 for grey, 3 for colour. (default: as they are)")
    ] = None,
    resume: Annotated[
        bool,
        typer.Option("--resume", help="Continue the run in --out as it was begun; write damaged features again."),
    ] = False,
    data_dir: DataDir = None,
    device: Device = "auto",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a feature extractor on the training classes, and write the features of all images.

    Few-shot classifiers are then trained on the features in minutes: nvdp train … --features DIR. Nothing is trained on
    validation and test classes. Features can take longer than a short training: --views image is the quickest. Ctrl-C
    saves and stops.

    Example: nvdp pretrain miniimagenet --minutes 30 --out runs/extractor
    """
    from nvdp.data.public.fetch import use_data_folder
    from nvdp.data.source import DataConfig
    from nvdp.system import use_threads
    from nvdp.training.config import PretrainConfig
    from nvdp.training.pretrain import pretrain as run_pretraining
    from nvdp.training.pretrain import pretrain_config, timed
    from nvdp.training.pretrained_extractor import EXTRACTOR
    from nvdp.training.run_folder import CONFIG

    use_data_folder(data_dir)
    use_threads(threads)
    if minutes is not None and steps is not None:
        raise InputError(f"--minutes {minutes:g} and --steps {steps} exclude each other")
    if folder and out.resolve().is_relative_to(folder.resolve()):
        raise InputError(f"--out {out} is inside --folder {folder}, where it would be taken for a class")
    place = str(folder.resolve()) if folder else None
    data = given({"folder": place, "size": size, "channels": channels})
    settings = {"steps": steps, "head": head, "learning_rate": learning_rate, "batch": batch, "seed": seed}
    settings |= {"precision": precision, "objective": objective, "per_class": per_class}
    settings |= {"extractor": extractor, "shifts": shifts, "warps": warps}
    settings |= {"muon_rows": muon_rows, "crops": crops, "colours": colours, "turns": turns}
    if data and task != "folder-of-classes":
        raise InputError(f"--folder, --size and --channels are for the task folder-of-classes; got {task}")
    if resume and (out / CONFIG).exists():
        config = PretrainConfig.load(out / CONFIG)
        if config.task != task:
            raise InputError(f"{out} holds an extractor of {config.task}; got {task}")
        changed = given(settings | {"views": views}) | {"data": replace(config.data, **data)}
        if components is not None:
            changed["components"] = components or None
        config = replace(config, **changed)  # refused where training would differ
    else:
        if not resume and (out / CONFIG).exists():
            raise InputError(f"{out} already holds a run; add --resume to go on, or choose another --out")
        settings |= {"views": views, "components": components or None}
        config = pretrain_config(task, DataConfig(**data), **given(settings))
    if per_class is not None and config.objective != "episodes":
        raise InputError(f"--per-class is {per_class}, but it is for --objective episodes; got {config.objective}")
    if not (out / CONFIG).exists() and (precision is None or steps is None):
        config = timed(config, None if steps else minutes or DEFAULT_MINUTES, precision, device)
    if resume and not (out / CONFIG).exists():
        say_new_run(out)
    try:
        stopped = run_pretraining(
            config, out, resume, device, threads, not quiet, lambda line: typer.echo(line, err=True)
        )
    except KeyboardInterrupt:
        if (out / EXTRACTOR).exists():
            typer.echo("stopped; the extractor is saved, and --resume writes its features", err=True)
        raise
    if stopped is not None:
        typer.echo("stopped and saved; --resume continues", err=True)
        raise typer.Exit(128 + stopped)
    typer.echo(f"{config.extractor} on {task}: saved in {out}; train on it with --features {out}")


@app.command(rich_help_panel=TRAINING)
def join(
    run: Annotated[Path, typer.Argument(help="The folder of a run of nvdp, versa or cnp on features.")],
    out: Annotated[Path, typer.Option(help="New folder for the joined run.")],
) -> None:
    """Make of a classifier on features and its extractor one run on images, which needs no other folder.

    Example: nvdp join runs/mini --out runs/mini-whole
    """
    from nvdp.training.pretrained_extractor import join_extractor

    join_extractor(run, out)
    typer.echo(f"joined {run} and its extractor in {out}")
