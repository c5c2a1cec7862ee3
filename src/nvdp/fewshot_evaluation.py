"""Scores of a few-shot classifier on fixed episodes of new classes: accuracy, NLL and calibration."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from nvdp.classification_metrics import evaluate_classification
from nvdp.data.feature_cache import extractor_folder
from nvdp.data.fewshot_sets import PUBLIC_CLASS_SETS
from nvdp.data.registry import task_source
from nvdp.data.source import VALIDATION_CHUNK, validation_tasks
from nvdp.errors import InputError
from nvdp.models.fewshot_base import FewShotModel
from nvdp.runtime import chosen_device
from nvdp.tasks import TaskBatch
from nvdp.training.checkpoint import load_tensors
from nvdp.training.pretrain_model import EXTRACTOR
from nvdp.training.run_folder import load_any_run

DEFAULT_EPISODES, DEFAULT_SAMPLES = 600, 10  # the paper's
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
    tasks, samples = DEFAULT_EPISODES if tasks is None else tasks, DEFAULT_SAMPLES if samples is None else samples
    if tasks < 1 or samples < 1:
        raise InputError(f"evaluation needs at least 1 task and 1 sample; got {tasks} and {samples}")
    if transductive and model.config.extractor == "none":
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
