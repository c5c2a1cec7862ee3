"""Commands that tell what there is: models to train, pretrained ones, the runs below a folder, one run in detail."""

import csv
import json
import math
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table

from nvdp.cli import app
from nvdp.cli.options import TRAINING, AsJson, Run
from nvdp.errors import InputError

FINISHED, RUNNING, STOPPED, NOT_BEGUN, DAMAGED = "finished", "running", "stopped", "not begun", "damaged"
GRADIENT, INTEGRATED = ("maml", "meta-sgd", "meta-dropout"), ("nvdp-attentive", "nvdp-conv")
READ_BY = {  # settings, or whole parts, that only some models read; `info` leaves out what a model does not read
    "rates": ("nvdp", *INTEGRATED),
    "attention": ("nvdp-attentive", "anp", "tnp-d"),
    "convolution": ("nvdp-conv", "convcnp", "convgnp"),
    "decoder.sees": ("nvdp", *INTEGRATED),
    "decoder.reads": INTEGRATED,
    "decoder.weight_noise": ("nvdp",),
    "decoder.latent": ("np", "np+vp", "np+cnp", "np+cnp+vp", "anp", "convgnp"),
    "likelihood.integrate_last": INTEGRATED,
    "likelihood.integrate_plain": ("nvdp",),
    "likelihood.joint_share": ("nvdp", "convgnp", *INTEGRATED),
    "likelihood.shared_std": ("nvdp", "convgnp", *INTEGRATED),
    "meta": ("nvdp", "cnp", "versa"),
    "training_samples": ("versa",),
    "gradient": GRADIENT,
}
WITHOUT_DECODER = ("versa", "protonet", "matching")


@app.command(rich_help_panel=TRAINING)
def models(
    as_json: AsJson = False,
    pretrained: Annotated[
        bool, typer.Option("--pretrained", help="List the trained models that come with the package.")
    ] = False,
) -> None:
    """List the models that can be trained, or with --pretrained those that are trained already.

    Example: nvdp models --pretrained
    """
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
    table = Table(
        *(Column(name, no_wrap=name != "score") for name in ("name", "model", "task", "steps", "score", "MB"))
    )
    for card in cards:
        score = ", ".join(f"{name} {value:.3f}" for name, value in card["scores"].items())
        cells = (card["name"], card["model"], card["task"], f"{card['steps']:,}", score, f"{card['bytes'] / 1e6:.1f}")
        table.add_row(*cells)
    Console().print(table)


@app.command(rich_help_panel=TRAINING)
def runs(
    folder: Annotated[Path, typer.Argument(help="Where to look; folders inside it are searched too.")] = Path("runs"),
    as_json: AsJson = False,
) -> None:
    """List the runs below a folder: model, task, steps, state and the last logged log-likelihood.

    A run is finished, running, stopped (--resume continues it), not begun (no step was saved) or damaged. For the
    reason, ask nvdp info RUN. Of a run on features, the extractor may be changed, damaged or missing; its path is told
    below the table.

    Example: nvdp runs runs/
    """
    from nvdp.training.run_folder import EXTRACTOR_CHANGED, EXTRACTOR_DAMAGED, EXTRACTOR_MISSING

    lost = (EXTRACTOR_CHANGED, EXTRACTOR_DAMAGED, EXTRACTOR_MISSING)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected one with runs below it")
    found = [read_run(path, str(path.relative_to(folder))) for path in _run_folders(folder)]
    if as_json:
        typer.echo(json.dumps([asdict(run) for run in found]))
        return
    if not found:
        typer.echo(f"no runs below {folder}")
        return
    table = Table("run", "model", "task", Column("steps", justify="right"), "state", Column("LL", justify="right"))
    for run in found:
        state = f"[red]{run.state}" if run.state in (DAMAGED, *lost) else run.state
        logged = "" if run.LL is None else f"{run.LL:.3f}"
        table.add_row(escape(run.name), run.model, run.task, _steps_text(run), state, logged)
    Console(emoji=False).print(table)
    for run in found:
        if run.state in lost:
            typer.echo(f"{run.name}: {run.problem}")


