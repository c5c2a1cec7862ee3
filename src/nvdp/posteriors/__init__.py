"""Posteriors over a task's functions, and the predictions they give."""

from nvdp.posteriors.base import Posterior
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.posteriors.latent import LatentPosterior, PointPosterior
from nvdp.posteriors.prediction import ClassPrediction, Prediction

__all__ = ["ClassPrediction", "DropoutPosterior", "LatentPosterior", "PointPosterior", "Posterior", "Prediction"]
