"""A queue of runs: each a process with one thread, resumable, never repeated, its result one JSON file."""

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
from typing import IO, Any

import torch

import nvdp
from nvdp.errors import InputError
from nvdp.evaluation.run import VALIDATION_SEED, evaluate_classifier_run, evaluate_run
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.queue_progress import QueueProgress
from nvdp.experiments.results import FIGURE_SUFFIX, Result, read_result, result_path
from nvdp.system import write_text
from nvdp.training.config import RunConfig
from nvdp.training.loop import Machine, train
from nvdp.training.run_folder import WEIGHTS

POLL_SECONDS = 1.0


@dataclass(frozen=True)
class Order:
    """What one worker process is asked to do."""

    what: str
    name: str
    budget: str
    config: RunConfig
    tasks: int
    folder: str
    result: str
    device: str
    split: str = "validation"
    also_on: tuple[str, ...] = ()
    validation_seed: int = VALIDATION_SEED


Executor = Callable[[str, Sequence[PlannedRun], list[Order], Path, int], None]  # title, plan, orders, runs, jobs


def work_off(
    experiment: Experiment,
    budget: str,
    out: Path,
    runs: Path,
    jobs: int = 1,
    device: str = "auto",
    only: str | None = None,
    executor: Executor | None = None,
) -> dict[str, Path]:
    """Do every run of an experiment that is not done, perhaps `only` those of some names; the run folders by name."""
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; expected at least 1")
    plan = chosen(experiment.plan(budget), only)
    if not plan:
        raise InputError(f"no run of {experiment.name} has '{only}' in its name")
    orders = [
        Order(
            experiment.name,
            run.name,
            budget,
            run.config,
            run.tasks,
            str(run.folder(runs)),
            str(result_path(out, experiment.name, budget, run.name)),
            device,
            run.split,
            run.also_on,
            run.validation_seed,
        )
        for run in plan
    ]
    waiting = [order for order in orders if not _finished(order) and not _taken_over(order, out)]
    (executor or run_processes)(experiment.name, plan, waiting, runs, jobs)
    return {run.name: run.folder(runs) for run in plan}


def chosen(plan: Sequence[PlannedRun], only: str | None) -> list[PlannedRun]:
    """The run of exactly that name, or else those whose names contain the text; all without one."""
    exact = [run for run in plan if run.name == only]
    return exact or [run for run in plan if only is None or only in run.name]


def _finished(order: Order) -> bool:
    path = Path(order.result)
    if not path.exists():
        return False
    before = read_result(path)
    if RunConfig.from_dict(before["config"], str(path)) != order.config:
        raise InputError(f"{path} holds the result of another configuration; move it away or choose another --out")
    return _scored_as_wanted(before, order)


def _scored_as_wanted(result: Result, order: Order) -> bool:
    scored = [result["evaluation"], *(result.get("evaluations", {}).get(on) for on in order.also_on)]
    wanted = result["evaluation"].get("split", "validation") == order.split
    wanted &= result["evaluation"].get("validation", {}).get("seed", VALIDATION_SEED) == order.validation_seed
    return wanted and all(evaluation is not None and evaluation["tasks"] == order.tasks for evaluation in scored)


def _taken_over(order: Order, out: Path) -> bool:
    """Write the result from another experiment's with the same configuration, if there is one and its run is here."""
    if not (Path(order.folder) / WEIGHTS).exists():
        return False
    for path in sorted(out.glob(f"*/{order.budget}-*.json")):
        if path.name.endswith(FIGURE_SUFFIX):
            continue
        result = read_result(path)
        if RunConfig.from_dict(result["config"], str(path)) == order.config and _scored_as_wanted(result, order):
            _write_result(order, result | {"what": order.what, "name": order.name})
            return True
    return False


def run_processes(title: str, plan: Sequence[PlannedRun], waiting: list[Order], runs: Path, jobs: int) -> None:
    """Carry out the waiting orders in processes of this machine, `jobs` at once."""
    active: dict[subprocess.Popen[bytes], tuple[Order, IO[str]]] = {}
    failed: list[str] = []
    with QueueProgress(title, plan, runs) as bar:
        polite = (signal.SIGTERM, signal.SIGHUP)  # each is a Ctrl-C to the queue
        before = [signal.signal(number, signal.default_int_handler) for number in polite]
        try:
            while waiting or active:
                while waiting and len(active) < jobs:
                    order = waiting.pop(0)
                    said: IO[str] = TemporaryFile("w+")  # noqa: SIM115  (closed when its process has ended)
                    active[_start(order, said)] = order, said
                time.sleep(POLL_SECONDS)
                for process in [p for p in active if p.poll() is not None]:
                    order, said = active.pop(process)
                    said.seek(0)
                    lines = said.read().strip().splitlines()
                    said.close()
                    if process.returncode:
                        failed.append(f"{order.name}: {' '.join(lines[-1:]) or process.returncode}")
                    for line in [] if process.returncode else lines:
                        bar.say(f"{order.name}: {line}")
                names = ", ".join(order.name for order, _ in active.values())
                bar.update(f"{len(waiting)} waiting; {names}")
        except BaseException:
            for process in active:
                process.send_signal(signal.SIGTERM)
            for process in active:
                process.wait()
            raise
        finally:
            for number, handler in zip(polite, before, strict=True):
                signal.signal(number, handler)
    if failed:
        raise InputError(f"{len(failed)} of {len(plan)} runs failed: {'; '.join(failed)}")


def _start(order: Order, said: IO[str]) -> "subprocess.Popen[bytes]":
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    values = asdict(order)
    command = [sys.executable, "-m", "nvdp.experiments.worker", json.dumps(values)]
    # A session of its own: Ctrl-C reaches the queue alone, which then asks each run once to save and stop.
    return subprocess.Popen(command, env=environment, stderr=said, start_new_session=True)


def order_of(text: str) -> Order:
    """The order that a process is given as JSON."""
    values: dict[str, Any] = json.loads(text)
    values["config"] = RunConfig.from_dict(values["config"])
    values["also_on"] = tuple(values["also_on"])
    return Order(**values)


def carry_out(order: Order) -> None:
    """Train (or go on training), score, and write the result file."""
    folder = Path(order.folder)
    outcome = train(order.config, folder, resume=True, machine=Machine(device=order.device, threads=1))
    for note in outcome.notes:
        print(f"note: {note}", file=sys.stderr)
    if outcome.stopped_by is not None:
        raise InputError(f"stopped by signal {outcome.stopped_by} at step {outcome.step}")
    result: dict[str, Any] = {
        "what": order.what,
        "name": order.name,
        "budget": order.budget,
        "seed": order.config.seed,
        "steps": outcome.step,
        "skipped": outcome.skipped,
        "seconds": round(outcome.seconds, 1),
        "versions": {
            "nvdp": nvdp.__version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
        },
        "config": asdict(order.config),
        "evaluation": evaluate_run(folder, order.tasks, order.validation_seed, split=order.split, device=order.device),
    }
    if order.config.episodes is not None and order.config.episodes.regime == "end-to-end":
        result["transductive"] = evaluate_classifier_run(
            folder, order.tasks, VALIDATION_SEED, split=order.split, transductive=True, device=order.device
        )
    if order.also_on:
        result["evaluations"] = {
            on: evaluate_run(folder, order.tasks, on=on, device=order.device) for on in order.also_on
        }
    _write_result(order, result)


def _write_result(order: Order, result: Result) -> None:
    path = Path(order.result)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text(path, json.dumps(result, indent=1) + "\n")