@app.command(rich_help_panel=TRAINING)
def info(run: Run, as_json: AsJson = False) -> None:
    """Tell what a run or an extractor is: its state, its size, what was measured of it, and its settings.

    Example: nvdp info gp
    """
    from nvdp.cards import card_lines, card_of, fit_of
    from nvdp.training.config import RunConfig, is_extractor
    from nvdp.training.run_folder import CONFIG

    summary = read_run(run, run.name)
    if is_extractor(run / CONFIG):
        _extractor_info(run, summary, as_json)
        return
    config = RunConfig.load(run / CONFIG)  # a configuration that cannot be read is refused here, with the reason
    card = card_of(run)
    about: dict[str, Any] = {
        "parameters": _parameters(config),
        "scores": card.get("scores", {}),
        "settings": _settings(config),
    }
    about |= {name: card[name] for name in ("about", "seconds", "note", "coverage", "by_context") if name in card}
    fitted = fit_of(run)
    if fitted is not None:
        columns, units = fitted["columns"], fitted["units"]
        about |= {"columns": None if columns is None else asdict(columns), "units": units.to_dict()}
    if as_json:
        typer.echo(json.dumps(asdict(summary) | about))
        return
    typer.echo(f"{summary.name}: {summary.model} on {summary.task}, {about['parameters']:,} parameters")
    _show_state(summary)
    if summary.LL is not None:
        typer.echo(f"last logged LL: {summary.LL:.3f}")
    for line in card_lines(card):
        typer.echo(line)
    if fitted is not None:
        for line in _unit_lines(fitted["columns"], fitted["units"]):
            typer.echo(line)
    typer.echo(json.dumps(about["settings"], indent=2))


def _unit_lines(columns: Any, units: Any) -> Iterator[str]:
    """The columns of a fitted table, with their ranges and units."""
    if columns is None:
        return
    yield f"task column: {columns.task or 'none'}"
    for name, low, high in zip(columns.x, units.x_low, units.x_high, strict=False):
        yield f"input {name}: learned from {' to '.join(columns.text(name, [low, high]))}"
    for name, levels in zip(columns.given, columns.levels, strict=True):
        yield f"given: {name}" + (f" ({', '.join(levels)})" if levels else "")
    for name, centre, spread in zip(columns.y, units.y_centre, units.y_spread, strict=True):
        if name in columns.log:
            yield f"output {name}: around {math.exp(centre):.4g} with a spread of a factor of {math.exp(spread):.4g}"
        else:
            yield f"output {name}: around {centre:.4g} with a spread of {spread:.4g}"


def _steps_text(run: "RunSummary") -> str:
    """Steps that were done, of those planned where they differ; a fit ends when nothing is gained."""
    if run.planned_steps is None:
        return ""
    return f"{run.steps:,}" if run.state == FINISHED else f"{run.steps:,} of {run.planned_steps:,}"


@dataclass(frozen=True)
class RunSummary:
    """One row of `nvdp runs`."""

    name: str
    folder: str
    model: str
    task: str
    steps: int  # that were done and saved
    planned_steps: int | None
    state: str
    LL: float | None  # the last in log.csv: of a training batch
    problem: str | None = None


def read_run(folder: Path, name: str) -> RunSummary:
    """What a folder with a config.json holds; whatever is damaged is told, never raised.

    Args:
        folder: The folder of a run, of ``nvdp fit`` or of ``nvdp pretrain``.
        name: What to call it.

    Returns:
        Its model, task, progress and state.
    """
    from nvdp.training.config import PretrainConfig, RunConfig, config_digest, is_extractor
    from nvdp.training.pretrained_extractor import EXTRACTOR
    from nvdp.training.run_folder import CONFIG, WEIGHTS

    try:
        if is_extractor(folder / CONFIG):
            config: Any = PretrainConfig.load(folder / CONFIG)
            model, weights = config.extractor, EXTRACTOR
        else:
            config = RunConfig.load(folder / CONFIG)
            model, weights = config.model.name, WEIGHTS
    except (InputError, OSError, ValueError, AttributeError) as error:
        return RunSummary(name, str(folder), "", "", 0, None, DAMAGED, None, str(error))
    state, steps, problem = _progress(folder, weights, config, config_digest(config))
    logged = _last_logged(folder)
    return RunSummary(name, str(folder), model, config.task, steps, config.steps, state, logged, problem)


def _show_state(summary: RunSummary) -> None:
    """How far a run is, and what is wrong with it."""
    typer.echo(f"{summary.state}: {_steps_text(summary)} steps")
    if summary.problem is not None:
        typer.echo(summary.problem)


