"""How many examples a property is tried on: few in a usual run, as many as NVDP_EXAMPLES says in a long one."""

import os

from hypothesis import HealthCheck, settings

EXAMPLES = int(os.environ.get("NVDP_EXAMPLES", "3"))
settings.register_profile(
    "trust",
    max_examples=EXAMPLES,
    deadline=None,  # the machine may be busy
    derandomize=True,  # the same examples every time: a failure is one of the code, not of the day
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)
