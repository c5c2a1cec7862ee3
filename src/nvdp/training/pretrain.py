"""Pretraining: a feature extractor learns from the training classes; few-shot models then use its features."""

import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.data.class_pools import ClassPool
from nvdp.data.episodes import class_source
from nvdp.data.features import Extract, concatenated, extractor_folders, images_at_once, write_features
from nvdp.data.source import NO_DATA, DataConfig
from nvdp.errors import InputError
from nvdp.models.base import FeatureClassifier
from nvdp.models.prototypes import MetricModel
from nvdp.models.registry import build_model
from nvdp.nn.extractors import ConvExtractor, principal_projection
from nvdp.randomness import derived_seed
from nvdp.system import avoid_broken_amx, chosen_device, keep_freed_memory, use_threads, write_text
from nvdp.training.checkpoint import checksum, load_tensors, save_tensors
from nvdp.training.config import FULL_PRECISION, PRECISIONS, PretrainConfig, RunConfig
from nvdp.training.distributed import SingleProcess
from nvdp.training.loop import Outcome, Prefetch, Trainer, train_in_folder
from nvdp.training.muon import Muon
from nvdp.training.nearest_mean import nearest_mean_accuracy, one_shot_episodes
from nvdp.training.presets import CONV5_SIZE
from nvdp.training.pretraining_images import Batch, TrainingImages
from nvdp.training.run_folder import CONFIG, feature_origins, load_any_run, only_process, save_model, start_run

EXTRACTOR = "extractor.safetensors"
COSINE_SCALE = 10.0
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
Scored = tuple[Float[Tensor, "scored class"], Int[Tensor, " scored"]]  # logits, and the right class of each row


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


