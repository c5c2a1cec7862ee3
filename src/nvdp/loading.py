"""Models from disk: a pretrained one by its name, or a run folder by its path."""

import json
from importlib.resources import files
from pathlib import Path
from typing import Any

from nvdp.errors import unknown_name
from nvdp.models.base import MetaModel


def pretrained_names() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in _weights().glob("*/config.json"))


def _weights() -> Path:
    return Path(str(files("nvdp") / "weights"))


def pretrained_card(name: str) -> dict[str, Any]:
    """What a pretrained model is, how long it was trained, and its scores: LL, RLL and PLL, or the accuracy.

    >>> card = pretrained_card("gp")
    >>> card["model"], card["task"], card["scores"]["PLL"] > 0.9
    ('nvdp-attentive', 'gp', True)
    """
    folder = _weights() / name
    record = json.loads((folder / "scores.json").read_text())
    evaluation = record["evaluation"]
    if "scores" in evaluation:
        scores = {metric: row["mean_parameters"] for metric, row in evaluation["scores"].items()}
    else:
        scores = {"accuracy": evaluation["accuracy"]}
    return {
        "name": name,
        "model": evaluation["model"],
        "task": evaluation["task"],
        "steps": record["steps"],
        "scores": scores,
        "bytes": (folder / "model.safetensors").stat().st_size,
    }


def find_run(name_or_folder: str | Path) -> Path:
    """The folder of a run, or of a pretrained model given by its name; a folder of that name comes first."""
    folder = Path(name_or_folder)
    if folder.exists():
        return folder
    if str(name_or_folder) not in pretrained_names():
        raise unknown_name("folder or pretrained model", str(name_or_folder), pretrained_names())
    return _weights() / str(name_or_folder)


def load(name_or_folder: str | Path) -> MetaModel:
    """A trained model, ready to ``adapt``: a pretrained one by name, or the model of a run folder.

    >>> load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1]).predict([0.5]).mean.shape
    torch.Size([1, 1])
    """
    from nvdp.training.run_folder import load_run

    return load_run(find_run(name_or_folder))[1]
