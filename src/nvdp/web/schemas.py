"""Requests and answers of the API; sizes and ranges of requests are checked against `limits`."""

from typing import Annotated

import numpy as np
from jaxtyping import Float, Int
from pydantic import BaseModel, ConfigDict, FailFast, Field
from pydantic.config import JsonValue

from nvdp.errors import InputError
from nvdp.web import limits

Number = Annotated[float, Field(ge=-limits.MAX_NUMBER, le=limits.MAX_NUMBER, allow_inf_nan=False)]
# The first error ends the check: a long list of bad numbers must not become a long list of errors.
Point = Annotated[list[Number], FailFast(), Field(min_length=1, max_length=limits.MAX_FEATURES)]
Context = Annotated[list[Point], FailFast(), Field(max_length=limits.MAX_CONTEXT)]
Query = Annotated[list[Point], FailFast(), Field(min_length=1, max_length=limits.MAX_QUERY)]
Intensity = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]
Picture = Annotated[list[Intensity], FailFast(), Field(min_length=1, max_length=limits.MAX_PIXELS)]
Label = Annotated[int, Field(ge=0, le=limits.MAX_CLASSES - 1)]
# Two lines on 28 × 28 pixels, to try with.
UPRIGHT: list[JsonValue] = [int(place % 28 == 13) for place in range(784)]
LYING: list[JsonValue] = [int(place // 28 == 13) for place in range(784)]


class AdaptRequest(BaseModel):
    """A context, and where to predict. An empty context asks for the prior."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "example": {"model": "gp", "x": [[-1.0], [0.5]], "y": [[0.3], [-0.2]], "query": [[0.0]], "samples": 8}
        },
    )

    model: str = Field(max_length=limits.MAX_NAME, description="A name from /api/models.")
    x: Context = Field(description="Inputs of the context, a list of numbers for each point.")
    y: Context = Field(description="Outputs of the context, as many as there are inputs.")
    query: Query = Field(description="Where to predict, or the candidates to choose from.")
    samples: int = Field(
        default=0, ge=0, le=limits.MAX_SAMPLES, description="Functions to draw; /api/suggest draws its own."
    )
    seed: int = Field(default=0, ge=0, le=limits.MAX_SEED, description="The same seed, the same functions.")

    def arrays(
        self, entry: "ModelEntry"
    ) -> tuple[Float[np.ndarray, "context x"], Float[np.ndarray, "context y"], Float[np.ndarray, "query x"]]:
        """x, y and query as matrices of a model's widths."""
        if len(self.x) != len(self.y):
            raise InputError(f"x holds {len(self.x)} points and y {len(self.y)}; expected as many of both")
        if len(self.x) > entry.most_context:
            raise InputError(f"x holds {len(self.x)} points; '{self.model}' takes at most {entry.most_context}")
        if self.samples * len(self.query) > limits.MAX_SAMPLED:
            raise InputError(
                f"{self.samples} samples at {len(self.query)} points are {self.samples * len(self.query)} values; "
                f"expected at most {limits.MAX_SAMPLED}"
            )
        x_dim = entry.x_dim
        return _matrix(self.x, x_dim, "x"), _matrix(self.y, entry.y_dim, "y"), _matrix(self.query, x_dim, "query")


def _matrix(points: list[list[float]], width: int, name: str) -> Float[np.ndarray, "point feature"]:
    for index, point in enumerate(points):
        if len(point) != width:
            raise InputError(f"{name}[{index}] holds {len(point)} numbers; this model takes {width}")
    return np.array(points, dtype=np.float64).reshape(len(points), width)


class LayerHeat(BaseModel):
    """The dropout rates P of one layer's weight matrix."""

    shape: tuple[int, int] = Field(description="Rows and columns of the weight matrix.")
    mean: float = Field(description="The mean rate.")
    heat: list[list[float]] = Field(description="P, averaged over blocks if the matrix is large.")


class AdaptAnswer(BaseModel):
    """A prediction at every query point."""

    mean: list[list[float]] = Field(description="(query, y)")
    std: list[list[float]] = Field(description="(query, y): of an observation there.")
    samples: list[list[list[float]]] = Field(description="(sample, query, y): functions, without observation noise.")
    rates: list[LayerHeat] | None = Field(description="Dropout rates of every layer; null for models without.")
    note: str | None = Field(default=None, description="Given only where x, y or query are far from training data.")


class SuggestAnswer(BaseModel):
    """The query point at which the functions of the posterior differ most."""

    index: int = Field(description="Its place in the query, from 0.")
    x: list[float]
    mean: list[float]
    std: list[float]


class ClassifyRequest(BaseModel):
    """Some labelled pictures, and others to classify. A picture is its intensities row by row: 1 is ink, 0 paper."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "example": {"model": "omniglot", "support": [UPRIGHT, LYING], "labels": [0, 1], "query": [UPRIGHT]}
        },
    )

    model: str = Field(max_length=limits.MAX_NAME, description="The name of a classifier from /api/models.")
    support: Annotated[list[Picture], FailFast()] = Field(
        min_length=2, max_length=limits.MAX_SUPPORT, description="Labelled pictures, at least one of each class."
    )
    labels: Annotated[list[Label], FailFast()] = Field(
        min_length=2, max_length=limits.MAX_SUPPORT, description="Their classes, numbered from 0."
    )
    query: Annotated[list[Picture], FailFast()] = Field(
        min_length=1, max_length=limits.MAX_PICTURES, description="Pictures to classify."
    )
    samples: int = Field(default=0, ge=0, le=limits.MAX_SAMPLES, description="Classifiers to draw.")
    seed: int = Field(default=0, ge=0, le=limits.MAX_SEED, description="The same seed, the same classifiers.")

    def is_dear(self) -> bool:
        """Whether the answer takes more than some hundredths of a second, so that others should go first."""
        return len(self.support) + len(self.query) > limits.DEAR_PICTURES

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
        support, query = _matrix(self.support, pixels, "support"), _matrix(self.query, pixels, "query")
        return support.astype(np.float32), labels, query.astype(np.float32)


class ClassifyAnswer(BaseModel):
    """The classes of every query picture."""

    probabilities: list[list[float]] = Field(description="(query, class), averaged over the posterior.")
    std: list[list[float]] = Field(description="(query, class): how much classifiers of the posterior differ.")
    samples: list[list[list[float]]] = Field(description="(sample, query, class): of each drawn classifier.")
    entropy: list[float] = Field(description="Of each picture's probabilities, in nats.")
    disagreement: list[float] = Field(description="The part of the entropy that more labelled pictures can remove.")


class TableColumns(BaseModel):
    """The columns of the table that a model was fitted to."""

    task: str | None
    x: list[str]
    y: list[str]


class ModelEntry(BaseModel):
    """A model that can be asked."""

    name: str
    label: str
    page: str | None = Field(description="Where it is shown: functions, images, characters, data or nowhere.")
    model: str = Field(description="Its kind: a name from `nvdp models`, or exact-gp.")
    task: str
    x_dim: int = Field(description="Numbers of an input; of a picture, its pixels.")
    y_dim: int = Field(description="Numbers of an output; for a classifier, the classes it was trained with.")
    x_range: tuple[float, float] = Field(description="The inputs it was trained on.")
    y_centre: list[float] = Field(default_factory=list, description="Around which outputs it was trained.")
    y_spread: list[float] = Field(default_factory=list, description="Their spread; far beyond it, do not trust it.")
    image_size: int | None = Field(default=None, description="Rows and columns of its pictures.")
    most_context: int
    has_rates: bool
    pretrained: bool = Field(default=False, description="Whether it comes with the package.")
    way: int | None = Field(default=None, description="The number of classes that it needs; null for any number.")
    columns: TableColumns | None = Field(default=None, description="Of the table it was fitted to by `nvdp fit`.")
    card: list[str] = Field(default_factory=list, description="What `nvdp info` says of it, line by line.")


class ErrorAnswer(BaseModel):
    """Why a request was not answered."""

    detail: str
