"""Pictures to classify, and the answer: a probability for every class, under every sampled classifier."""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, FailFast, Field
from pydantic.config import JsonValue

from nvdp.errors import InputError
from nvdp.web import limits

Intensity = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Picture = Annotated[list[Intensity], FailFast(), Field(min_length=1, max_length=limits.MOST_PIXELS)]
Label = Annotated[int, Field(ge=0, le=limits.MOST_CLASSES - 1)]
# Two lines on 28 × 28 pixels, to try with.
UPRIGHT: list[JsonValue] = [int(place % 28 == 13) for place in range(784)]
LYING: list[JsonValue] = [int(place // 28 == 13) for place in range(784)]


class ClassifyRequest(BaseModel):
    """Some labelled pictures, and others to name. A picture is its intensities row by row, ink 1 on paper 0."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "example": {"model": "omniglot", "support": [UPRIGHT, LYING], "labels": [0, 1], "query": [UPRIGHT]}
        },
    )

    model: str = Field(max_length=limits.LONGEST_NAME, description="The name of a classifier from /api/models.")
    support: Annotated[list[Picture], FailFast()] = Field(
        min_length=2, max_length=limits.MOST_SUPPORT, description="Labelled pictures, at least one of each class."
    )
    labels: Annotated[list[Label], FailFast()] = Field(
        min_length=2, max_length=limits.MOST_SUPPORT, description="Their classes, numbered from 0."
    )
    query: Annotated[list[Picture], FailFast()] = Field(
        min_length=1, max_length=limits.MOST_PICTURES, description="Pictures to name."
    )
    samples: int = Field(default=0, ge=0, le=limits.MOST_SAMPLES, description="Classifiers to sample.")
    seed: int = Field(default=0, ge=0, le=limits.LARGEST_SEED, description="The same seed, the same classifiers.")

    def arrays(
        self, pixels: int
    ) -> tuple[Float[np.ndarray, "support pixel"], Int[np.ndarray, " support"], Float[np.ndarray, "query pixel"]]:
        """Support, labels and query of pictures with so many pixels."""
        if len(self.support) != len(self.labels):
            raise InputError(f"there are {len(self.support)} support pictures and {len(self.labels)} labels")
        missing = sorted(set(range(max(self.labels) + 1)) - set(self.labels))
        if missing:
            raise InputError(f"class {missing[0]} has no support picture; every class needs at least 1")
        if len(set(self.labels)) < 2:
            raise InputError(f"there is {len(set(self.labels))} class; classification needs at least 2")
        labels = np.array(self.labels, dtype=np.int64)
        return _pictures(self.support, pixels, "support"), labels, _pictures(self.query, pixels, "query")


def _pictures(pictures: list[list[float]], pixels: int, name: str) -> Float[np.ndarray, "picture pixel"]:
    for index, picture in enumerate(pictures):
        if len(picture) != pixels:
            raise InputError(f"{name}[{index}] holds {len(picture)} numbers; this model takes {pixels}")
    return np.array(pictures, dtype=np.float32).reshape(len(pictures), pixels)


class ClassifyAnswer(BaseModel):
    """The classes of every query picture."""

    probabilities: list[list[float]] = Field(description="(query, class), averaged over the sampled classifiers.")
    std: list[list[float]] = Field(description="(query, class): how far the sampled classifiers lie apart.")
    samples: list[list[list[float]]] = Field(description="(sample, query, class): each one's own probabilities.")
    entropy: list[float] = Field(description="Uncertainty of each picture's class, in nats.")
    disagreement: list[float] = Field(description="The part of it that comes from not knowing the classifier.")
