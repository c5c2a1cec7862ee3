"""One experiment from end to end: its runs, then what is drawn from them."""

import json
from collections.abc import Iterator
from pathlib import Path

from nvdp.errors import InputError
from nvdp.experiments.plan import Experiment
from nvdp.experiments.queue import Executor, work_off
from nvdp.experiments.registry import EXPERIMENTS, experiment_named
from nvdp.experiments.results import FIGURE_SUFFIX
from nvdp.system import write_text

ALL = "all"


def experiments_named(what: str, only: str | None = None) -> list[Experiment]:
    """The experiment of that name, or all of them."""
    if what != ALL:
        return [experiment_named(what)]
    if only is not None:
        raise InputError(f"--only is for the runs of one experiment; got all, and --only {only}")
    return list(EXPERIMENTS.values())


def reproduced(
    experiment: Experiment,
    budget: str,
    out: Path,
    runs: Path,
    jobs: int,
    device: str,
    only: str | None = None,
    executor: Executor | None = None,
) -> Iterator[str]:
    """Do the runs and draw; yields a line for whatever was done."""
    if experiment.prepare is not None:
        experiment.prepare(budget, device)
    folders = work_off(experiment, budget, out, runs, jobs, device, only, executor)
    place = out / experiment.name
    yield f"{experiment.name}: {len(folders)} runs done, results in {place}"
    if only is not None:
        return
    if experiment.collect is not None and experiment.draw is not None:
        data = place / f"{budget}{FIGURE_SUFFIX}"
        write_text(data, json.dumps(experiment.collect(folders)) + "\n")
        for path in experiment.draw(json.loads(data.read_text()), place / f"{budget}-{experiment.name}.png"):
            yield f"drew {path}"
    if experiment.draw_private is not None:
        for path in experiment.draw_private(folders):
            yield f"drew {path} (stays with the runs)"
