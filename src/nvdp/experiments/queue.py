"""A queue of runs: each run is a process with one thread, can be resumed, and writes one result file.

The process of a run is ``python -m nvdp.experiments.queue JOB``, with the job as JSON.
"""

import csv
import json
import os
import platform
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Any, Self

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

import nvdp
from nvdp.errors import InputError
from nvdp.evaluation.run import VALIDATION_SEED, EpisodeShape, evaluate_run, result_json
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.results import FIGURE_SUFFIX, Result, read_result, result_path
from nvdp.system import source_commit, write_text
from nvdp.training.config import RunConfig
from nvdp.training.progress import ProgressBar
from nvdp.training.run import Machine, train
from nvdp.training.run_folder import LOG, WEIGHTS

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Job:
    """What one worker process does: train a run, score it, write its result."""

    what: str  # name of the experiment
    budget: str
    run: PlannedRun
    folder: str
    result: str
    device: str

    def to_json(self) -> str:
        """The job as text for a worker."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The job again."""
        values: dict[str, Any] = json.loads(text)
        run = values["run"]
        run |= {"config": RunConfig.from_dict(run["config"]), "also_on": tuple(run["also_on"])}
        return cls(**(values | {"run": PlannedRun(**run)}))


Executor = Callable[[str, Sequence[PlannedRun], list[Job], Path, int], None]  # title, plan, jobs, runs, processes


def run_queue(
    experiment: Experiment,
    budget: str,
    out: Path,
    runs: Path,
    jobs: int = 1,
    device: str = "auto",
    only: str | None = None,
    executor: Executor | None = None,
) -> dict[str, Path]:
    """Train and score every run of an experiment that has no result yet.

    Args:
        experiment: Whose runs.
        budget: "quick", "cpu" or "paper".
        out: Folder of results.
        runs: Folder of run folders.
        jobs: Runs at the same time.
        device: Where to train.
        only: Restrict to the run of this name, or to those whose names contain it.
        executor: Where the runs take place; processes of this machine if not given.

    Returns:
        The run folders by name.
    """
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; expected at least 1")
    plan = selected(experiment.plan(budget), only)
    if not plan and only is not None:
        raise InputError(f"no run of {experiment.name} has '{only}' in its name")
    paths = {run.name: str(result_path(out, experiment.name, budget, run.name)) for run in plan}
    all_jobs = [Job(experiment.name, budget, run, str(run.folder(runs)), paths[run.name], device) for run in plan]
    pending = [job for job in all_jobs if not _finished(job) and not _copied(job, out)]
    (executor or run_processes)(experiment.name, plan, pending, runs, jobs)
    return {run.name: run.folder(runs) for run in plan}


def selected(plan: Sequence[PlannedRun], only: str | None) -> list[PlannedRun]:
    """The run named `only`, else the runs whose names contain it; all runs if it is None."""
    exact = [run for run in plan if run.name == only]
    return exact or [run for run in plan if only is None or only in run.name]


def _finished(job: Job) -> bool:
    path = Path(job.result)
    if not path.exists():
        return False
    result = read_result(path)
    if RunConfig.from_dict(result["config"], str(path)) != job.run.config:
        raise InputError(f"{path} holds the result of another configuration; move it away or choose another --out")
    return _scored_as_planned(result, job.run)


def _scored_as_planned(result: Result, run: PlannedRun) -> bool:
    evaluation = result["evaluation"]
    all_evaluations = [evaluation, *(result.get("evaluations", {}).get(on) for on in run.also_on)]
    return (
        evaluation.get("split", "validation") == run.split
        and evaluation.get("validation", {}).get("seed", VALIDATION_SEED) == run.validation_seed
        and all(each is not None and each["tasks"] == run.tasks for each in all_evaluations)
    )


def _copied(job: Job, out: Path) -> bool:
    """Copy the result of another experiment that has the same configuration, if there is one and its run exists."""
    if not (Path(job.folder) / WEIGHTS).exists():
        return False
    for path in sorted(out.glob(f"*/{job.budget}-*.json")):
        if path.name.endswith(FIGURE_SUFFIX):
            continue
        result = read_result(path)
        if RunConfig.from_dict(result["config"], str(path)) == job.run.config and _scored_as_planned(result, job.run):
            _write_result(job, result | {"what": job.what, "name": job.run.name})
            return True
    return False


