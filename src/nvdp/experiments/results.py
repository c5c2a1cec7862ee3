"""Result files: one JSON object for each run, the data of figures, and the numbers that the paper prints."""

import json
from dataclasses import fields
from importlib.resources import files
from pathlib import Path
from typing import Any, TypeVar, cast

import numpy as np

from nvdp.errors import InputError
from nvdp.experiments.entries import Schema, checked, read_entries
from nvdp.experiments.schemas import FIGURES, RESULT, RESULTS

Result = dict[str, Any]
FIGURE_SUFFIX = "-figure.json"  # data of a figure, beside the results of its runs
DIGITS = 4  # of numbers in a figure's data
T = TypeVar("T")


def result_path(out: Path, what: str, budget: str, name: str) -> Path:
    """Path of a run's result file.

    >>> str(result_path(Path("results"), "table1", "cpu", "nvdp-learned"))
    'results/table1/cpu-nvdp-learned.json'
    """
    return out / what / f"{budget}-{name}.json"


def read_result(path: Path, schema: Schema = RESULT) -> Result:
    """Read a result file.

    Args:
        path: The file.
        schema: What its entries must be.

    Returns:
        Its object; `InputError` if the file is no result.
    """
    try:
        result = json.loads(path.read_text())
        missing = {"name", "config", "steps", "seconds", "evaluation"} - set(result)
    except (OSError, ValueError, TypeError, RecursionError) as error:
        raise InputError(f"{path} is no result of `nvdp reproduce`: {error}") from None
    if missing:
        raise InputError(f"{path} is no result of `nvdp reproduce`: it has no entry '{min(missing)}'")
    return checked(result, schema, path)


def read_results(folder: Path, what: str, budget: str) -> dict[str, Result]:
    """Read all results of one experiment.

    Args:
        folder: The folder of results.
        what: Name of the experiment.
        budget: Whose results to read.

    Returns:
        Results by name of the run, ordered by name; empty if there are none. Two of one name are refused.
    """
    paths = [p for p in sorted((folder / what).glob(f"{budget}-*.json")) if not p.name.endswith(FIGURE_SUFFIX)]
    results: dict[str, Result] = {}
    for path in paths:
        result = read_result(path, RESULTS.get(what, RESULT))
        if result["name"] in results:
            raise InputError(f"{path} has the name '{result['name']}' of another result; remove one of them")
        results[result["name"]] = result
    return results


def figure_path(folder: Path, what: str, budget: str) -> Path:
    """Path of the data of an experiment's figure."""
    return folder / what / f"{budget}{FIGURE_SUFFIX}"


def read_figure(folder: Path, what: str, budget: str) -> Any | None:
    """The data of an experiment's figure; None if it has not been made."""
    path = figure_path(folder, what, budget)
    return read_entries(path, FIGURES.get(what)) if path.exists() else None


def paper_numbers() -> dict[str, Any]:
    """Numbers of the paper's tables: a number or [mean, std] by table, setting, model and metric.

    >>> paper_numbers()["table1"]["learned variance"]["nvdp"]["LL"]
    [0.83, 0.61]
    """
    return json.loads((files("nvdp.experiments") / "paper_numbers.json").read_text())


def panel_to_json(panel: Any) -> dict[str, Any]:
    """The fields of a figure's panel, arrays as rounded lists."""
    return {field.name: _to_lists(getattr(panel, field.name)) for field in fields(panel)}


def panel_from_json(kind: type[T], values: dict[str, Any]) -> T:
    """The panel that `panel_to_json` wrote."""
    return kind(**{field.name: _to_arrays(values[field.name]) for field in fields(cast(Any, kind))})


def _to_lists(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.round(DIGITS).tolist()
    if isinstance(value, dict):
        return {key: _to_lists(part) for key, part in value.items()}
    if isinstance(value, tuple):
        return [_to_lists(part) for part in value]
    return value


def _to_arrays(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _to_arrays(part) for key, part in value.items()}
    if not isinstance(value, list):
        return value
    try:
        return np.array(value, dtype=float)
    except ValueError:  # matrices of different shapes
        return tuple(np.array(part, dtype=float) for part in value)
