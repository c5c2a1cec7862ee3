"""Result files: one JSON object for each run of an experiment."""

import json
from pathlib import Path
from typing import Any

from nvdp.errors import InputError

Result = dict[str, Any]
FIGURE_SUFFIX = "-figure.json"  # the numbers of a figure, beside the results


def result_path(out: Path, what: str, budget: str, name: str) -> Path:
    """Where a run's result goes."""
    return out / what / f"{budget}-{name}.json"


def read_result(path: Path) -> Result:
    """A result file; anything else is refused."""
    try:
        result = json.loads(path.read_text())
        complete = {"name", "config", "steps", "seconds", "evaluation"} <= set(result)
    except (OSError, ValueError, TypeError) as error:
        raise InputError(f"{path} is no result of `nvdp reproduce`: {error}") from None
    if not complete:
        raise InputError(f"{path} is no result of `nvdp reproduce`: it lacks some of its entries")
    return result


def read_results(folder: Path, what: str, budget: str) -> dict[str, Result]:
    """The results of one experiment by the name of the run; empty if there are none."""
    paths = [p for p in sorted((folder / what).glob(f"{budget}-*.json")) if not p.name.endswith(FIGURE_SUFFIX)]
    results = [read_result(path) for path in paths]
    return {result["name"]: result for result in results}
