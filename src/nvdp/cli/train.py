"""The command that trains a model on a family of tasks."""

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nvdp.cli import app
from nvdp.cli.options import TRAINING, DataDir, Device, Quiet, Threads, find, given, say_new_run, seed_option
from nvdp.errors import InputError, unknown_name

if TYPE_CHECKING:
    from nvdp.training.config import RunConfig

MODEL, OBJECTIVE, FEWSHOT, FOLDER, MACHINE = (
    "Model", "Objective", "Few-shot classification", "A folder of pictures", "Machine"
)  # fmt: skip


@app.command(rich_help_panel=TRAINING)
def train(
    task: Annotated[
        str,
        typer.Argument(
            help="The family of tasks. Regression: gp, gp-tnp, gp-tnp-matern, trig, mnist, omniglot, celeba or images. "
            "Classification: omniglot-fewshot, miniimagenet or folder-of-classes."
        ),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the run; must be new unless --resume is given.")],
    model: Annotated[str | None, typer.Option(help="A name from `nvdp models`. (default: nvdp)")] = None,
    variance: Annotated[
        str | None, typer.Option(rich_help_panel=MODEL, help="learned, or fixed (σ = 1). (default: learned)")
    ] = None,
    preset: Annotated[
        str | None,
        typer.Option(
            help="quick (minutes), cpu, paper (as printed), tuned (the paper's with our KL), released (as its code). "
            "(default: cpu)"
        ),
    ] = None,
    steps: Annotated[int | None, typer.Option(help="Training steps. (default: the preset's)")] = None,
    seed: Annotated[int | None, seed_option("Seed of weights, tasks and noise. (default: 0)")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out, bit for bit.")] = False,
    optimizer: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=OBJECTIVE, help="adam, nadam or muon; give its --learning-rate too. (default: the preset's)"
        ),
    ] = None,
    learning_rate: Annotated[
        float | None, typer.Option(rich_help_panel=OBJECTIVE, help="The optimiser's step size.")
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=OBJECTIVE,
            help="variational-prior, neural-process, likelihood or log-uniform. (default: the model's)",
        ),
    ] = None,
    kl: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=OBJECTIVE,
            help="How the KL is reduced: elbo (the bound), text (the paper's formula) or released (its code).",
        ),
    ] = None,
    kl_weight: Annotated[
        float | None, typer.Option(rich_help_panel=OBJECTIVE, help="Weight of the reduced KL.")
    ] = None,
    rate_bounds: Annotated[
        str | None, typer.Option(rich_help_panel=MODEL, help="Bounds of the dropout rates: affine or clip.")
    ] = None,
    decoder_sees: Annotated[
        str | None, typer.Option(rich_help_panel=MODEL, help="What NVDP's decoder is given: x or x,r.")
    ] = None,
    aggregation: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=MODEL, help="How points make a set's representation: mean, bayesian or attention."
        ),
    ] = None,
    fourier: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=MODEL, help="Fourier features: sines and cosines of this many multiples of x; 0 for none."
        ),
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            rich_help_panel=MODEL,
            help="Any setting of the model by its name in config.json, e.g. encoder.size=256; may be repeated.",
        ),
    ] = None,
    start: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=MODEL,
            help="Begin with the weights of this finished run, or of a pretrained model; a larger encoder and rate "
            "networks are grown from them.",
            callback=lambda run: None if run is None else find(run),
        ),
    ] = None,
    way: Annotated[
        int | None, typer.Option(rich_help_panel=FEWSHOT, help="Classes of an episode. (default: 5)")
    ] = None,
    shot: Annotated[
        int | None, typer.Option(rich_help_panel=FEWSHOT, help="Support images of a class. (default: 1)")
    ] = None,
    queries: Annotated[
        int | None, typer.Option(rich_help_panel=FEWSHOT, help="Query images of a class. (default: the preset's)")
    ] = None,
    features: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=FEWSHOT,
            metavar="DIR[,DIR…]",
            help="Train on the features that `nvdp pretrain` left in this folder. Several folders, separated by "
            "commas: their features are concatenated.",
        ),
    ] = None,
    extractor: Annotated[
        str | None,
        typer.Option(
            rich_help_panel=FEWSHOT,
            metavar="DIR",
            help="Train on images, beginning with the convolutions that `nvdp pretrain` left in this folder.",
        ),
    ] = None,
    folder: Annotated[
        Path | None,
        typer.Option(
            rich_help_panel=FOLDER,
            help="For the task images, a folder of pictures; for folder-of-classes, a sub-folder for each class.",
        ),
    ] = None,
    size: Annotated[
        int | None, typer.Option(rich_help_panel=FOLDER, help="Rows and columns to resize to. (default: 32)")
    ] = None,
    channels: Annotated[
        int | None,
        typer.Option(
            rich_help_panel=FOLDER, help="1 converts all pictures to grey, 3 to colour. (default: as they are)"
        ),
    ] = None,
    data_dir: DataDir = None,
    device: Device = "auto",
    engine: Annotated[
        str,
        typer.Option(
            rich_help_panel=MACHINE,
            help="How a step is computed: compiled (C loops; fused where there is no C compiler), fused (hand-derived "
            "gradients in PyTorch) or autograd (the reference, slower).",
        ),
    ] = "compiled",
    devices: Annotated[
        int,
        typer.Option(rich_help_panel=MACHINE, help="Devices, or processes on CPUs, that share the tasks of a step."),
    ] = 1,
    precision: Annotated[
        str, typer.Option(rich_help_panel=MACHINE, help="Fabric's precision, e.g. 32-true or bf16-mixed.")
    ] = "32-true",
    threads: Threads = None,
    quiet: Quiet = False,
) -> None:
    """Train a model on a family of tasks.

    Leaves config.json, model.safetensors, log.csv and checkpoint/ in --out, on features also features.json. Ctrl-C
    saves and stops; the same command with --resume continues as if it had never stopped.

    Example: nvdp train gp --model nvdp --preset quick --out runs/first

    Few-shot classification: nvdp train omniglot-fewshot --way 5 --shot 1 --model protonet --out runs/letters
    """
    from nvdp.data.public.fetch import use_data_folder
    from nvdp.data.registry import check_task
    from nvdp.training.config import RunConfig
    from nvdp.training.presets import image_data, preset_config, shortened
    from nvdp.training.run import Machine
    from nvdp.training.run import train as run_training
    from nvdp.training.run_folder import CONFIG

    check_task(task)
    use_data_folder(data_dir)
    pictures = given({"folder": str(folder.resolve()) if folder else None, "size": size, "channels": channels})
    if pictures and task not in ("images", "folder-of-classes"):
        raise InputError(f"--{next(iter(pictures))} is for the tasks images and folder-of-classes; {task} takes none")
    if features is not None:
        _check_pictures(features, pictures)
    episodes = _episode_settings(task, way, shot, queries, features)
    if extractor is not None:
        _check_extractor(task, features, start)
        extractor = str(Path(extractor).resolve()) if Path(extractor).is_dir() else extractor
    begun = resume and (out / CONFIG).exists()
    if begun:
        config = RunConfig.load(out / CONFIG)
    else:
        if resume:
            say_new_run(out)
        names = task, model or "nvdp", preset or "cpu"
        config = preset_config(
            *names, variance or "learned", image_data(*names, **pictures), extractor=extractor, **episodes
        )
        config = config if steps is None else shortened(config, steps)
    architecture = {
        "name": model,
        "likelihood.variance": variance,
        "rates.bounds": rate_bounds,
        "decoder.sees": decoder_sees,
        "encoder.aggregation": aggregation,
        "inputs.fourier": fourier,
        **dict(map(_setting, setting or ())),
    }
    settings = {
        "task": task,
        "preset": preset,
        "steps": steps,
        "seed": seed,
        "optimizer": optimizer,
        "learning_rate": learning_rate,
        "objective": objective,
        "start": str(start) if start else extractor,
    }
    foreign = [name for name in given(architecture) if name not in config.model.setting_names()]
    if foreign:
        if any(text.startswith(f"{foreign[0]}=") for text in setting or ()):
            raise unknown_name("model setting", foreign[0], config.model.setting_names())
        flag = foreign[0].partition(".")[2]
        raise InputError(f"--{flag} is for models of regression; {config.model.name} on {task} has no such setting")
    config = replace(
        config,
        model=config.model.updated(given(architecture)),
        kl=replace(config.kl, **given({"reduction": kl, "weight": kl_weight})),
        data=replace(config.data, **pictures),
        episodes=replace(config.episodes, **episodes) if config.episodes and episodes else config.episodes,
        **given(settings),
    )
    if not begun:
        _check_way(config)
    outcome = run_training(
        config, out, resume, Machine(device, devices, precision, threads, engine), progress=not quiet
    )
    for note in outcome.notes:
        typer.echo(f"note: {note}", err=True)
    if outcome.stopped_by is not None:
        typer.echo(f"stopped and saved at step {outcome.step} of {config.steps}; --resume continues", err=True)
        raise typer.Exit(128 + outcome.stopped_by)
    taken = f"{outcome.step} steps in {outcome.seconds:.0f} s"
    if outcome.engines:
        taken += f" by the engine {outcome.engines}"
    typer.echo(f"{config.model.name} on {task}: {taken}, saved in {out}")


