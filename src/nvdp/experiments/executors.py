"""Where the runs of a queue take place: processes of this machine, or a Ray cluster."""

from functools import partial

from nvdp.errors import InputError, unknown_name
from nvdp.experiments.executors_ray import run_on_ray
from nvdp.experiments.queue import Executor, run_processes

EXECUTORS = ("local", "ray")


def executor_named(name: str, address: str | None = None) -> Executor:
    """The executor of that name; `address` is that of a Ray cluster, without which one is started here.

    >>> executor_named("local") is run_processes
    True
    """
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS)
    if name == "local":
        if address is not None:
            raise InputError(f"--address is {address}; only --executor ray has one")
        return run_processes
    return partial(run_on_ray, address=address)
