"""Where the runs of a queue take place: processes of this machine, or a Ray cluster.

On a cluster each run is a task with one CPU. If its node dies, Ray starts the task again and the run resumes. The
folders of runs and results must be on a file system that all nodes share. A task receives its job as text and returns
text.
"""

import contextlib
import io
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from nvdp.cluster import check_executor, connected, import_ray
from nvdp.errors import InputError
from nvdp.experiments.plan import PlannedRun
from nvdp.experiments.queue import Executor, Job, QueueProgress, run_job, run_processes

RETRIES = 5  # of a run whose node or worker died; it resumes from its checkpoint
POLL_SECONDS = 1.0
WAIT_FOR_LOCK = 120.0  # seconds after which a worker that lost its node has surely ended


def executor_named(name: str, address: str | None = None) -> Executor:
    """The executor of that name.

    >>> executor_named("local") is run_processes
    True

    Args:
        name: "local" or "ray".
        address: Of a Ray cluster; without one, a cluster is started on this machine.

    Returns:
        A function that runs jobs.
    """
    check_executor(name, address)
    return run_processes if name == "local" else partial(run_on_ray, address=address)


def run_on_ray(
    title: str, plan: Sequence[PlannedRun], pending: list[Job], runs: Path, jobs: int, address: str | None = None
) -> None:
    """Run the pending jobs on all CPUs of a cluster; without an address, on `jobs` CPUs of this machine."""
    if not pending:
        return
    with connected(address, jobs) as ray, QueueProgress(title, plan, runs) as bar:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(run_job_json)
        active = {task.remote(_absolute(job).to_json()): job for job in pending}
        failed: list[str] = []
        try:
            while active:
                done, _ = ray.wait(list(active), timeout=POLL_SECONDS)
                for reference in done:
                    job = active.pop(reference)
                    error, lines = _outcome(reference)
                    if error:
                        failed.append(f"{job.run.name}: {error}")
                    for line in lines:
                        bar.print(f"{job.run.name}: {line}")
                bar.update(f"{len(active)} running or waiting")
        except BaseException:
            for reference in active:
                ray.cancel(reference)
            raise
    if failed:
        raise InputError(f"{len(failed)} of {len(plan)} runs failed: {'; '.join(failed)}")


def _absolute(job: Job) -> Job:
    return replace(job, folder=str(Path(job.folder).resolve()), result=str(Path(job.result).resolve()))


def _outcome(reference: Any) -> tuple[str, list[str]]:
    ray = import_ray()
    try:
        answer = json.loads(ray.get(reference))
        return answer["error"], answer["lines"]
    except ray.exceptions.RayError as error:
        return f"failed after {RETRIES} retries: {str(error).strip().splitlines()[0]}", []


def run_job_json(text: str) -> str:
    """In a worker of the cluster: run or resume a job.

    Args:
        text: The job as JSON.

    Returns:
        JSON of the error ("" if there was none) and of the lines printed on standard error.
    """
    output, end = io.StringIO(), time.monotonic() + WAIT_FOR_LOCK
    with contextlib.redirect_stderr(output):
        while True:
            try:
                run_job(Job.from_json(text))
                message = ""
            except (InputError, OSError) as error:
                message = str(error)
            if "being trained by another process" not in message or time.monotonic() > end:
                break
            time.sleep(1.0)  # the worker before this one has lost its node and will soon end
    return json.dumps({"error": message, "lines": output.getvalue().strip().splitlines()})
