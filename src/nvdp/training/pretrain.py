"""Pretraining: a feature extractor learns from the training classes; few-shot models then use its features."""

import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nvdp.data.class_pools import ClassPool, ClassSource
from nvdp.data.episodes import class_source
from nvdp.data.features import FOLDER, images_at_once, write_features
from nvdp.data.image_files import SPLITS
from nvdp.data.source import NO_DATA, DataConfig
from nvdp.errors import InputError
from nvdp.nn.extractors import principal_projection
from nvdp.system import (
    avoid_broken_amx,
    chosen_device,
    keep_freed_memory,
    remove_unfinished,
    use_threads,
    write_text,
)
from nvdp.training.checkpoint import load_tensors, save_tensors
from nvdp.training.config import FEATURE_SETTINGS, FULL_PRECISION, PRECISIONS, PretrainConfig
from nvdp.training.distributed import SingleProcess
from nvdp.training.loop import Prefetch, Trainer
from nvdp.training.muon import Muon
from nvdp.training.nearest_mean import nearest_mean_accuracy, one_shot_episodes
from nvdp.training.preset_rules import CONV5_SIZE
from nvdp.training.pretrained_extractor import EXTRACTOR, MEASURED, PROJECTION, load_extractor, projection_settings
from nvdp.training.pretraining_images import Batch, TrainingImages
from nvdp.training.pretraining_model import ClassificationStep, PretrainedClassifier, build_classifier, evaluated
from nvdp.training.run import Outcome, train_in_folder
from nvdp.training.run_folder import CONFIG, check_finite, only_process, start_run

IMAGES = "images.json"  # what identifies the images that a run began with
VALIDATION_EPISODES = 100
PROJECTION_IMAGES = 8_192  # training images by whose features it is found, at most
TIMED_STEPS, FEWEST_CLASSES = 3, 2
PRETRAINING: dict[str, dict[str, Any]] = {
    "miniimagenet": {"flips": True, "shifts": 8},
    # Thousands of classes with few images: after two minutes episodes gave better features than classes did.
    "omniglot-fewshot": {
        "objective": "episodes",
        "per_class": 2,
        "batch": 256,
        "learning_rate": 0.02,
        "warps": 0.2,
    },
}


def pretrain_config(task: str, data: DataConfig = NO_DATA, **changes: Any) -> PretrainConfig:
    """The usual configuration of pretraining for a task, with some settings changed.

    >>> pretrain_config("omniglot-fewshot").extractor, pretrain_config("miniimagenet").flips
    ('conv4', True)
    """
    source = class_source(task, data)
    large = source.size >= CONV5_SIZE
    settings: dict[str, Any] = {"extractor": "conv5-patches" if large else "conv4", "batch": 64 if large else 128}
    settings |= {"optimizer": "muon", "learning_rate": 0.01, "weight_decay": 0.05, "last_relu": False}
    settings |= PRETRAINING.get(task, {}) | changes
    settings.setdefault("views", "mirrored" if settings.get("flips") else "moved")
    return PretrainConfig(task, channels=source.channels, size=source.size, data=data, **settings)


