"""Pretraining of a feature extractor by ordinary classification of the training classes (Chen et al. 2019).

The regime `features`: extractor first, its features of all images cached, then heads meta-trained on them in minutes.
"""

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.data.feature_cache import write_features
from nvdp.data.fewshot_pool import ClassPool
from nvdp.data.fewshot_sets import class_source
from nvdp.errors import InputError
from nvdp.randomness import derived_generator
from nvdp.runtime import chosen_device, keep_freed_memory, use_threads
from nvdp.training.checkpoint import Checkpoint, load_newest_checkpoint, save_checkpoint, save_tensors, with_prefix
from nvdp.training.lock import only_process
from nvdp.training.nearest_mean import nearest_mean_accuracy, one_shot_episodes
from nvdp.training.pretrain_config import PRECISIONS, PretrainConfig
from nvdp.training.pretrain_model import (
    EXTRACTOR,
    PretrainedClassifier,
    build_classifier,
    evaluated,
    load_extractor,
)
from nvdp.training.progress import TrainingProgress
from nvdp.training.run_folder import CHECKPOINTS, start_run
from nvdp.training.stop import StopRequest

VALIDATION_EPISODES = 100
TIMED_STEPS = 3


@dataclass(frozen=True)
class TrainingImages:
    """All images of the training classes in an order that each epoch shuffles anew."""

    pool: ClassPool
    config: PretrainConfig

    def batch(self, step: int) -> tuple[Float[Tensor, "image vector"], Int[Tensor, " image"]]:
        """The images and classes of a step; no image comes twice in an epoch."""
        counts = self.pool.class_counts
        size = min(self.config.batch, int(counts.sum()))
        epoch, place = divmod(step, int(counts.sum()) // size)
        order = torch.randperm(int(counts.sum()), generator=derived_generator(self.config.seed, "epoch", epoch))
        chosen = order[place * size : (place + 1) * size].numpy()
        ends = np.cumsum(counts)
        classes = np.searchsorted(ends, chosen, side="right")
        vectors = self.pool.vectors(classes, (chosen - (ends - counts)[classes])[:, None])[:, 0]
        if self.config.flips:
            flip = torch.rand(size, generator=derived_generator(self.config.seed, "flips", step)) < 0.5
            rows = vectors.view(size, -1, self.config.size)
            vectors = torch.where(flip[:, None, None], rows.flip(-1), rows).view(size, -1)
        return vectors, torch.from_numpy(classes)


def pretrain(
    config: PretrainConfig,
    folder: Path,
    resume: bool = False,
    device: str = "auto",
    threads: int | None = None,
    progress: bool = False,
    said: Callable[[str], None] = print,
) -> int | None:
    """Train an extractor, leave it and the features of all images in `folder`; the signal that stopped it, if any."""
    keep_freed_memory()
    use_threads(threads)
    source = class_source(config.task, config.data)
    images, validation = TrainingImages(source.split("train"), config), source.split("validation")
    source.split("test")  # data that cannot be read is told before a folder is made
    start_run(folder, config, resume)
    with only_process(folder):
        model = build_classifier(config, images.pool.classes).to(chosen_device(device))
        stopped = _train(config, folder, resume, progress, model, images, validation, said)
        if stopped is None:
            extract, origin = load_extractor(folder, device)
            write_features(source, folder, extract, config.features, origin, said)
        return stopped


def _train(
    config: PretrainConfig,
    folder: Path,
    resume: bool,
    progress: bool,
    model: PretrainedClassifier,
    images: TrainingImages,
    validation: ClassPool,
    said: Callable[[str], None],
) -> int | None:
    optimizer = _optimizer(config, model)
    checkpoint, notes = load_newest_checkpoint(folder / CHECKPOINTS) if resume else (None, [])
    for note in notes:
        said(f"note: {note}")
    step, before = _restore(checkpoint, model, optimizer)
    began = time.monotonic()

    def save() -> None:
        state = optimizer.state
        momenta = {name: state[p]["momentum_buffer"] for name, p in model.named_parameters() if p in state}
        tensors = with_prefix("model", dict(model.state_dict())) | with_prefix("optimizer", momenta)
        seconds = before + time.monotonic() - began
        save_checkpoint(folder / CHECKPOINTS, Checkpoint(step, tensors, {"seconds": seconds}))

    with (
        TrainingProgress(f"{config.extractor} on {config.task}", config.steps, step, progress) as bar,
        StopRequest() as stop,
    ):
        while step < config.steps and stop.signal is None:
            loss = training_step(config, model, optimizer, images, step)
            step += 1
            bar.advance()
            if step % config.log_every == 0 or step == config.steps:
                bar.say(step, f"cross-entropy {loss:.3f}")
            if step % config.checkpoint_every == 0:
                save()
        if checkpoint is None or step > checkpoint.step:
            save()
    if step < config.steps:
        return stop.signal
    seconds = before + time.monotonic() - began
    shape = one_shot_episodes(validation)
    accuracy = shape and nearest_mean_accuracy(validation, evaluated(model), shape, VALIDATION_EPISODES)
    text = f"{accuracy:.1%} {shape.way}-way 1-shot" if shape else "too few classes or images"
    said(f"{step} steps in {seconds:.0f} s; nearest class mean on validation classes: {text}")
    numbers = {"steps": step, "seconds": seconds, "nearest_mean_accuracy": accuracy}
    save_tensors(folder / EXTRACTOR, dict(model.extractor.state_dict()), numbers)
    return None


def training_step(
    config: PretrainConfig,
    model: PretrainedClassifier,
    optimizer: torch.optim.Optimizer,
    images: TrainingImages,
    step: int,
) -> float:
    """One step of SGD on the cross-entropy of a batch, which is returned."""
    model.train()
    for group in optimizer.param_groups:
        group["lr"] = config.learning_rate_at(step)
    vectors, classes = images.batch(step)
    device = model.head.weight.device
    with _precision(config, device):
        logits = model(vectors.to(device))
    loss = F.cross_entropy(logits.float(), classes.to(device))
    if not torch.isfinite(loss):
        raise InputError(f"the cross-entropy of step {step} is {loss.item()}; lower the learning rate")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def timed(config: PretrainConfig, minutes: float | None, precision: str | None) -> PretrainConfig:
    """The configuration with the quicker precision of this machine and as many steps as fit into so many minutes.

    The numbers are saved with the run: a repetition by its configuration takes the same steps on any machine.
    """
    keep_freed_memory()
    images = TrainingImages(class_source(config.task, config.data).split("train"), config)
    seconds = {}
    for name in PRECISIONS if precision is None else (precision,):
        trial = replace(config, precision=name)
        model = build_classifier(trial, images.pool.classes)
        optimizer, times = _optimizer(trial, model), []
        for step in range(TIMED_STEPS):
            began = time.monotonic()
            training_step(trial, model, optimizer, images, step)
            times.append(time.monotonic() - began)
        seconds[name] = min(times)
    best = min(seconds, key=lambda name: seconds[name])
    steps = config.steps if minutes is None else max(1, int(minutes * 60 / seconds[best]))
    return replace(config, precision=best, steps=steps)


def _optimizer(config: PretrainConfig, model: nn.Module) -> torch.optim.SGD:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.SGD(
        trained, lr=config.learning_rate, momentum=config.momentum, weight_decay=config.weight_decay, nesterov=True
    )


def _precision(config: PretrainConfig, device: torch.device) -> AbstractContextManager[None]:
    return torch.autocast(device.type, torch.bfloat16, enabled=config.precision == "bf16-mixed")


def _restore(
    checkpoint: Checkpoint | None, model: PretrainedClassifier, optimizer: torch.optim.Optimizer
) -> tuple[int, float]:
    if checkpoint is None:
        return 0, 0.0
    model.load_state_dict(checkpoint.part("model"))
    momenta = checkpoint.part("optimizer")
    for name, parameter in model.named_parameters():
        if name in momenta:
            optimizer.state[parameter]["momentum_buffer"] = momenta[name].to(parameter)
    return checkpoint.step, float(checkpoint.numbers["seconds"])