def run_processes(title: str, plan: Sequence[PlannedRun], pending: list[Job], runs: Path, jobs: int) -> None:
    """Run the pending jobs in processes of this machine, `jobs` at a time."""
    active: dict[subprocess.Popen[bytes], tuple[Job, IO[str]]] = {}
    failed: list[str] = []
    with QueueProgress(title, plan, runs) as bar:
        stopping = (signal.SIGTERM, signal.SIGHUP)  # treated as Ctrl-C
        before = [signal.signal(number, signal.default_int_handler) for number in stopping]
        try:
            while pending or active:
                while pending and len(active) < jobs:
                    job = pending.pop(0)
                    output: IO[str] = TemporaryFile("w+")  # noqa: SIM115  (closed when its process has ended)
                    active[_start(job, output)] = job, output
                time.sleep(POLL_SECONDS)
                for process in [p for p in active if p.poll() is not None]:
                    job, output = active.pop(process)
                    output.seek(0)
                    lines = output.read().strip().splitlines()
                    output.close()
                    if process.returncode:
                        failed.append(f"{job.run.name}: {' '.join(lines[-1:]) or process.returncode}")
                    for line in [] if process.returncode else lines:
                        bar.print(f"{job.run.name}: {line}")
                names = ", ".join(job.run.name for job, _ in active.values())
                bar.update(f"{len(pending)} waiting; {names}")
        except BaseException:
            for process in active:
                process.send_signal(signal.SIGTERM)
            for process in active:
                process.wait()
            raise
        finally:
            for number, handler in zip(stopping, before, strict=True):
                signal.signal(number, handler)
    if failed:
        raise InputError(f"{len(failed)} of {len(plan)} runs failed: {'; '.join(failed)}")


def _start(job: Job, output: IO[str]) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "nvdp.experiments.queue", job.to_json()]
    # A session of its own: Ctrl-C reaches the queue alone, which then asks each run once to save and stop.
    return subprocess.Popen(command, env=environment, stderr=output, start_new_session=True)


def run_job(job: Job) -> None:
    """Train or resume the run, score it, and write the result file."""
    run, folder = job.run, Path(job.folder)
    outcome = train(run.config, folder, resume=True, machine=Machine(device=job.device, threads=1))
    for note in outcome.notes:
        print(f"note: {note}", file=sys.stderr)
    if outcome.stopped_by is not None:
        raise InputError(f"stopped by signal {outcome.stopped_by} at step {outcome.step}")
    result: dict[str, Any] = {
        "what": job.what,
        "name": run.name,
        "budget": job.budget,
        "seed": run.config.seed,
        "steps": outcome.step,
        "skipped": outcome.skipped,
        "seconds": round(outcome.seconds, 1),
        "commit": source_commit() or nvdp.__version__,
        "versions": {"nvdp": nvdp.__version__, "torch": torch.__version__, "python": platform.python_version()},
        "config": asdict(run.config),
        "evaluation": evaluate_run(folder, run.tasks, run.validation_seed, split=run.split, device=job.device),
    }
    if run.config.episodes is not None and run.config.episodes.regime == "end-to-end":
        result["transductive"] = evaluate_run(
            folder, run.tasks, split=run.split, device=job.device, shape=EpisodeShape(transductive=True)
        )
    if run.also_on:
        result["evaluations"] = {on: evaluate_run(folder, run.tasks, on=on, device=job.device) for on in run.also_on}
    _write_result(job, result)


def _write_result(job: Job, result: Result) -> None:
    path = Path(job.result)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, result_json(result, indent=1) + "\n")


class QueueProgress(ProgressBar):
    """A progress bar on standard error: steps done of all runs of a plan, read from their logs."""

    def __init__(self, title: str, plan: Sequence[PlannedRun], runs: Path) -> None:
        self._plan, self._runs = plan, runs
        super().__init__(
            Progress(
                TextColumn("[bold]{task.description}"),
                BarColumn(),
                TextColumn("{task.fields[state]}"),
                TimeRemainingColumn(),
                console=Console(stderr=True),
            )
        )
        self._whole = self._bar.add_task(title, total=sum(run.config.steps for run in plan), state="")

    def print(self, line: str) -> None:
        """Print a line above the bar."""
        self._bar.console.print(line)

    def update(self, state: str) -> None:
        """Read the logs again."""
        done = sum(steps_done(run.folder(self._runs)) for run in self._plan)
        self._bar.update(self._whole, completed=done, state=state)


def steps_done(folder: Path) -> int:
    """The last step in a run's log; 0 if there is none yet."""
    try:
        with (folder / LOG).open() as file:
            rows = list(csv.reader(file))
        return int(rows[-1][0]) if len(rows) > 1 else 0
    except (OSError, ValueError, IndexError):
        return 0


def main(text: str) -> None:
    """Run a job given as JSON; an error is one line on standard error and exit code 2."""
    os.nice(5)
    try:
        run_job(Job.from_json(text))
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1])
