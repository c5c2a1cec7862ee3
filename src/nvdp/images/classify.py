"""Classifying one's own pictures: a few labelled ones adapt a trained classifier, which then classifies others."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.data.class_pools import image_vectors
from nvdp.data.features import Extract
from nvdp.data.image_files import SUFFIXES, read_pictures
from nvdp.data.source import DataConfig
from nvdp.errors import InputError
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.training.pretrained_extractor import load_extractors
from nvdp.training.run_folder import load_any_run


@dataclass(frozen=True)
class PictureClassifier:
    """A trained few-shot classifier and how it takes pictures: their size, their channels, perhaps extractors."""

    model: Any  # a `Classifier`
    size: int
    channels: int
    extract: Extract | None = None
    invert: bool = False

    @classmethod
    def load(cls, run: Path, invert: bool = False) -> "PictureClassifier":
        """The classifier of a run; one that was trained on features brings the extractors they came from."""
        config, model, _ = load_any_run(run)
        if config.episodes is None:
            raise InputError(f"{run} was trained on {config.task}; nvdp classify needs a few-shot classifier")
        if config.episodes.features is None:
            extractor = model.config.extractor
            return cls(model, extractor.size, extractor.channels, None, invert)
        pretrained, extract = load_extractors(run, config, "cpu")
        return cls(model, pretrained.size, pretrained.channels, extract, invert)

    @torch.no_grad()
    def classify(
        self, support: Mapping[str, Sequence[Path]], query: Sequence[Path], samples: int = 0
    ) -> ClassPrediction:
        """The classes of the query pictures, given some pictures of each class.

        Args:
            support: Picture files by the name of their class.
            query: Picture files to classify.
            samples: Classifiers to draw; 0 for the best prediction without sampling.

        Returns:
            What ``posterior.predict(query, samples)`` of the model gives; classes are in the order of `support`.
        """
        for name, files in support.items():
            if not files:
                raise InputError(f"class '{name}' has 0 support images; every class needs at least 1")
        if len(support) < 2:
            raise InputError(f"the support folder has {len(support)} class; classification needs at least 2")
        if not query:
            raise InputError(f"there are 0 query images; expected files ending in {', '.join(SUFFIXES)}")
        labels = [index for index, files in enumerate(support.values()) for _ in files]
        pictures = self._read([file for files in support.values() for file in files])
        return self.adapt(pictures, torch.tensor(labels)).predict(self.inputs(self._read(query)), samples)

    def adapt(self, pictures: Float[Tensor, "image pixel"], labels: Int[Tensor, " image"]) -> Any:
        """The posterior given pictures, as vectors of intensities in [0, 1], and the numbers of their classes."""
        return self.model.adapt(self.inputs(pictures), labels)

    def inputs(self, pictures: Float[Tensor, "image pixel"]) -> Float[Tensor, "image number"]:
        """Pictures as the model takes them: as they are, or their features."""
        return pictures if self.extract is None else self.extract(pictures)

    def _read(self, files: Sequence[Path]) -> Float[Tensor, "image pixel"]:
        images = np.stack(list(read_pictures(files, DataConfig(size=self.size, channels=self.channels))))
        return image_vectors(255 - images if self.invert else images)


def query_files(folder: Path, classes: Sequence[str]) -> tuple[list[Path], list[str | None]]:
    """The query pictures and the class of each, where it lies in a sub-folder with the name of a class."""
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder; expected one of pictures, or with a sub-folder for each class")
    files = sorted(file for file in folder.rglob("*") if file.suffix.lower() in SUFFIXES)
    if not files:
        raise InputError(f"{folder} holds 0 pictures; expected files ending in {', '.join(SUFFIXES)}")
    inside = [file.relative_to(folder).parts[0] for file in files]
    return files, [name if name in classes else None for name in inside]
