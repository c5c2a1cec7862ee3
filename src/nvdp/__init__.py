"""Neural Variational Dropout Processes: learn from many small tasks, predict a new one from a handful of points.

>>> import nvdp
>>> model = nvdp.build_model(nvdp.ModelConfig("nvdp"))
>>> posterior = model.adapt(x=[-1.0, 0.0, 1.0], y=[0.3, 0.9, 0.1])
>>> prediction = posterior.predict([0.5], samples=20)
>>> prediction.mean.shape, prediction.std.shape
(torch.Size([1, 1]), torch.Size([1, 1]))
"""

from torch.distributions import kl_divergence

from nvdp.errors import InputError
from nvdp.loading import load
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.models.state import TaskState, posterior_from_bytes
from nvdp.posteriors.base import Posterior
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.posteriors.latent import LatentPosterior, PointPosterior
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, Task, TaskBatch

__version__ = "0.1.0"

__all__ = [
    "MODELS",
    "DropoutPosterior",
    "InputError",
    "LatentPosterior",
    "MetaModel",
    "ModelConfig",
    "PointPosterior",
    "PointSet",
    "Posterior",
    "Prediction",
    "Task",
    "TaskBatch",
    "TaskState",
    "build_model",
    "kl_divergence",
    "load",
    "posterior_from_bytes",
]
