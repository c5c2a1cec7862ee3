"""The runs of a queue on a Ray cluster: each a task with one CPU, retried and resumed when its node dies.

Folders of runs and results must be on a file system that all nodes share. A task is given its order as text and gives
back lines of text; whatever else a run needs is in its folder.
"""

import contextlib
import io
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from nvdp.errors import InputError
from nvdp.experiments.plan import PlannedRun
from nvdp.experiments.queue import Order, carry_out, order_of
from nvdp.experiments.queue_progress import QueueProgress

RETRIES = 5  # of a run whose node or worker died; what it had saved is not lost
POLL_SECONDS = 1.0
WAIT_FOR_LOCK = 120.0  # seconds until a worker that has lost its node is surely gone
PASSED_ON = ("NVDP_DATA", "NVDP_KEEP_MEMORY", "OMP_NUM_THREADS")


def run_on_ray(
    title: str, plan: Sequence[PlannedRun], waiting: list[Order], runs: Path, jobs: int, address: str | None = None
) -> None:
    """Carry out the waiting orders, as many at once as the cluster has CPUs; `jobs` of them on one started here."""
    if not waiting:
        return
    ray = _ray()
    with _cluster(address, jobs), QueueProgress(title, plan, runs) as bar:
        task = ray.remote(num_cpus=1, max_retries=RETRIES)(carry_out_text)
        active = {task.remote(json.dumps(asdict(_absolute(order)))): order for order in waiting}
        failed: list[str] = []
        try:
            while active:
                done, _ = ray.wait(list(active), timeout=POLL_SECONDS)
                for reference in done:
                    order = active.pop(reference)
                    trouble, lines = _result(reference)
                    if trouble:
                        failed.append(f"{order.name}: {trouble}")
                    for line in lines:
                        bar.say(f"{order.name}: {line}")
                bar.update(f"{len(active)} running or waiting")
        except BaseException:
            for reference in active:
                ray.cancel(reference)
            raise
    if failed:
        raise InputError(f"{len(failed)} of {len(plan)} runs failed: {'; '.join(failed)}")


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported: nothing is reported to anyone
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else it warns of what a later one will do
    try:
        import ray
    except ImportError:
        raise InputError("--executor ray needs Ray; pip install 'nvdp[cluster]'") from None
    return ray


@contextlib.contextmanager
def _cluster(address: str | None, jobs: int) -> Any:
    ray = _ray()
    options: dict[str, Any] = (
        {"num_cpus": jobs, "include_dashboard": False} if address is None else {"address": address}
    )
    if address is not None and address.startswith(("127.", "localhost")):
        options["_node_ip_address"] = "127.0.0.1"  # a cluster of this machine alone; Ray would look at its network
    passed_on = {name: os.environ[name] for name in PASSED_ON if name in os.environ}
    try:
        ray.init(
            log_to_driver=False,
            logging_level="ERROR",
            runtime_env={"env_vars": passed_on},
            configure_logging=False,
            **options,
        )
    except (ConnectionError, ValueError, RuntimeError, TimeoutError) as error:
        place = address or "a cluster of this machine"
        raise InputError(f"cannot reach {place} by Ray: {str(error).strip().splitlines()[0]}") from None
    try:
        yield
    finally:
        ray.shutdown()


def _absolute(order: Order) -> Order:
    return replace(order, folder=str(Path(order.folder).resolve()), result=str(Path(order.result).resolve()))


def _result(reference: Any) -> tuple[str, list[str]]:
    ray = _ray()
    try:
        answer = json.loads(ray.get(reference))
        return answer["trouble"], answer["lines"]
    except ray.exceptions.RayError as error:
        return f"given up after {RETRIES} retries: {str(error).strip().splitlines()[0]}", []


def carry_out_text(text: str) -> str:
    """In a worker of the cluster: an order as JSON, carried out or resumed; trouble and notes come back as JSON."""
    said, end = io.StringIO(), time.monotonic() + WAIT_FOR_LOCK
    with contextlib.redirect_stderr(said):
        while True:
            try:
                carry_out(order_of(text))
                trouble = ""
            except (InputError, OSError) as error:
                trouble = str(error)
            if "being trained by another process" not in trouble or time.monotonic() > end:
                break
            time.sleep(1.0)  # the worker before this one has lost its node and is about to notice
    return json.dumps({"trouble": trouble, "lines": said.getvalue().strip().splitlines()})
