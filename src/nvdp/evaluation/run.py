"""Scores of a finished run on its fixed validation set, with the oracle's beside them where there is one."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.episodes import PUBLIC_CLASS_SETS
from nvdp.data.features import extractor_folder
from nvdp.data.gp import GPTaskBatch
from nvdp.data.registry import IMAGE_TASKS, task_source
from nvdp.data.source import VALIDATION_CHUNK, validation_tasks
from nvdp.errors import InputError
from nvdp.evaluation.metrics import RegressionScores, RunningCorrelation, evaluate_classification, evaluate_regression
from nvdp.models.base import FewShotModel
from nvdp.models.config import ModelConfig
from nvdp.posteriors.prediction import Prediction
from nvdp.system import chosen_device
from nvdp.tasks import TaskBatch
from nvdp.training.checkpoint import load_tensors
from nvdp.training.config import RunConfig
from nvdp.training.pretrain import EXTRACTOR
from nvdp.training.run_folder import CONFIG, load_any_run, load_run

VALIDATION_SEED = 20_220  # names the validation set of all published numbers
DEFAULT_TASKS, DEFAULT_SAMPLES = 2_048, 16


def evaluate_run(
    folder: Path,
    tasks: int | None = None,
    seed: int = VALIDATION_SEED,
    samples: int | None = None,
    on: str | None = None,
    split: str | None = None,
    device: str = "auto",
) -> dict[str, Any]:
    """What ``nvdp eval`` prints: one object with scores in three flavours, calibration, spread and rates.

    `on` names another family of tasks, for transfer. `split` is which images are scored: by default those held out
    for validation, but the test images of a set that the run was not trained on. A few-shot classifier is scored as
    :func:`nvdp.evaluation.run.evaluate_classifier_run` says.
    """
    if RunConfig.load(folder / CONFIG).episodes is not None:
        if on is not None:
            raise InputError(f"{folder} holds a few-shot classifier, which is scored on its own task; got --on {on}")
        return evaluate_classifier_run(folder, tasks, seed, samples, split, device=device)
    tasks, samples = DEFAULT_TASKS if tasks is None else tasks, DEFAULT_SAMPLES if samples is None else samples
    if tasks < 1 or samples < 1:
        raise InputError(f"evaluation needs at least 1 task and 1 sample; got {tasks} and {samples}")
    config, model, step = load_run(folder)
    assert isinstance(config.model, ModelConfig)
    oracle = _OracleScores(config.model)
    transfer = on is not None and on != config.task
    split = split or ("test" if transfer and on in IMAGE_TASKS else "validation")
    source = task_source(on or config.task, config.data, split)
    if (source.x_dim, source.y_dim) != (config.model.x_dim, config.model.y_dim):
        raise InputError(
            f"{folder} was trained on {config.task}: x of {config.model.x_dim} and y of {config.model.y_dim} values; "
            f"{source.name} has {source.x_dim} and {source.y_dim}"
        )
    batches = validation_tasks(source, seed, tasks)
    model.to(chosen_device(device))
    result = evaluate_regression(model, oracle.watch(batches), samples, seed, oracle.watch_spread)
    evaluation = {
        "model": config.model.name,
        "task": config.task,
        "variance": config.model.likelihood.variance,
        "steps": step,
        "validation": {"seed": seed, "chunk": VALIDATION_CHUNK},
        **result,
    }
    if transfer or source.name in IMAGE_TASKS:
        evaluation |= {"on": source.name, "split": split}
    if oracle.scores.moments:
        evaluation["oracle"] = {name: row["oracle"] for name, row in oracle.scores.scores().items()}
        correlation = oracle.correlation.value
        evaluation["spread_follows_oracle"] = None if math.isnan(correlation) else correlation
    return evaluation


class _OracleScores:
    """Scores the exact posterior on batches as they pass by, with the models' own limits on σ.

    Also correlates, over all points, how much a model's functions differ with the exact posterior's deviation.
    """

    def __init__(self, config: ModelConfig) -> None:
        self.scores, self.correlation = RegressionScores(), RunningCorrelation()
        self._least, self._fixed = config.likelihood.min_std, config.likelihood.variance == "fixed"
        self._std: Tensor | None = None  # of the exact posterior on the last batch

    def watch(self, batches: Iterable[TaskBatch]) -> Iterator[TaskBatch]:
        for tasks in batches:
            if isinstance(tasks, GPTaskBatch):
                exact = tasks.oracle()
                std = torch.ones_like(exact.stds) if self._fixed else exact.stds.clamp(min=self._least)
                log_prob = Prediction(exact.functions, std).log_prob(tasks.y.double())
                self.scores.add_log_likelihoods("oracle", log_prob, tasks)
                self._std = exact.std
            yield tasks

    def watch_spread(self, spread: Float[Tensor, "task point y"]) -> None:
        """How much a model's functions differ on the batch that has just passed."""
        if self._std is not None:
            self.correlation.add(self._std, spread)


