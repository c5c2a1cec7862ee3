"""Scores of a finished run on its fixed validation set, with the exact GP's beside them where there is one."""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from nvdp.data.episodes import PUBLIC_CLASS_SETS, EpisodeConfig, episode_source
from nvdp.data.features import extractor_folder, extractor_folders
from nvdp.data.registry import IMAGE_TASKS, task_source
from nvdp.data.source import VALIDATION_CHUNK, TaskSource, validation_tasks
from nvdp.errors import InputError
from nvdp.evaluation.gates import gates
from nvdp.evaluation.joint import FED_BACK, TARGETS, joint_scores, own_contexts
from nvdp.evaluation.metrics import NORMAL_95, RunningMoments, Watch, evaluate, known
from nvdp.evaluation.oracle import OracleScores
from nvdp.models.base import MetaModel
from nvdp.system import chosen_device
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig
from nvdp.training.nearest_mean import nearest_mean_accuracy, nearest_mean_hits, one_shot_episodes
from nvdp.training.pretrained_extractor import EXTRACTOR, extractor_numbers
from nvdp.training.run_folder import load_any_run

VALIDATION_SEED = 20_220  # names the validation set of all published numbers
DEFAULT_TASKS = {"regression": 2_048, "classification": 600}  # the latter is the paper's
JOINT_TASKS = 64  # of regression: their targets are also scored together
OWN_CONTEXTS = 1_024  # of tasks with few points: the same, given their own contexts
GATE_TASKS = 16  # of fewer, answers would be chance
QUERIES = 15  # of a class
MAX_NUMBERS = 1 << 22  # in the inputs of tasks that are scored together, once for each output


@dataclass(frozen=True)
class EpisodeShape:
    """The shape of scored episodes where it differs from training.

    Attributes:
        way: Classes; by default as in training.
        shot: Support images of a class; by default as in training.
        queries: Query images of a class; by default 15, but of a folder's classes as in training.
        transductive: Whether batch norm takes its statistics from all images of an episode, queries included.
    """

    way: int | None = None
    shot: int | None = None
    queries: int | None = None
    transductive: bool = False


@dataclass(frozen=True)
class _Plan:
    """What a run is scored on, and what the result says about it."""

    source: TaskSource
    facts: dict[str, Any] = field(default_factory=dict)
    oracle: OracleScores | None = None

    @property
    def watch(self) -> Watch | None:
        return None if self.oracle is None else self.oracle.watch


def evaluate_run(
    folder: Path,
    tasks: int | None = None,
    seed: int = VALIDATION_SEED,
    samples: int | None = None,
    on: str | None = None,
    split: str | None = None,
    device: str = "auto",
    shape: EpisodeShape | None = None,
    joint: int = JOINT_TASKS,
    ask_gates: bool = False,
) -> dict[str, Any]:
    """What ``nvdp eval`` prints: one object with the scores of a run.

    Args:
        folder: Of the run.
        tasks: How many; by default 2,048 for regression, 600 episodes for classification.
        seed: Which names the validation set.
        samples: Components of a prediction; by default 16 for regression, 10 for classification.
        on: Another family of tasks than the run was trained on, for regression.
        split: Which images are scored: by default those held out for validation, but the test images of a set that
            the run was not trained on, and the test classes of a classifier.
        device: Where to compute.
        shape: Of the episodes, for classification.
        joint: For regression, on how many of the tasks all targets are scored together; 0 for none.
        ask_gates: Whether to ask, of a model with dropout rates, if its posterior lives in them; on as many tasks.

    Returns:
        The run's name and task, what `nvdp.evaluation.metrics.evaluate` returns and, for regression, `joint`: what
        `nvdp.evaluation.joint.joint_scores` returns, and of tasks with few points `own_contexts`, of the same module;
        of a classifier on features `nearest_mean` (the nearest class mean on the same episodes) and
        `nearest_mean_accuracy` (5-way 1-shot on validation classes).
        Where they were asked for, also what `nvdp.evaluation.gates.gates` returns.
        Deviations, standard errors and intervals over tasks are None if there is one task.
    """
    config, model, step = load_any_run(folder)
    tasks = DEFAULT_TASKS[config.model.kind] if tasks is None else tasks
    if tasks < 1 or (samples is not None and samples < 1):
        got = f"{tasks} tasks" if tasks < 1 else f"{samples} samples"
        raise InputError(f"evaluation needs at least 1 task and 1 sample; got {got}")
    if ask_gates and min(tasks, joint) < GATE_TASKS:
        raise InputError(f"gates need at least {GATE_TASKS} tasks (--tasks, --joint); got {min(tasks, joint)}")
    if config.episodes is None:
        if shape not in (None, EpisodeShape()):
            options = "--way, --shot, --queries and --transductive"
            raise InputError(f"{folder} was trained on {config.task}; {options} are for classifiers")
        plan = _whole_tasks(folder, config, on, split)
    else:
        if on is not None:
            raise InputError(f"{folder} holds a few-shot classifier, which is scored on its own task; got --on {on}")
        plan = _episodes(folder, config, config.episodes, model, split, shape or EpisodeShape())
        if config.episodes.features is not None:
            plan.facts["nearest_mean"] = _nearest_mean(validation_tasks(plan.source, seed, tasks))
    model.to(chosen_device(device))
    batches = small_batches(validation_tasks(plan.source, seed, tasks))
    together = own = None
    if config.model.kind == "regression" and joint > 0:
        together = joint_scores(
            model,
            list(small_batches(validation_tasks(plan.source, seed, min(tasks, joint)))),
            seed,
            in_turn=TARGETS if ask_gates else FED_BACK,
        )
        own = own_contexts(model, list(validation_tasks(plan.source, seed, min(tasks, OWN_CONTEXTS))), seed)
    return {
        "model": config.model.name,
        "task": config.task,
        "steps": step,
        "validation": {"seed": seed, "chunk": VALIDATION_CHUNK},
        **evaluate(model, batches, samples, seed, plan.watch),
        **plan.facts,
        **({} if plan.oracle is None else plan.oracle.result()),
        **({} if together is None else {"joint": together}),
        **({} if own is None else {"own_contexts": own}),
        **(
            gates(model, list(validation_tasks(plan.source, seed, min(tasks, joint))), together, seed)
            if ask_gates
            else {}
        ),
    }


