"""The experiments by name, and how one is done from its runs to its figure."""

import json
from collections.abc import Iterator
from pathlib import Path

from nvdp.errors import InputError, unknown_name
from nvdp.evaluation.run import result_json
from nvdp.experiments.figure3 import FIGURE3
from nvdp.experiments.figure4 import FIGURE4
from nvdp.experiments.figure9 import FIGURE9
from nvdp.experiments.plan import Experiment
from nvdp.experiments.pretrained import PRETRAINED
from nvdp.experiments.queue import Executor, run_queue, selected
from nvdp.experiments.results import FIGURE_SUFFIX
from nvdp.experiments.studies import STUDIES
from nvdp.experiments.table1 import FIGURE2, TABLE1
from nvdp.experiments.table2 import TABLE2
from nvdp.experiments.table3 import TABLE3
from nvdp.system import write_text

EXPERIMENTS: dict[str, Experiment] = {
    each.name: each for each in (TABLE1, FIGURE2, FIGURE3, TABLE2, FIGURE4, TABLE3, FIGURE9, PRETRAINED, *STUDIES)
}
ALL = "all"


def experiments_named(what: str, only: str | None = None) -> list[Experiment]:
    """The experiments to do.

    Args:
        what: Name of an experiment, or "all".
        only: Restriction to some runs, which only one experiment can have.

    Returns:
        The experiments.
    """
    if what == ALL:
        if only is not None:
            raise InputError(f"--only is for the runs of one experiment; got all, and --only {only}")
        return list(EXPERIMENTS.values())
    if what not in EXPERIMENTS:
        raise unknown_name("experiment", what, EXPERIMENTS)
    return [EXPERIMENTS[what]]


def reproduce(
    experiment: Experiment,
    budget: str,
    out: Path,
    runs: Path,
    jobs: int,
    device: str,
    only: str | None = None,
    executor: Executor | None = None,
) -> Iterator[str]:
    """Do the runs of an experiment and draw its figure.

    Args:
        experiment: The experiment.
        budget: "quick", "cpu" or "paper".
        out: Folder of results.
        runs: Folder of run folders.
        jobs: Runs at the same time.
        device: Where to train.
        only: Restrict to some runs; nothing is drawn then.
        executor: Where the runs take place.

    Returns:
        One line for each thing done, as it is done.
    """
    if experiment.prepare is not None:
        experiment.prepare(selected(experiment.plan(budget), only), budget, device)
    folders = run_queue(experiment, budget, out, runs, jobs, device, only, executor)
    place = out / experiment.name
    yield f"{experiment.name}: {len(folders)} runs done, results in {place}"
    if only is not None:
        return
    if experiment.collect is not None and experiment.draw is not None:
        data = place / f"{budget}{FIGURE_SUFFIX}"
        place.mkdir(parents=True, exist_ok=True)  # an experiment without runs has written nothing yet
        write_text(data, result_json(experiment.collect(folders)) + "\n")
        for path in experiment.draw(json.loads(data.read_text()), place / f"{budget}-{experiment.name}.png"):
            yield f"drew {path}"
    if experiment.draw_private is not None:
        for path in experiment.draw_private(folders):
            yield f"drew {path} (stays with the runs)"