def pretrain(
    config: PretrainConfig,
    folder: Path,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    progress: bool = False,
    said: Callable[[str], None] = print,
) -> int | None:
    """Train an extractor and leave it, and the features of all images, in a folder.

    Args:
        config: What to train, and how.
        folder: A new one, or with `resume` that of a run to continue.
        resume: Continue the run in the folder; damaged features are made again.
        device: auto, cpu, cuda …
        threads: Of PyTorch.
        progress: Show a bar on standard error.
        said: Is given each line of text for the user.

    Returns:
        The signal that stopped it, or None if it is done.
    """
    keep_freed_memory()
    use_threads(threads)
    chosen_device(device)  # refuses one that is not there before a folder is made
    if config.precision != FULL_PRECISION:
        avoid_broken_amx()
    source = class_source(config.task, config.data)
    images, validation = _training_images(config), source.split("validation")
    source.split("test")  # refuses data that cannot be read before a folder is made
    finished = resume and _is_whole(folder / EXTRACTOR)
    before = PretrainConfig.load(folder / CONFIG) if resume and (folder / CONFIG).exists() else config
    of_features = {name: getattr(before, name) for name in FEATURE_SETTINGS}
    start_run(folder, replace(config, **of_features), resume, finished)
    with only_process(folder):
        remove_unfinished(folder / FOLDER)
        _check_images(source, folder)
        if config != before:
            write_text(folder / CONFIG, config.to_json())
    with only_process(folder):  # again, as the lock is that of the file
        if not finished:
            said(f"{config.steps} steps of {config.batch} images, {config.precision}")
            outcome, model = _trained(config, folder, images, resume, device, progress)
            for note in outcome.notes:
                said(f"note: {note}")
            if outcome.stopped_by is not None:
                return outcome.stopped_by
            _save(config, folder, model, validation, outcome, said)
        _find_projection(config, folder, images.pool, device)
        extract, origin = load_extractor(folder, device)
        write_features(source, folder, extract, config.features, origin, said)
    return None


def _check_images(source: ClassSource, folder: Path) -> None:
    """Note which images a run begins with, and refuse others later; runs of earlier versions have no such note."""
    path, now = folder / IMAGES, {split: source.split(split).digest() for split in SPLITS}
    if not path.exists():
        write_text(path, json.dumps(now, indent=2) + "\n")
        return
    try:
        before = json.loads(path.read_text())
    except ValueError:
        raise InputError(f"{path} cannot be read as JSON; choose another --out") from None
    if changed := [split for split in SPLITS if before.get(split) != now[split]]:
        raise InputError(
            f"{folder} was begun with other {' and '.join(changed)} images or classes; "
            "put them back, or choose another --out"
        )


def _training_images(config: PretrainConfig) -> TrainingImages:
    """The images of the training classes, refused where they are too few for the configuration."""
    images = TrainingImages(class_source(config.task, config.data).split("train"), config)
    counts = images.pool.class_counts
    sides = images.pool.points.shape[1:], (config.size, config.size, config.channels)
    if sides[0] != sides[1]:
        sizes = ["×".join(map(str, size)) for size in sides]
        raise InputError(f"images have {sizes[0]} numbers; the extractor is for {sizes[1]}")
    if len(counts) < FEWEST_CLASSES:
        raise InputError(f"there are {len(counts)} training classes; expected at least {FEWEST_CLASSES}")
    if config.objective == "episodes" and (fewest := int(counts.min())) < config.per_class:
        name = images.pool.name(int(counts.argmin()))
        raise InputError(f"setting 'per_class' is {config.per_class}, but class '{name}' has {fewest} training images")
    if (config.components or 0) > (given := int(counts.sum())):
        raise InputError(f"setting 'components' is {config.components}; expected at most {given}, the training images")
    return images


def _is_whole(path: Path) -> bool:
    """Whether an extractor is there and undamaged."""
    try:
        return path.exists() and bool(load_tensors(path)[0])
    except InputError:
        return False


def _trained(
    config: PretrainConfig, folder: Path, images: TrainingImages, resume: bool, device: str, progress: bool
) -> tuple[Outcome, PretrainedClassifier]:
    """The classifier with all its features after its training, or after what a signal left of it."""
    config = replace(config, components=None)
    model = build_classifier(config, images.labelled_pool.classes)
    with Prefetch(images.batch, config.steps) as batches:
        trainer = _trainer(config, model, batches.take, chosen_device(device))
        return train_in_folder(trainer, folder, resume, progress, f"{config.extractor} on {config.task}"), model


def _trainer(
    config: PretrainConfig,
    model: PretrainedClassifier,
    draw: Callable[[int], Batch],
    device: torch.device,
) -> Trainer:
    model.train().to(device)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    learning_rate, decay = config.learning_rate, config.weight_decay
    optimizer: torch.optim.Optimizer = (
        Muon(trained, learning_rate, weight_decay=decay, largest=config.muon_rows)
        if config.optimizer == "muon"
        else torch.optim.SGD(trained, learning_rate, config.momentum, weight_decay=decay, nesterov=True)
    )

    def inputs(step: int) -> tuple[Tensor, ...]:
        return tuple(tensor.to(device) for tensor in draw(step))

    return Trainer(config, model, ClassificationStep(model), optimizer, inputs, SingleProcess(device))


