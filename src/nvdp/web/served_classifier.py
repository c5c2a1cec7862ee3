"""A few-shot classifier that is served: a few labelled pictures adapt it, and it names others with probabilities."""

import numpy as np
import torch
from jaxtyping import Float, Int
from torch.nn import functional as F

from nvdp.errors import InputError
from nvdp.images.classify import PictureClassifier
from nvdp.models.config import GRADIENT_MODELS
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.web.limits import MAX_PIXELS, MAX_SUPPORT
from nvdp.web.schemas import ModelEntry
from nvdp.web.served_model import PICTURES, label

CHARACTERS = "omniglot-fewshot"


class ServedClassifier:
    """A classifier under the name that requests give it."""

    def __init__(self, name: str, task: str, classifier: PictureClassifier, pretrained: bool = False) -> None:
        config, pixels = classifier.model.config, classifier.channels * classifier.size**2
        if pixels > MAX_PIXELS:
            raise InputError(
                f"'{name}' classifies pictures of {pixels} numbers; the page serves those of at most {MAX_PIXELS}"
            )
        self.classifier = classifier
        self.entry = ModelEntry(
            name=name,
            label=label(name, config.name, pretrained),
            page="characters" if task == CHARACTERS else None,
            model=config.name,
            task=task,
            x_dim=pixels,
            y_dim=config.num_classes,
            x_range=PICTURES,
            image_size=classifier.size,
            most_context=MAX_SUPPORT,
            has_rates=config.name == "nvdp",
            pretrained=pretrained,
            way=config.num_classes if config.name in GRADIENT_MODELS else None,
        )

    @torch.no_grad()
    def classify(
        self,
        support: Float[np.ndarray, "support pixel"],
        labels: Int[np.ndarray, " support"],
        query: Float[np.ndarray, "query pixel"],
        samples: int,
        seed: int,
    ) -> ClassPrediction:
        """``model.adapt(support, labels).predict(query, samples, seed)``."""
        extract = self.classifier.extract or torch.Tensor.float
        posterior = self.classifier.model.adapt(
            extract(torch.from_numpy(support)), F.one_hot(torch.from_numpy(labels)).float()
        )
        prediction = posterior.predict(extract(torch.from_numpy(query)), samples, seed)
        if prediction.by_sample.isnan().any():
            raise InputError("the probabilities are not numbers; these pictures are too far from what the model knows")
        return prediction
