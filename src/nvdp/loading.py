"""Models from disk: a pretrained one by its name, or a run folder by its path."""

import contextlib
import json
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from safetensors.torch import load as tensors_from_bytes
from safetensors.torch import save as tensors_to_bytes

from nvdp.data.gp import DOMAIN
from nvdp.data.tables import Columns
from nvdp.errors import InputError, unknown_name
from nvdp.models.base import MetaModel
from nvdp.models.registry import build_model
from nvdp.system import write_text
from nvdp.training.config import RunConfig
from nvdp.training.run_folder import CONFIG, load_run, save_model, start_run
from nvdp.units import DataScale


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


FIT, FIT_VERSION = "fit.json", 1


@dataclass(frozen=True)
class FittedModel:
    """A model and how to speak to it; `columns` are those of its table, if it was fitted to one."""

    config: RunConfig
    model: Any
    scale: DataScale
    columns: Columns | None = None


def save_fitted(folder: Path, fitted: FittedModel, steps: int, report: dict[str, Any]) -> None:
    """Write a fitted model, and the configuration that was chosen, into the folder that `start_fit` made."""
    write_text(folder / CONFIG, fitted.config.to_json())
    save_model(folder, fitted.model, steps)
    columns = None if fitted.columns is None else asdict(fitted.columns)
    about = {"version": FIT_VERSION, "scale": fitted.scale.to_dict(), "columns": columns, "report": report}
    write_text(folder / FIT, json.dumps(about, indent=1) + "\n")


def start_fit(folder: Path, config: RunConfig) -> None:
    """Make the folder, before any time is spent on training."""
    start_run(folder, config, resume=False)


def abandon_fit(folder: Path) -> None:
    """Leave nothing of a fit that was stopped, so that the same command can be given again."""
    (folder / CONFIG).unlink(missing_ok=True)
    with contextlib.suppress(OSError):  # something else has come into it meanwhile
        folder.rmdir()


def load_fitted(name_or_folder: str | Path) -> FittedModel:
    """A fitted model from its folder; of a run, or a pretrained model, the units are its own.

    >>> load_fitted("gp").scale.x_high
    (2.0,)
    """
    folder = find_run(name_or_folder)
    if not folder.is_dir():
        load(name_or_folder)  # tells what there is instead
    if not (folder / FIT).exists() and not (folder / CONFIG).exists():
        raise InputError(f"{folder} holds no fitted model: {FIT} and {CONFIG} are missing")
    config, model, _ = load_run(folder)
    if not (folder / FIT).exists():
        bounds = DOMAIN if config.task == "gp" else ()
        scale = DataScale.identity(model.config.x_dim, model.config.y_dim, *bounds)
        return FittedModel(config, model, scale)
    try:
        about = json.loads((folder / FIT).read_text())
        version, scale, columns = about["version"], DataScale.from_dict(about["scale"]), about["columns"]
        if columns is not None:
            columns = Columns(columns["task"], tuple(columns["x"]), tuple(columns["y"]))
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"{folder / FIT} is damaged: {error}") from None
    if version != FIT_VERSION:
        raise InputError(f"{folder / FIT} has format version {version}; this nvdp reads {FIT_VERSION}")
    return FittedModel(config, model, scale, columns)


def packed(fitted: FittedModel) -> dict[str, Any]:
    """A fitted model as plain values, its weights as safetensors bytes."""
    return {
        "config": fitted.config.to_json(),
        "scale": fitted.scale.to_dict(),
        "columns": None if fitted.columns is None else asdict(fitted.columns),
        "weights": tensors_to_bytes({k: v.contiguous() for k, v in fitted.model.state_dict().items()}),
    }


def unpacked(saved: dict[str, Any]) -> FittedModel:
    """The inverse of `packed`."""
    config = RunConfig.from_dict(json.loads(saved["config"]))
    model: Any = build_model(config.model)
    model.load_state_dict(tensors_from_bytes(saved["weights"]))
    model.eval().requires_grad_(False)
    names = saved["columns"]
    columns = None if names is None else Columns(names["task"], tuple(names["x"]), tuple(names["y"]))
    return FittedModel(config, model, DataScale.from_dict(saved["scale"]), columns)
