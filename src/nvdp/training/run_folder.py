"""The folder of a run: config.json, model.safetensors, log.csv, checkpoint/ and, on features, features.json."""

import csv
import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import torch
from torch import Tensor, nn

from nvdp.data.features import any_features, described_features, extractor_folders, has_features
from nvdp.errors import InputError
from nvdp.models.base import RegressionModel
from nvdp.models.registry import AnyConfig, AnyModel, build_model
from nvdp.system import locked, remove_unfinished, unfinished, write_new_text, write_text
from nvdp.training.checkpoint import check_shapes, checkpoint_paths, load_tensors, save_tensors
from nvdp.training.config import RunConfig, TrainingConfig

MOST_LAYERS, MOST_SIZE = 1_000, 2**20  # of a model that is loaded: what is repeated, what is wide
CONFIG, WEIGHTS, LOG, CHECKPOINTS = "config.json", "model.safetensors", "log.csv", "checkpoint"
EXTRACTOR_CHANGED, EXTRACTOR_DAMAGED, EXTRACTOR_MISSING = "extractor changed", "extractor damaged", "extractor missing"
FEATURES = "features.json"  # what identified the features of every extractor when the run began


def start_run(folder: Path, config: TrainingConfig, resume: bool, finished: bool = False) -> None:
    """Make the folder of a new run, or check that an existing run may continue with this configuration.

    Args:
        folder: Of the run.
        config: Its configuration, written to config.json.
        resume: Whether the folder may hold a run with the same configuration.
        finished: Whether it holds all that training leaves, so that no checkpoint is needed.
    """
    existing = folder / CONFIG
    if existing.exists():
        if not resume:
            raise InputError(f"{folder} already holds a run; add --resume to go on, or choose another --out")
        before = type(config).load(existing)
        if before != config:
            old, new = (dict(_flat(json.loads(each.to_json()))) for each in (before, config))
            names = [name for name in {**old, **new} if old.get(name) != new.get(name)]
            changed = [f"{name} was {old.get(name)}, now {new.get(name)}" for name in names]
            raise InputError(f"{folder} holds a run with other settings: {'; '.join(changed)}")
        if isinstance(config, RunConfig):
            check_features(folder, config)
        if not finished:
            _check_checkpoints(folder, config)
        return
    if folder.exists() and not folder.is_dir():
        raise InputError(f"{folder} is a file; --out needs a folder")
    if folder.exists() and set(folder.iterdir()) - set(unfinished(folder)):
        raise InputError(f"{folder} is not empty and holds no run; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"cannot make {folder}: {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise InputError(f"cannot write to {folder}: permission denied")
    origins = _current_origins(config) if isinstance(config, RunConfig) else []
    write_new_text(existing, config.to_json())
    if origins:
        write_new_text(folder / FEATURES, json.dumps(origins, indent=2) + "\n")


def _current_origins(config: RunConfig) -> list[str]:
    """What identifies the features of every extractor now; nothing for runs that are not on features."""
    if config.episodes is None or config.episodes.features is None:
        return []
    return [described_features(place, config.task)["origin"] for place in extractor_folders(config.episodes.features)]


def feature_origins(folder: Path) -> list[str]:
    """What identified the features of every extractor when a run on features began."""
    path = folder / FEATURES
    try:
        origins = json.loads(path.read_text())
    except FileNotFoundError:
        raise InputError(
            f"{folder} does not say which features it was trained on (no {FEATURES}); train it again"
        ) from None
    except (OSError, ValueError) as error:
        raise InputError(f"{path} is damaged ({error}); train the run again in another folder") from None
    if not isinstance(origins, list) or not all(isinstance(origin, str) for origin in origins):
        raise InputError(f"{path} is damaged (no list of texts); train the run again in another folder")
    return origins


def check_features(folder: Path, config: RunConfig) -> None:
    """Refuse a run whose features have been replaced; absent ones are reported by the command that needs them."""
    for state, reason in feature_problems(folder, config):
        if state != EXTRACTOR_MISSING:
            raise InputError(f"{folder} cannot be used: {reason}")


def feature_problems(folder: Path, config: RunConfig) -> Iterator[tuple[str, str]]:
    """State and reason for every extractor whose features are not those that a run on features began with.

    Args:
        folder: Of the run.
        config: Its configuration.

    Returns:
        Pairs of `EXTRACTOR_CHANGED`, `EXTRACTOR_DAMAGED` or `EXTRACTOR_MISSING` and a reason; none for other runs.
    """
    if config.episodes is None or config.episodes.features is None:
        return
    places, origins = extractor_folders(config.episodes.features), feature_origins(folder)
    if len(places) != len(origins):
        raise InputError(
            f"{folder / FEATURES} tells of {len(origins)} extractors, {CONFIG} of {len(places)}; train it again"
        )
    for place, origin in zip(places, origins, strict=True):
        if not has_features(place):
            what = "holds no features" if place.is_dir() else "is missing"
            yield EXTRACTOR_MISSING, f"its extractor {place} {what}"
            continue
        try:
            now = any_features(place, config.task)["origin"]
        except InputError as error:
            yield EXTRACTOR_DAMAGED, str(error)
            continue
        if now != origin:
            told = f"its extractor {place} was changed: it had features {origin[:8]}, which are {str(now)[:8]} now"
            yield EXTRACTOR_CHANGED, f"{told}; put the earlier one back there, or train again"


def _check_checkpoints(folder: Path, config: TrainingConfig) -> None:
    """Refuse a run that has saved checkpoints of which none is left: to resume it would begin it again."""
    step, place = _last_logged_step(folder), folder / CHECKPOINTS
    deleted = (folder / LOG).exists() and not place.is_dir()  # the folder of checkpoints is made before the log
    if deleted or ((step > config.checkpoint_every or step == config.steps) and not checkpoint_paths(place)):
        raise InputError(
            f"{folder} has a log of {step} steps and no checkpoint to resume from; begin again in another --out"
        )
    if (folder / WEIGHTS).exists() and not checkpoint_paths(place):
        raise InputError(f"{folder} holds a model and no checkpoint to resume from; train in another --out")


def _last_logged_step(folder: Path) -> int:
    try:
        row = (folder / LOG).read_text().splitlines()[1:][-1]
        return int(row.split(",")[0])
    except (OSError, IndexError, ValueError):
        return 0


def _flat(record: dict[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in record.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value


def check_finite(folder: Path, model: nn.Module, step: int) -> None:
    """Refuse weights that are not finite before they are saved in a folder."""
    for name, tensor in model.state_dict().items():
        if not torch.isfinite(tensor).all():
            raise InputError(
                f"training has diverged: '{name}' is not finite after {step} steps, so no model is saved in {folder}; "
                "try a smaller learning rate, or look for huge values in the data"
            )


def save_model(folder: Path, model: nn.Module, step: int) -> None:
    """Write the weights of a run."""
    check_finite(folder, model, step)
    save_tensors(folder / WEIGHTS, dict(model.state_dict()), {"step": step})


def load_run(folder: Path) -> tuple[RunConfig, RegressionModel, int]:
    """A run of regression.

    Args:
        folder: Of a finished run.

    Returns:
        Its configuration, its model and the number of steps that it was trained for.
    """
    config, model, step = load_any_run(folder)
    if not isinstance(model, RegressionModel):
        raise InputError(
            f"{folder} holds a classifier, {config.model.name} on {config.task}; expected a regression model"
        )
    return config, model, step


def load_any_run(folder: Path) -> tuple[RunConfig, AnyModel, int]:
    """A run of regression or classification.

    Args:
        folder: Of a finished run.

    Returns:
        Its configuration, its model and the number of steps that it was trained for.
    """
    config = RunConfig.load(folder / CONFIG)
    check_features(folder, config)
    if not (folder / WEIGHTS).exists():
        raise InputError(f"{folder} has no {WEIGHTS} yet: its training has not ended; --resume it first")
    tensors, numbers = load_tensors(folder / WEIGHTS)
    check_shapes(folder / WEIGHTS, _declared_weights(folder / CONFIG, config.model), tensors)
    for name, tensor in tensors.items():
        if not torch.isfinite(tensor).all():
            raise InputError(f"{folder / WEIGHTS}: '{name}' holds a value that is not finite")
    model = build_model(config.model)
    model.load_state_dict(tensors)
    model.eval()
    return config, model, int(numbers["step"])


def _declared_weights(path: Path, config: AnyConfig) -> dict[str, Tensor]:
    """The shapes of a configuration's weights, without memory for them: an untrusted one may ask for any amount."""
    for name, value in config.flat().items():
        repeated = name.endswith(("layers", "blocks", "levels", "heads", "cells", "steps", "samples"))
        most = MOST_LAYERS if repeated else MOST_SIZE
        if isinstance(value, int) and value > most:
            raise InputError(f"{path}: model setting '{name}' is {value}; expected at most {most}")
    try:
        with torch.device("meta"):
            return dict(build_model(config).state_dict())
    except (TypeError, RuntimeError, OverflowError, ValueError) as error:
        raise InputError(f"{path} describes no model: {str(error).splitlines()[0]}") from None


@contextmanager
def only_process(folder: Path) -> Iterator[None]:
    """Let one process alone write to a run's folder: a lock on its configuration, which ends with the process."""
    with (folder / CONFIG).open("r+") as file:
        if not locked(file):
            raise InputError(f"{folder} is being trained by another process")
        _tidy(folder)
        yield


def _tidy(folder: Path) -> None:
    """Remove files that a killed process left half written; make the folder of checkpoints."""
    for place in (folder, folder / CHECKPOINTS):
        remove_unfinished(place)
    (folder / CHECKPOINTS).mkdir(exist_ok=True)


COLUMNS = ("step", "bound", "LL", "KL", "rate", "learning_rate", "skipped", "seconds")


def has_log(folder: Path) -> bool:
    """Whether a run in the folder has logged steps."""
    path = folder / LOG
    return path.exists() and len(path.read_text(errors="replace").splitlines()) > 1


class RunLog:
    """Appends a row at a time; on resume, rows from after the checkpoint are dropped."""

    def __init__(self, folder: Path, start: int) -> None:
        self.path = folder / LOG
        kept = [",".join(COLUMNS)]
        if start and self.path.exists():
            rows = [line.split(",") for line in self.path.read_text(errors="replace").splitlines()[1:]]
            # The last row is incomplete if the machine failed while it was written.
            kept += [",".join(row) for row in rows if len(row) == len(COLUMNS) and _step_of(row) <= start]
        write_text(self.path, "\n".join(kept) + "\n")
        self._file = self.path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS, lineterminator="\n")
        self._events: Any = None
        if importlib.util.find_spec("tensorboard"):
            from torch.utils.tensorboard import SummaryWriter

            self._events = SummaryWriter(str(folder / "tensorboard"), purge_step=start)

    def write(self, row: dict[str, float]) -> None:
        """Append one row."""
        self._writer.writerow({name: _short(value) for name, value in row.items()})
        self._file.flush()
        if self._events is not None:
            for name, value in row.items():
                if name != "step":
                    self._events.add_scalar(name, value, int(row["step"]))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        if self._events is not None:
            self._events.close()


def _step_of(row: list[str]) -> float:
    """The step of a row of the log; a damaged row is as if it came after all others, so that it is dropped."""
    try:
        return int(row[0])
    except ValueError:
        return float("inf")


def _short(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.6g}"