def _setting(text: str) -> tuple[str, Any]:
    """A name and its value from NAME=VALUE; the value is JSON, or else a text."""
    name, equals, value = text.partition("=")
    if not equals:
        raise InputError(f"--set is given '{text}'; expected NAME=VALUE, e.g. encoder.size=256")
    try:
        return name, json.loads(value)
    except json.JSONDecodeError:
        return name, value


def _check_way(config: "RunConfig") -> None:
    """Refuse episodes of more classes than there are to train on; say where there are fewer to score on."""
    from nvdp.data.episodes import episode_source
    from nvdp.data.image_files import SPLITS

    if config.episodes is None:
        return
    way, source = config.episodes.way, episode_source(config.task, config.data, config.episodes)
    classes = {split: source.split(split).classes for split in SPLITS}
    if way > classes["train"]:
        have = f"the train split of {config.task} has {classes['train']} classes"
        advice = "choose a smaller --way" if classes["train"] > 1 else "give more classes"
        raise InputError(f"{have}; {way}-way needs {way}: {advice}")
    few = [f"the {split} split has {count} classes" for split, count in classes.items() if way > count]
    if few:
        most = min(classes.values())
        advice = f"score this {way}-way run by nvdp eval --way {most} or fewer" if most > 1 else "nvdp eval needs 2"
        typer.echo(f"note: {', '.join(few)}; {advice}", err=True)


