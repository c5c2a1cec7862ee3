"""Numbers as a model takes them: of a table, in units of its spread; refused if they lie far outside any training."""

import numpy as np
from jaxtyping import Float

from nvdp.errors import InputError
from nvdp.units import Numbers
from nvdp.web.limits import MAX_DISTANCE


def check_reach(
    name: str, values: Float[np.ndarray, "point number"], centre: Numbers = (0.0,), spread: Numbers = (1.0,)
) -> None:
    """Refuse a number that is more than `MAX_DISTANCE` spreads from the centre.

    >>> check_reach("x", np.array([[5.0], [-20.0]]), (10.0,), (0.01,))
    Traceback (most recent call last):
    nvdp.errors.InputError: x[1][0] is -20; this model takes numbers from 0 to 20
    """
    low, high = (np.array(centre) + side * MAX_DISTANCE * np.array(spread) for side in (-1, 1))
    outside = np.argwhere((values < low) | (values > high))
    if len(outside):
        row, column = outside[0]
        bounds = (np.broadcast_to(bound, values.shape[1:])[column] for bound in (low, high))
        raise InputError(
            f"{name}[{row}][{column}] is {values[row, column]:g}; "
            f"this model takes numbers from {' to '.join(f'{bound:g}' for bound in bounds)}"
        )
