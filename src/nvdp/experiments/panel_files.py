"""Panels of figures as JSON, so that a figure is drawn again from its result file alone."""

from dataclasses import fields
from typing import Any, TypeVar

import numpy as np

DIGITS = 4  # more than an eye sees in a figure
T = TypeVar("T")


def panel_to_json(panel: Any) -> dict[str, Any]:
    """The fields of a panel, arrays as rounded lists."""
    return {field.name: _plain(getattr(panel, field.name)) for field in fields(panel)}


def _plain(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.round(DIGITS).tolist()
    if isinstance(value, dict):
        return {key: _plain(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_plain(part) for part in value]
    return value


def panel_from_json(kind: type[T], values: dict[str, Any]) -> T:
    """The panel again."""
    return kind(**{name: _arrays(value) for name, value in values.items()})


def _arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _arrays(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    try:
        return np.array(value, dtype=float)
    except ValueError:  # matrices of different shapes: one array each
        return tuple(np.array(part, dtype=float) for part in value)