def _save(
    config: PretrainConfig,
    folder: Path,
    model: PretrainedClassifier,
    validation: ClassPool,
    outcome: Outcome,
    said: Callable[[str], None],
) -> None:
    """Write the extractor with its accuracy on validation classes; the same seed gives the same bytes."""
    check_finite(folder, model.extractor, outcome.step)
    shape = one_shot_episodes(validation)
    accuracy = shape and nearest_mean_accuracy(validation, evaluated(model), shape, VALIDATION_EPISODES)
    text = f"{accuracy:.1%} {shape.way}-way 1-shot" if shape else "too few classes or images"
    text += f" (all features; {config.components} components are kept)" if config.components else ""
    said(f"{outcome.step} steps in {outcome.seconds:.0f} s; nearest class mean on validation classes: {text}")
    write_text(folder / MEASURED, json.dumps({"seconds": outcome.seconds}) + "\n")
    numbers = {"steps": outcome.step, "nearest_mean_accuracy": accuracy}
    save_tensors(folder / EXTRACTOR, dict(model.extractor.state_dict()), numbers)


def _find_projection(config: PretrainConfig, folder: Path, pool: ClassPool, device: str) -> None:
    """Give a trained extractor the projection that its configuration asks for, or none."""
    tensors, numbers = load_tensors(folder / EXTRACTOR)
    there = tensors.pop("projection", None)
    wanted = projection_settings(config)
    if (numbers.get(PROJECTION) if there is not None else None) == wanted:
        return
    if config.components:
        model = build_classifier(replace(config, components=None), 1)
        model.extractor.load_state_dict(tensors)
        extract = evaluated(model.requires_grad_(False).to(chosen_device(device)))
        images = int(pool.class_counts.sum())
        rows = np.linspace(0, images - 1, min(images, PROJECTION_IMAGES)).astype(int)
        parts = np.split(rows, range(images_at_once(pool), len(rows), images_at_once(pool)))
        features = torch.cat([extract(pool.at(part)[0]).float().cpu() for part in parts])
        tensors["projection"] = principal_projection(features, config.components)
    save_tensors(folder / EXTRACTOR, tensors, numbers | {PROJECTION: wanted})


def timed(config: PretrainConfig, minutes: float | None, precision: str | None, device: str = "cpu") -> PretrainConfig:
    """The configuration with the faster precision of this machine and as many steps as fit into the time.

    The numbers are saved with the run: a repetition by its configuration takes the same steps on any machine.

    Args:
        config: Everything else.
        minutes: The time, or None to keep the number of steps.
        precision: The one to use, or None for the faster one.
        device: Where it will be trained.

    Returns:
        The configuration with both.
    """
    if minutes is not None and not 0 < minutes < math.inf:
        raise InputError(f"--minutes is {minutes}; expected a positive, finite number")
    keep_freed_memory()
    if precision != FULL_PRECISION:
        avoid_broken_amx()
    images = _training_images(config)
    seconds = {}
    for name in PRECISIONS if precision is None else (precision,):
        trial = replace(config, precision=name, components=None)
        classifier = build_classifier(trial, images.labelled_pool.classes)
        trainer = _trainer(trial, classifier, images.batch, chosen_device(device))
        times = []
        for _ in range(TIMED_STEPS):
            began = time.monotonic()
            trainer.take_step()  # reads its bound, so a GPU has done its work
            times.append(time.monotonic() - began)
        seconds[name] = min(times)
    best = min(seconds, key=lambda name: seconds[name])
    steps = config.steps if minutes is None else max(1, int(minutes * 60 / seconds[best]))
    return replace(config, precision=best, steps=steps)