class ClassHead(nn.Module):
    """Logits of the training classes; a cosine head compares directions alone, as Chen et al.'s Baseline++ does."""

    def __init__(self, features: int, classes: int, cosine: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(features, classes, bias=not cosine)
        self.scale = nn.Parameter(torch.tensor(COSINE_SCALE)) if cosine else None

    def forward(self, features: Float[Tensor, "image feature"], classes: Int[Tensor, " image"]) -> Scored:
        """Logits of every image, and its class."""
        if self.scale is None:
            return self.linear(features), classes
        weight = F.normalize(self.linear.weight, dim=-1)
        return self.scale * F.linear(F.normalize(features.float(), dim=-1), weight), classes


class EpisodeHead(nn.Module):
    """Logits of an episode's queries: cosine similarities to the first image of each class."""

    def __init__(self, per_class: int) -> None:
        super().__init__()
        self.per_class = per_class
        self.scale = nn.Parameter(torch.tensor(COSINE_SCALE))

    def forward(self, features: Float[Tensor, "image feature"], classes: Int[Tensor, " image"]) -> Scored:
        """Logits of every query, and the number of its class in the episode."""
        directions = F.normalize(features.float(), dim=-1).unflatten(0, (-1, self.per_class))
        labels = torch.arange(len(directions), device=features.device).repeat_interleave(self.per_class - 1)
        return self.scale * directions[:, 1:].flatten(0, 1) @ directions[:, 0].mT, labels


class PretrainedClassifier(nn.Module):
    """An extractor and the head that it is trained by."""

    def __init__(self, config: PretrainConfig, classes: int) -> None:
        super().__init__()
        self.config = config
        shape = {name: getattr(config, name) for name in ("last_relu", "views", "size", "components")}
        self.extractor = ConvExtractor(config.extractor, config.channels, **shape)
        self.head = (
            EpisodeHead(config.per_class)
            if config.objective == "episodes"
            else ClassHead(config.features, classes, config.head == "cosine")
        )

    def features(self, vectors: Float[Tensor, "image vector"]) -> Float[Tensor, "image feature"]:
        """Features of images given as rows."""
        shape = self.config.channels, self.config.size, self.config.size
        return self.extractor(vectors.to(next(self.parameters()).device).unflatten(-1, shape))

    def forward(self, vectors: Float[Tensor, "image vector"], classes: Int[Tensor, " image"]) -> Scored:
        """Logits of the images that are scored, and what is right."""
        return self.head(self.features(vectors), classes)


class ClassificationStep(nn.Module):
    """The cross-entropy of a batch as the forward pass of a module, as the training loop needs it."""

    def __init__(self, model: PretrainedClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(
        self, vectors: Float[Tensor, "image vector"], classes: Int[Tensor, " image"]
    ) -> dict[str, Float[Tensor, ""]]:
        """The mean log-likelihood of the classes, which is the bound here."""
        mixed = self.model.config.precision != FULL_PRECISION
        with torch.autocast(vectors.device.type, torch.bfloat16, enabled=mixed):
            logits, labels = self.model(vectors, classes)
        log_likelihood = -F.cross_entropy(logits.float(), labels)
        return {"bound": log_likelihood, "LL": log_likelihood.detach()}


def build_classifier(config: PretrainConfig, classes: int) -> PretrainedClassifier:
    """A classifier with weights from the configuration's seed."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(derived_seed(config.seed, "initialisation"))
        return PretrainedClassifier(config, classes)


def evaluated(model: PretrainedClassifier) -> Extract:
    """The extractor of a model with the running statistics of its batch norm, in full precision."""
    return lambda vectors: model.eval().features(vectors)


def load_extractor(folder: Path, device: str = "auto") -> tuple[Extract, str]:
    """A pretrained extractor as a function of images given as rows, and the digest of its weights."""
    _, model, digest = _load(folder)
    return evaluated(model.requires_grad_(False).to(chosen_device(device))), digest


def load_extractors(run: Path, config: RunConfig, device: str = "auto") -> tuple[PretrainConfig, Extract]:
    """The extractors of a run on features as one function of images, which they all take; with the first's recipe."""
    assert config.episodes is not None
    assert config.episodes.features is not None
    folders = extractor_folders(config.episodes.features)
    loaded = [_load_for(run, folder, origin) for folder, origin in zip(folders, feature_origins(run), strict=True)]
    first = loaded[0][0]
    for folder, (one, _) in zip(folders, loaded, strict=True):
        if (one.size, one.channels) != (first.size, first.channels):
            raise InputError(
                f"{folder} takes images of {one.size}×{one.size}×{one.channels}, {folders[0]} of "
                f"{first.size}×{first.size}×{first.channels}; expected the same"
            )
    extract = [evaluated(model.requires_grad_(False).to(chosen_device(device))) for _, model in loaded]
    return first, lambda vectors: concatenated([one(vectors) for one in extract])


def _load_for(run: Path, folder: Path, origin: str) -> tuple[PretrainConfig, PretrainedClassifier]:
    """An extractor, refused if it is not the one whose features a run was trained on."""
    if not folder.is_dir():
        raise InputError(f"{run} was trained on the features of {folder}, which is not there")
    config, model, digest = _load(folder)
    if digest != origin:
        raise InputError(
            f"{run} was trained on features {origin[:8]} of {folder}, whose extractor gives {digest[:8]} now; "
            "put the earlier one back, or train again"
        )
    return config, model


def _load(folder: Path) -> tuple[PretrainConfig, PretrainedClassifier, str]:
    config = PretrainConfig.load(folder / CONFIG)
    if not (folder / EXTRACTOR).exists():
        raise InputError(f"{folder} has no {EXTRACTOR} yet: its training has not ended; --resume it first")
    tensors, _ = load_tensors(folder / EXTRACTOR)
    model = build_classifier(config, 1)
    try:
        model.extractor.load_state_dict(tensors)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise InputError(
            f"{folder / EXTRACTOR} does not fit its configuration ({reason}); `nvdp pretrain … --resume` may mend it"
        ) from None
    return config, model, checksum(tensors, "extractor" if config.views == "image" else f"extractor {config.views}")


def join_extractor(run: Path, out: Path) -> None:
    """Make of a run on features and its extractor one run on images, which needs no other folder.

    Args:
        run: The folder of a finished run on features.
        out: A new folder.
    """
    config, model, step = load_any_run(run)
    if config.episodes is None:
        raise InputError(f"{run} was trained on {config.task}; expected a few-shot classifier on features")
    if config.episodes.features is None:
        raise InputError(f"{run} was trained on images, so it has its extractor already; expected a run on features")
    if not isinstance(model, FeatureClassifier) or isinstance(model, MetricModel):
        raise InputError(f"{run} holds a {config.model.name}, which cannot be joined; expected nvdp, versa or cnp")
    folders = extractor_folders(config.episodes.features)
    if len(folders) > 1:
        raise InputError(
            f"{run} was trained on features of {len(folders)} extractors; joining takes one: train on one of them "
            "(--features DIR), or use the run as it is (nvdp classify)"
        )
    pretrained, extractor = _load_for(run, folders[0], feature_origins(run)[0])
    own = {"name": pretrained.extractor, "channels": pretrained.channels, "size": pretrained.size}
    own |= {"last_relu": pretrained.last_relu, "views": pretrained.views, "components": pretrained.components}
    own |= {"normalise_own": config.model.flat()["extractor.normalise"]}
    whole = replace(
        config,
        model=config.model.updated({f"extractor.{name}": value for name, value in own.items()}),
        episodes=replace(config.episodes, regime="joined", features=None),
    )
    joined = build_model(whole.model)
    weights = {f"extractor.{name}": tensor for name, tensor in extractor.extractor.state_dict().items()}
    joined.load_state_dict(model.state_dict() | weights)
    start_run(out, whole, resume=False)
    save_model(out, joined, step)


VALIDATION_EPISODES = 100
PROJECTION = "projection"  # what a projection was found for: components and views
PROJECTION_IMAGES = 8_192  # training images by whose features it is found, at most
TIMED_STEPS, FEWEST_CLASSES = 3, 2


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
    if config.precision != FULL_PRECISION:
        avoid_broken_amx()
    source = class_source(config.task, config.data)
    images, validation = _training_images(config), source.split("validation")
    source.split("test")  # refuses data that cannot be read before a folder is made
    finished = resume and _is_whole(folder / EXTRACTOR)
    before = PretrainConfig.load(folder / CONFIG) if resume and (folder / CONFIG).exists() else config
    start_run(folder, replace(config, views=before.views, components=before.components), resume, finished)
    with only_process(folder):
        if config != before:
            write_text(folder / CONFIG, config.to_json())
    with only_process(folder):  # again, as the lock is that of the file
        if not finished:
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


def _training_images(config: PretrainConfig) -> TrainingImages:
    """The images of the training classes, refused where they are too few for the configuration."""
    images = TrainingImages(class_source(config.task, config.data).split("train"), config)
    counts = images.pool.class_counts
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
    model = build_classifier(config, images.pool.classes)
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
        Muon(trained, learning_rate, weight_decay=decay)
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
    """Write the extractor with its accuracy on validation classes."""
    shape = one_shot_episodes(validation)
    accuracy = shape and nearest_mean_accuracy(validation, evaluated(model), shape, VALIDATION_EPISODES)
    text = f"{accuracy:.1%} {shape.way}-way 1-shot" if shape else "too few classes or images"
    text += f" (all features; {config.components} components are kept)" if config.components else ""
    said(f"{outcome.step} steps in {outcome.seconds:.0f} s; nearest class mean on validation classes: {text}")
    numbers = {"steps": outcome.step, "seconds": outcome.seconds, "nearest_mean_accuracy": accuracy}
    save_tensors(folder / EXTRACTOR, dict(model.extractor.state_dict()), numbers)


def _find_projection(config: PretrainConfig, folder: Path, pool: ClassPool, device: str) -> None:
    """Give a trained extractor the projection that its configuration asks for, or none."""
    tensors, numbers = load_tensors(folder / EXTRACTOR)
    there = tensors.pop("projection", None)
    wanted = config.components and [config.components, config.views]
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


def timed(config: PretrainConfig, minutes: float | None, precision: str | None) -> PretrainConfig:
    """The configuration with the faster precision of this machine and as many steps as fit into the time.

    The numbers are saved with the run: a repetition by its configuration takes the same steps on any machine.

    Args:
        config: Everything else.
        minutes: The time, or None to keep the number of steps.
        precision: The one to use, or None for the faster one.

    Returns:
        The configuration with both.
    """
    keep_freed_memory()
    if precision != FULL_PRECISION:
        avoid_broken_amx()
    images = _training_images(config)
    seconds = {}
    for name in PRECISIONS if precision is None else (precision,):
        trial = replace(config, precision=name, components=None)
        trainer = _trainer(trial, build_classifier(trial, images.pool.classes), images.batch, torch.device("cpu"))
        times = []
        for _ in range(TIMED_STEPS):
            began = time.monotonic()
            trainer.take_step()
            times.append(time.monotonic() - began)
        seconds[name] = min(times)
    best = min(seconds, key=lambda name: seconds[name])
    steps = config.steps if minutes is None else max(1, int(minutes * 60 / seconds[best]))
    return replace(config, precision=best, steps=steps)