def _check_extractor(task: str, features: str | None, start: Path | None) -> None:
    """Refuse what does not go together with --extractor."""
    from nvdp.data.episodes import FEWSHOT_TASKS

    for name, value in (("features", features), ("start", start)):
        if value is not None:
            raise InputError(f"--extractor and --{name} exclude each other")
    if task not in FEWSHOT_TASKS:
        raise InputError(f"--extractor is for {', '.join(FEWSHOT_TASKS)}; {task} has no classes")


def _check_pictures(features: str, pictures: dict[str, Any]) -> None:
    """Refuse other images than those that features were made of."""
    from nvdp.data.features import extractor_folders
    from nvdp.training.config import PretrainConfig
    from nvdp.training.run_folder import CONFIG

    for folder in extractor_folders(features) if pictures else ():
        if not (folder / CONFIG).exists():
            continue  # what reads the features refuses it
        recipe = PretrainConfig.load(folder / CONFIG)
        made_of = {"folder": recipe.data.folder, "size": recipe.size, "channels": recipe.channels}
        for name, value in pictures.items():
            if value != made_of[name]:
                raise InputError(f"--{name} is {value}; the features of {folder} are of images with {made_of[name]}")


def _episode_settings(
    task: str, way: int | None, shot: int | None, queries: int | None, features: str | None
) -> dict[str, Any]:
    """What `nvdp train` was told about episodes; refused for a task that has none."""
    from nvdp.data.episodes import FEWSHOT_TASKS
    from nvdp.data.features import extractor_names

    names = [] if features is None else [Path(name) for name in extractor_names(features)]
    places = [str(name.resolve() if name.is_dir() else name) for name in names]
    for place in places:
        if len(places) > 1 and "," in place:
            raise InputError(f"{place} has a comma in its path; several extractors need paths without one: rename it")
    settings = given({"way": way, "shot": shot, "queries": queries, "features": ",".join(places) or None})
    if settings and task not in FEWSHOT_TASKS:
        raise InputError(f"--{next(iter(settings))} is for {', '.join(FEWSHOT_TASKS)}; {task} has no classes")
    return settings