def _whole_tasks(folder: Path, config: RunConfig, on: str | None, split: str | None) -> _Plan:
    model: Any = config.model
    transfer = on is not None and on != config.task
    split = split or ("test" if transfer and on in IMAGE_TASKS else "validation")
    source = task_source(on or config.task, config.data, split)
    if (source.x_dim, source.y_dim) != (model.x_dim, model.y_dim):
        raise InputError(
            f"{folder} was trained on {config.task}: x of {model.x_dim} and y of {model.y_dim} values; "
            f"{source.name} has {source.x_dim} and {source.y_dim}"
        )
    facts: dict[str, Any] = {"variance": model.likelihood.variance}
    if transfer or source.name in IMAGE_TASKS:
        facts |= {"on": source.name, "split": split}
    return _Plan(source, facts, OracleScores(model))


def _episodes(
    folder: Path,
    config: RunConfig,
    episodes: EpisodeConfig,
    model: MetaModel[Any],
    split: str | None,
    shape: EpisodeShape,
) -> _Plan:
    classifier: Any = model
    images = classifier.config.extractor.name != "none"
    if shape.transductive:
        if not images:
            raise InputError(f"{folder} classifies cached features: without batch norm nothing is transductive")
        classifier.statistics = "batch"
    given = {name: value for name in ("way", "shot", "queries") if (value := getattr(shape, name)) is not None}
    if config.task in PUBLIC_CLASS_SETS:
        given = {"queries": QUERIES} | given
    episodes = replace(episodes, **given)
    split = split or "test"
    facts = {
        "split": split,
        "regime": episodes.regime,
        "queries": episodes.queries,
        "statistics": classifier.statistics if images else None,
        "transductive": images and classifier.statistics == "batch",
    }
    if episodes.features is not None:
        facts["extractors"] = _pretraining_of(extractor_folders(episodes.features))
        facts["nearest_mean_accuracy"] = _nearest_mean_accuracy(config, episodes)
    elif episodes.regime == "fine-tuned" and config.start is not None:
        begun_from = extractor_folder(config.start)
        facts["extractors"] = _pretraining_of([begun_from] if (begun_from / EXTRACTOR).exists() else [])
    return _Plan(task_source(config.task, config.data, split, episodes), facts)


def _pretraining_of(extractors: Sequence[Path]) -> list[dict[str, Any]]:
    """Steps and seconds of the pretraining of each extractor."""
    numbers = [extractor_numbers(folder) for folder in extractors]
    return [{name: each[name] for name in ("steps", "seconds")} for each in numbers]


def _nearest_mean(batches: Iterable[TaskBatch]) -> dict[str, float | None]:
    """Accuracy of the nearest class mean of features, without any training, on the episodes that are scored."""
    hits = RunningMoments()
    for batch in batches:
        hits.add(nearest_mean_hits(batch, batch.x))
    return {"accuracy": hits.mean, "interval95": known(NORMAL_95 * hits.stderr)}


def _nearest_mean_accuracy(config: RunConfig, episodes: EpisodeConfig) -> float | None:
    """Accuracy of the nearest class mean of a run's features, 5-way 1-shot on validation classes."""
    pool = episode_source(config.task, config.data, episodes).split("validation")
    shape = one_shot_episodes(pool)
    return nearest_mean_accuracy(pool, lambda features: features, shape) if shape else None


def result_json(result: Any, indent: int | None = None) -> str:
    """Scores, or other measured numbers, as JSON, which has no NaN and no infinity: such a number is refused.

    >>> result_json({"scores": {"LL": float("nan")}})
    Traceback (most recent call last):
    nvdp.errors.InputError: 'scores.LL' is nan; expected a finite number: the model may have diverged
    """
    try:
        return json.dumps(result, indent=indent, allow_nan=False)
    except ValueError:
        place, value = next(_not_finite(result))
        raise InputError(f"'{place}' is {value}; expected a finite number: the model may have diverged") from None


def _not_finite(value: Any, place: str = "") -> Iterator[tuple[str, float]]:
    """Where numbers are not finite, and what they are."""
    if isinstance(value, float) and not math.isfinite(value):
        yield place, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
    for name, item in items:
        yield from _not_finite(item, f"{place}.{name}" if place else str(name))


def small_batches(batches: Iterable[TaskBatch]) -> Iterator[TaskBatch]:
    """The same tasks in batches whose inputs fit into memory together."""
    for batch in batches:
        few = max(1, MAX_NUMBERS // (batch.x[0].numel() * batch.y.shape[-1]))  # some read a query once for each class
        if few >= len(batch):
            yield batch
            continue
        for start in range(0, len(batch), few):
            rows = slice(start, start + few)
            yield replace(batch, **{part.name: getattr(batch, part.name)[rows] for part in fields(batch)})
