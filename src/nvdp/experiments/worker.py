"""The process of one run of a queue: ``python -m nvdp.experiments.worker ORDER``."""

import os
import sys

from nvdp.errors import InputError
from nvdp.experiments.queue import carry_out, order_of


def main(text: str) -> None:
    """Carry out an order given as JSON; trouble is one line on standard error and code 2."""
    os.nice(5)
    try:
        carry_out(order_of(text))
    except (InputError, OSError) as error:
        print(error, file=sys.stderr)
        sys.exit(2)


if __name__ == "__main__":
    main(sys.argv[1])
