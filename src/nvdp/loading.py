"""Models from disk: a run folder by its path."""

from pathlib import Path

from nvdp.errors import InputError
from nvdp.models.base import MetaModel


def load(run: str | Path) -> MetaModel:
    """The trained model of a run folder, ready to ``adapt``."""
    from nvdp.training.run_folder import load_run

    folder = Path(run)
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; nvdp.load takes the folder of a run")
    return load_run(folder)[1]
