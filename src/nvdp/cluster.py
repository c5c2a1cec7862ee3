"""A Ray cluster: how it is imported, and a connection to it that ends with what it is for."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from nvdp.errors import InputError, unknown_name

EXECUTORS = ("local", "ray")
PASSED_ON = ("NVDP_DATA", "NVDP_KEEP_MEMORY", "OMP_NUM_THREADS")


def check_executor(name: str, address: str | None) -> None:
    """Refuse an unknown executor, and the address of a cluster where there is none.

    >>> check_executor("local", None)
    """
    if name not in EXECUTORS:
        raise unknown_name("executor", name, EXECUTORS)
    if name == "local" and address is not None:
        raise InputError(f"--address is {address}; only --executor ray has one")


def import_ray() -> Any:
    """The package, which sends no usage statistics."""
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # before Ray is imported
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # else Ray warns of a future change
    try:
        import ray
    except ImportError:
        raise InputError("--executor ray needs Ray; pip install 'nvdp[cluster]'") from None
    return ray


@contextmanager
def connected(address: str | None, cpus: int) -> Iterator[Any]:
    """Ray, connected to a cluster.

    Args:
        address: Of the cluster; without one, a cluster is started on this machine.
        cpus: That a cluster on this machine uses.
    """
    ray = import_ray()
    options: dict[str, Any] = (
        {"num_cpus": cpus, "include_dashboard": False} if address is None else {"address": address}
    )
    if address is not None and address.startswith(("127.", "localhost")):
        options["_node_ip_address"] = "127.0.0.1"  # a cluster of this machine alone: Ray need not search the network
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
        yield ray
    finally:
        ray.shutdown()
