"""Requests and answers of the API; sizes and ranges are checked here, against `limits`."""

from typing import Annotated

import numpy as np
from jaxtyping import Float
from pydantic import BaseModel, ConfigDict, FailFast, Field

from nvdp.errors import InputError
from nvdp.web import limits

Number = Annotated[float, Field(ge=-limits.LARGEST_NUMBER, le=limits.LARGEST_NUMBER, allow_inf_nan=False)]
# The first fault ends the check: a long list of bad numbers must not become a long list of faults.
Point = Annotated[list[Number], FailFast(), Field(min_length=1, max_length=limits.MOST_FEATURES)]
Context = Annotated[list[Point], FailFast(), Field(max_length=limits.MOST_CONTEXT)]
Query = Annotated[list[Point], FailFast(), Field(min_length=1, max_length=limits.MOST_QUERY)]


class AdaptRequest(BaseModel):
    """A context, and where to predict. An empty context asks for the prior; 0 samples for the mean parameters."""

    model_config = ConfigDict(
        strict=True,
        extra="forbid",
        json_schema_extra={
            "example": {"model": "gp", "x": [[-1.0], [0.5]], "y": [[0.3], [-0.2]], "query": [[0.0]], "samples": 8}
        },
    )

    model: str = Field(max_length=limits.LONGEST_NAME, description="A name from /api/models.")
    x: Context = Field(description="Inputs of the context, a list of numbers for each point.")
    y: Context = Field(description="Outputs of the context, as many as there are inputs.")
    query: Query = Field(description="Where to predict, or the candidates to choose from.")
    samples: int = Field(default=0, ge=0, le=limits.MOST_SAMPLES, description="Functions to sample.")
    seed: int = Field(default=0, ge=0, le=limits.LARGEST_SEED, description="The same seed, the same functions.")

    def arrays(
        self, x_dim: int, y_dim: int, most_context: int
    ) -> tuple[Float[np.ndarray, "context x"], Float[np.ndarray, "context y"], Float[np.ndarray, "query x"]]:
        """x, y and query as matrices of the model's widths."""
        if len(self.x) != len(self.y):
            raise InputError(f"x holds {len(self.x)} points and y {len(self.y)}; expected as many of both")
        if len(self.x) > most_context:
            raise InputError(f"x holds {len(self.x)} points; '{self.model}' takes at most {most_context}")
        if self.samples * len(self.query) > limits.MOST_SAMPLED:
            raise InputError(
                f"{self.samples} samples at {len(self.query)} points are {self.samples * len(self.query)} values; "
                f"expected at most {limits.MOST_SAMPLED}"
            )
        return _matrix(self.x, x_dim, "x"), _matrix(self.y, y_dim, "y"), _matrix(self.query, x_dim, "query")


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
    std: list[list[float]] = Field(description="(query, y): noise and disagreement of the functions together.")
    samples: list[list[list[float]]] = Field(description="(sample, query, y): functions, without observation noise.")
    rates: list[LayerHeat] | None = Field(description="Dropout rates of every layer; null for models without.")


class SuggestAnswer(BaseModel):
    """The query point of the largest predictive standard deviation."""

    index: int
    x: list[float]
    mean: list[float]
    std: list[float]


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
    image_size: int | None = Field(default=None, description="Rows and columns of its pictures.")
    most_context: int
    has_rates: bool
    pretrained: bool = Field(default=False, description="Whether it comes with the package.")
    way: int | None = Field(default=None, description="The number of classes that it needs; null for any number.")
    columns: TableColumns | None = Field(default=None, description="Of the table it was fitted to by `nvdp fit`.")


class Refusal(BaseModel):
    """Why a request was not answered."""

    detail: str