DEFAULT_EPISODES, DEFAULT_CLASSIFIERS = 600, 10  # the paper's
QUERIES = 15  # a class
MOST_NUMBERS = 1 << 22  # numbers of an episode × its classes, of the episodes that are scored together


def evaluate_classifier_run(
    folder: Path,
    tasks: int | None = None,
    seed: int = 0,
    samples: int | None = None,
    split: str | None = None,
    way: int | None = None,
    shot: int | None = None,
    queries: int | None = None,
    transductive: bool = False,
    device: str = "auto",
) -> dict[str, Any]:
    """What ``nvdp eval`` prints for a classifier: episodes of new classes, by default of the test split.

    `way` and `shot` are of the scored episodes, by default as in training; `queries` are 15 a class, but of a folder's
    classes as in training. With `transductive`, batch norm takes its
    statistics from the images of the episode, queries included.
    """
    config, model, step = load_any_run(folder)
    if config.episodes is None or not isinstance(model, FewShotModel):
        raise InputError(f"{folder} was trained on {config.task}; --way, --shot and --transductive are for classifiers")
    tasks, samples = DEFAULT_EPISODES if tasks is None else tasks, DEFAULT_CLASSIFIERS if samples is None else samples
    if tasks < 1 or samples < 1:
        raise InputError(f"evaluation needs at least 1 task and 1 sample; got {tasks} and {samples}")
    if transductive and model.config.extractor.name == "none":
        raise InputError(f"{folder} classifies cached features: batch norm plays no part, so nothing is transductive")
    if queries is None and config.task in PUBLIC_CLASS_SETS:
        queries = QUERIES
    given: dict[str, Any] = {"way": way, "shot": shot, "queries": queries}
    episodes = replace(config.episodes, **{name: value for name, value in given.items() if value is not None})
    split = split or "test"
    source = task_source(config.task, config.data, split, episodes)
    batches = small_batches(validation_tasks(source, seed, tasks))
    model.to(chosen_device(device))
    scores = evaluate_classification(model, batches, samples, seed, "batch" if transductive else None)
    result = {
        "model": config.model.name,
        "task": config.task,
        "split": split,
        "regime": episodes.regime,
        "steps": step,
        "validation": {"seed": seed, "chunk": VALIDATION_CHUNK},
        "queries": episodes.queries,
        **scores,
    }
    if episodes.features is not None:
        result["extractor"] = load_tensors(extractor_folder(episodes.features) / EXTRACTOR)[1]
    return result


def small_batches(batches: Iterable[TaskBatch]) -> Iterator[TaskBatch]:
    """The same tasks in batches whose images fit into memory together."""
    for batch in batches:
        few = max(1, MOST_NUMBERS // (batch.x[0].numel() * batch.y.shape[-1]))  # some read a query once for each class
        for start in range(0, len(batch), few):
            rows = slice(start, start + few)
            yield TaskBatch(batch.x[rows], batch.y[rows], batch.is_context[rows], batch.mask[rows])
