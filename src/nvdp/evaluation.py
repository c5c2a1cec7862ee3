"""Scores of a finished run on its fixed validation set, with the oracle's beside them where there is one."""

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.gp import GPTaskBatch
from nvdp.data.registry import IMAGE_TASKS, task_source
from nvdp.data.source import VALIDATION_CHUNK, validation_tasks
from nvdp.errors import InputError
from nvdp.fewshot_evaluation import evaluate_classifier_run
from nvdp.metrics import RegressionScores, RunningCorrelation, evaluate_regression
from nvdp.models.config import ModelConfig
from nvdp.predictions import Prediction
from nvdp.runtime import chosen_device
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import CONFIG, load_run

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
    :func:`nvdp.fewshot_evaluation.evaluate_classifier_run` says.
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
        "variance": config.model.variance,
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
        self._least, self._fixed = config.min_std, config.variance == "fixed"
        self._std: Tensor | None = None  # of the exact posterior on the last batch

    def watch(self, batches: Iterable[TaskBatch]) -> Iterator[TaskBatch]:
        for tasks in batches:
            if isinstance(tasks, GPTaskBatch):
                exact = tasks.oracle()
                std = torch.ones_like(exact.stds) if self._fixed else exact.stds.clamp(min=self._least)
                log_prob = Prediction(exact.functions, std).log_prob(tasks.y.double())[0]
                self.scores.add_log_likelihoods("oracle", log_prob, tasks)
                self._std = exact.std
            yield tasks

    def watch_spread(self, spread: Float[Tensor, "task point y"]) -> None:
        """How much a model's functions differ on the batch that has just passed."""
        if self._std is not None:
            self.correlation.add(self._std, spread)
