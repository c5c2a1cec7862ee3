"""A model fitted to tasks in memory.

A hierarchical GP is estimated from the training tasks first. Training mixes tasks drawn from it with the real ones. A
network may also work on the residuals of this process. A few such ways share the time, and held-out tasks choose; they
also give the factors of calibration.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from nvdp.data.frames import FrameTasks
from nvdp.data.tables import Columns
from nvdp.evaluation.explain import Neighbours
from nvdp.loading import Predictor
from nvdp.models.hierarchical_gp import HierarchicalGP
from nvdp.posteriors.adjusted import Adjustment
from nvdp.tables.calibration import adjusted
from nvdp.tables.prior import DrawnTasks, fit_prior
from nvdp.tables.recipes import AUTO, candidates
from nvdp.tables.tasks import Arrays, is_ordered, standardised
from nvdp.tasks import TaskBatch
from nvdp.training.early_stopping import Candidate, Clock, FitOutcome, Shown, fit_best, held_out_score
from nvdp.units import Units

MOST_STEPS = 30_000
FEWEST_FOR_PRIOR = 6  # training tasks
FORECASTS = 0.3  # share of training contexts that are what comes first, where x is ordered
MOST_CALIBRATING = 300  # held-out tasks that calibrate


@dataclass(frozen=True)
class HowToFit:
    """The model, and how long it may take."""

    model: str = AUTO
    steps: int = MOST_STEPS
    minutes: float | None = 5.0  # None: no limit but the steps
    seed: int = 0
    progress: bool = False
    device: str = "cpu"
    forecast: bool = False  # contexts are what comes first in x, in training and in scores
    clock: Clock = time.monotonic  # what the minutes are measured by
    x_log: tuple[bool, ...] = ()  # inputs that are taken by their logarithm; none, if empty
    y_log: tuple[bool, ...] = ()
    process: bool | None = None  # whether the table's process is a part of the prediction; by default with auto

    @property
    def blends(self) -> bool:
        """Whether the prediction is blended with the table's process."""
        return self.model == AUTO if self.process is None else self.process


@dataclass(frozen=True)
class Fitted:
    """A model after training and adjustment, and the processes that were learned from the same tasks."""

    outcome: FitOutcome
    units: Units
    adjustment: Adjustment
    process: HierarchicalGP | None
    learning: list[Arrays]

    def predictor(self, columns: Columns | None = None) -> Predictor:
        """The model, asked in the user's units."""
        return Predictor(self.outcome.model, self.units, self.outcome.config, columns, {}, self.adjustment)

    def neighbours(self, names: Sequence[str]) -> Neighbours | None:
        """The curves of the tasks that it has learned from, where the process is a part of the prediction."""
        if self.adjustment.process is None:
            return None
        return Neighbours.of(self.adjustment.process, list(standardised(self.learning, self.units).sets), list(names))


def fit_tasks(training: list[Arrays], ending: list[Arrays], how: HowToFit) -> Fitted:
    """Fit to tasks in memory.

    Args:
        training: Tasks to learn from.
        ending: Tasks that end training, and choose the recipe, the process's share and the factors of calibration.
        how: The model and its time.

    Returns:
        The fitted model.
    """
    learning = training if training is ending else training + ending
    units = units_of(learning, how)
    source, held_out = (_source(part, units, how.forecast) for part in (training, ending))
    prior = fit_prior(source.sets, seed=how.seed) if len(training) >= FEWEST_FOR_PRIOR else None
    batches = held_out.scored_batches(how.seed)
    shown = Shown(how.progress, how.device, -float(np.log(units.y_spread).mean()), how.clock)
    blended = prior if how.blends else None
    found = candidates(how.model, source, len(training), how.steps, how.seed, prior, blended is not None)
    ways = [_scored_around(way, batches) for way in found]
    outcome = fit_best(ways, held_out_score(batches), None if how.minutes is None else 60 * how.minutes, shown)
    chosen = next(way for way in ways if way.name == outcome.recipe)
    around = isinstance(chosen.source, DrawnTasks) and chosen.source.residuals
    more = held_out.scored_batches(how.seed, MOST_CALIBRATING)
    few = source if training is not ending else None
    adjustment = adjusted(outcome.model, blended, around, more, min(len(ending), MOST_CALIBRATING), few)
    # What was chosen stays; the process itself may learn from all tasks.
    whole = None if prior is None else fit_prior(source.sets + held_out.sets, seed=how.seed, start=prior)
    if blended is not None:
        adjustment = replace(adjustment, process=whole)
    return Fitted(outcome, units, adjustment, whole, learning)


def _scored_around(way: Candidate, batches: Sequence[TaskBatch]) -> Candidate:
    """A candidate that predicts residuals is scored on those of the held-out tasks, in the density of the outputs."""
    source = way.source
    if not isinstance(source, DrawnTasks) or not source.residuals:
        return way
    seen = [source.prior.residuals(batch) for batch in batches]
    log_std = [(batch.x[..., -source.y_dim :].mean(-1) * batch.mask).sum(1) / batch.mask.sum(1) for batch in seen]
    shift, score = float(torch.cat(log_std).double().mean()), held_out_score(seen)
    return replace(way, score=lambda model: score(model) - shift)


def _source(tasks: list[Arrays], units: Units, forecast: bool) -> FrameTasks:
    source = standardised(tasks, units)
    ordered = is_ordered(tasks)
    return replace(source, forecasts=1.0 if forecast else FORECASTS if ordered else 0.0)


def units_of(tasks: list[Arrays], how: HowToFit) -> Units:
    """The units of tasks; values that cannot be standardised are refused."""
    return Units.of([x for x, _ in tasks], [y for _, y in tasks], how.x_log, how.y_log)
