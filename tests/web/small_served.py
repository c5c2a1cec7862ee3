"""Small untrained models as the server holds them."""

from nvdp.images.classify import PictureClassifier
from nvdp.loading import Predictor
from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import build_model
from nvdp.units import Units
from nvdp.web.served import CHARACTERS, ServedClassifier, ServedModel

PIXELS = 64  # pictures of 8 × 8


def regression(name, config, units=None, columns=None, model=None):
    """A run's model, or one fitted to a table with these units and columns."""
    units = units or Units.identity(config.model.x_dim, config.model.y_dim)
    return ServedModel.of(name, Predictor(model or build_model(config.model), units, config, columns))


def classifier(name="signs", kind="nvdp", task=CHARACTERS, size=8, **changes):
    """A few-shot classifier of small pictures."""
    shape = {"extractor.size": size, "extractor.features": 64, "decoder.width": 8, "meta.width": 8} | changes
    model = build_model(ClassifierConfig(kind, 5).updated(shape)).eval()
    return ServedClassifier(name, task, PictureClassifier(model, size, channels=1))
