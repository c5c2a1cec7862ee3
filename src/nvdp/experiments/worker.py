"""The process of one run of a queue: ``python -m nvdp.experiments.worker ORDER``."""

import json
import os
import sys
from typing import Any

from nvdp.errors import InputError
from nvdp.experiments.queue import Order, carry_out
from nvdp.training.config import RunConfig


def main(text: str) -> None:
    """Carry out an order given as JSON; trouble is one line on standard error and code 2."""
    os.nice(5)
    values: dict[str, Any] = json.loads(text)
    values["config"] = RunConfig.from_dict(values["config"])
    values["also_on"] = tuple(values["also_on"])
    try:
        carry_out(Order(**values))
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1])
