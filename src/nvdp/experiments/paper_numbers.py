"""The numbers that the paper prints."""

import json
from importlib.resources import files
from typing import Any


def paper_numbers() -> dict[str, Any]:
    """Every number of the paper's tables: number or [mean, std] by table, setting, model and metric.

    >>> paper_numbers()["table1"]["learned variance"]["nvdp"]["LL"]
    [0.83, 0.61]
    """
    return json.loads((files("nvdp.experiments") / "paper_numbers.json").read_text())
