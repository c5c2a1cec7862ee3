"""Neural Variational Dropout Processes: learn from many small tasks, predict a new one from a handful of points.

>>> import nvdp
>>> model = nvdp.build_model(nvdp.ModelConfig("nvdp"))
>>> posterior = model.adapt(x=[-1.0, 0.0, 1.0], y=[0.3, 0.9, 0.1])
>>> prediction = posterior.predict([0.5], samples=20)
>>> prediction.mean.shape, prediction.std.shape
(torch.Size([1, 1]), torch.Size([1, 1]))

The names below are imported when they are first used: ``nvdp --help`` must not wait for PyTorch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributions import kl_divergence

    from nvdp.errors import InputError
    from nvdp.loading import Predictor, load
    from nvdp.models.base import MetaModel
    from nvdp.models.config import ModelConfig
    from nvdp.models.registry import MODELS, build_model
    from nvdp.models.state import TaskState, posterior_from_bytes
    from nvdp.posteriors.base import Posterior
    from nvdp.posteriors.dropout import DropoutPosterior
    from nvdp.posteriors.latent import LatentPosterior, PointPosterior
    from nvdp.posteriors.prediction import Prediction
    from nvdp.tables import NVDPClassifier, NVDPRegressor
    from nvdp.tasks import PointSet, Task, TaskBatch

__version__ = "0.2.0"  # the one place: pyproject.toml reads it from here

__all__ = [
    "MODELS",
    "DropoutPosterior",
    "InputError",
    "LatentPosterior",
    "MetaModel",
    "ModelConfig",
    "NVDPClassifier",
    "NVDPRegressor",
    "PointPosterior",
    "PointSet",
    "Posterior",
    "Prediction",
    "Predictor",
    "Task",
    "TaskBatch",
    "TaskState",
    "build_model",
    "kl_divergence",
    "load",
    "posterior_from_bytes",
]

_MODULES = {  # where each name is defined; the same as the imports above, which type checkers read
    "torch.distributions": ("kl_divergence",),
    "nvdp.errors": ("InputError",),
    "nvdp.loading": ("Predictor", "load"),
    "nvdp.models.base": ("MetaModel",),
    "nvdp.models.config": ("ModelConfig",),
    "nvdp.models.registry": ("MODELS", "build_model"),
    "nvdp.models.state": ("TaskState", "posterior_from_bytes"),
    "nvdp.posteriors.base": ("Posterior",),
    "nvdp.posteriors.dropout": ("DropoutPosterior",),
    "nvdp.posteriors.latent": ("LatentPosterior", "PointPosterior"),
    "nvdp.posteriors.prediction": ("Prediction",),
    "nvdp.tables": ("NVDPClassifier", "NVDPRegressor"),  # needs scikit-learn, which is slow to import
    "nvdp.tasks": ("PointSet", "Task", "TaskBatch"),
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        for module, names in _MODULES.items():
            if name in names:
                globals()[name] = value = getattr(import_module(module), name)
                return value
        raise AttributeError(f"module 'nvdp' has no attribute '{name}'")

    def __dir__() -> list[str]:
        return sorted({*globals(), *__all__})