def _extractor_info(folder: Path, summary: RunSummary, as_json: bool) -> None:
    """Tell what a folder of ``nvdp pretrain`` holds."""
    from nvdp.data.features import features_problem
    from nvdp.training.config import PretrainConfig
    from nvdp.training.pretrained_extractor import extractor_numbers, load_extractor
    from nvdp.training.run_folder import CONFIG

    config, trained, problem = PretrainConfig.load(folder / CONFIG), {}, None
    if summary.state == FINISHED:
        try:
            trained = extractor_numbers(folder)
            problem = features_problem(folder, config.task, load_extractor(folder, "cpu")[1])
        except InputError as error:
            problem = str(error)
    about = {"features": config.features, "features_problem": problem, "settings": asdict(config)}
    about |= {name: trained[name] for name in ("seconds", "nearest_mean_accuracy") if name in trained}
    if as_json:
        typer.echo(json.dumps(asdict(summary) | about))
        return
    typer.echo(f"{summary.name}: extractor {summary.model} on {summary.task}, {config.features} features of an image")
    _show_state(summary)
    if (accuracy := about.get("nearest_mean_accuracy")) is not None:
        typer.echo(f"nearest class mean, all features, at most 5 validation classes, 1-shot: {accuracy:.1%}")
    if problem is not None:
        typer.echo(f"its features cannot be used: {problem}")
    typer.echo(json.dumps(about["settings"], indent=2))


def _progress(folder: Path, weights: str, config: Any, digest: str) -> tuple[str, int, str | None]:
    """State, saved steps, and what is wrong."""
    from nvdp.cards import FIT
    from nvdp.training.checkpoint import load_newest_checkpoint, load_tensors
    from nvdp.training.run_folder import CHECKPOINTS, CONFIG, WEIGHTS, feature_problems, load_any_run

    planned = config.steps
    try:
        lost = next(feature_problems(folder, config), None) if weights == WEIGHTS else None
        if (folder / weights).exists():
            if lost is not None:
                return lost[0], load_tensors(folder / weights)[1].get("step", 0), lost[1]
            if weights == WEIGHTS:
                steps = load_any_run(folder)[2]
            else:
                load_tensors(folder / weights)
                steps = planned  # an extractor is written at the end alone
            if steps < planned and not (folder / FIT).exists():  # a fit may end early
                return STOPPED, steps, f"{weights} is of step {steps}; {planned} were planned"
            return FINISHED, steps, None
        checkpoint, passed_over = load_newest_checkpoint(folder / CHECKPOINTS, digest)
    except InputError as error:
        return DAMAGED, 0, str(error)
    steps = 0 if checkpoint is None else checkpoint.step
    running = _is_locked(folder / CONFIG)
    if lost is not None and not running:
        return lost[0], steps, lost[1]
    state = RUNNING if running else STOPPED if steps else NOT_BEGUN
    return state, steps, "; ".join(passed_over) or None


def _is_locked(path: Path) -> bool:
    """Whether a training process holds its lock on a file; only Linux tells without taking the lock."""
    inode = str(path.stat().st_ino)
    try:
        locks = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return False
    return any("FLOCK" in line and line.split()[5].rpartition(":")[2] == inode for line in locks if "->" not in line)


def _last_logged(folder: Path) -> float | None:
    from nvdp.training.run_folder import LOG

    try:
        with (folder / LOG).open(newline="") as file:
            values = [row["LL"] for row in csv.DictReader(file) if row.get("LL")]
        return float(values[-1]) if values else None
    except (OSError, ValueError, KeyError):
        return None


def _run_folders(folder: Path) -> Iterator[Path]:
    """Folders that hold a run, at any depth, by name."""
    from nvdp.training.run_folder import CONFIG

    for path in sorted(folder.rglob(CONFIG)):
        yield path.parent


def _parameters(config: Any) -> int:
    import torch

    from nvdp.models.registry import build_model

    with torch.device("meta"):  # no memory for a configuration that asks for much
        return sum(parameter.numel() for parameter in build_model(config.model).parameters())


def _settings(config: Any) -> dict[str, Any]:
    """config.json without the settings that its model does not read."""
    settings = json.loads(config.to_json())
    model, name = settings["model"], config.model.name
    for setting, readers in READ_BY.items():
        part, _, leaf = setting.partition(".")
        if name not in readers:
            (model.get(part, {}) if leaf else model).pop(leaf or part, None)
    if name in WITHOUT_DECODER:
        del model["decoder"]
    if "likelihood" in config.objective:
        del settings["kl"]
    return settings
