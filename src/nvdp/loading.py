"""Models from disk: a pretrained one by its name, or a run folder by its path."""

from importlib.resources import files
from pathlib import Path

from nvdp.errors import unknown_name
from nvdp.models.base import MetaModel


def pretrained_names() -> list[str]:
    """The names of the models that come with the package."""
    return sorted(path.parent.name for path in _weights().glob("*/config.json"))


def _weights() -> Path:
    return Path(str(files("nvdp") / "weights"))


def find_run(name_or_folder: str | Path) -> Path:
    """The folder of a run, or of a pretrained model given by its name; a folder of that name comes first."""
    folder = Path(name_or_folder)
    if not folder.exists() and str(name_or_folder) in pretrained_names():
        return _weights() / str(name_or_folder)
    return folder


def load(name_or_folder: str | Path) -> MetaModel:
    """A trained model, ready to ``adapt``: a pretrained one by name, or the model of a run folder.

    >>> load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1]).predict([0.5]).mean.shape
    torch.Size([1, 1])
    """
    from nvdp.training.run_folder import load_run

    folder = find_run(name_or_folder)
    if not folder.is_dir():
        raise unknown_name("folder or pretrained model", str(name_or_folder), pretrained_names())
    return load_run(folder)[1]
