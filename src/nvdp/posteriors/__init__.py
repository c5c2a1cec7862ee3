"""Posteriors over a task's functions, and the predictions they give."""

from nvdp.posteriors.base import Posterior, TaskPosterior
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.posteriors.latent import LatentPosterior, PointPosterior

__all__ = ["DropoutPosterior", "LatentPosterior", "PointPosterior", "Posterior", "TaskPosterior"]
