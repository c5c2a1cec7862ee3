"""`export_onnx`: ``adapt`` and ``predict`` of a model as one ONNX graph, for programs without PyTorch.

The graph takes one task in the user's units: a context of any number of points, and any number of inputs to predict at.
It is traced from the code that predicts in PyTorch.
"""

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.loading import Predictor, Widths
from nvdp.models.base import Classifier, FeatureClassifier
from nvdp.nn.attention import DistanceAttention, plain_attention
from nvdp.posteriors.adjusted import AdjustedPosterior
from nvdp.system import write_whole
from nvdp.tasks import PointSet
from nvdp.units import ContextUnits

INPUTS = ("context_x", "context_y", "x")
TRACED_POINTS, TRACED_QUERIES = 7, 11  # of the example that is traced; the graph takes any number


class AdaptAndPredict(nn.Module):
    """What ``predictor.adapt(context_x, context_y).predict(x)`` computes, as a function of tensors alone."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model, self.units, self.adjustment = deepcopy(predictor.model), predictor.units, predictor.adjustment
        for part in self.model.modules():
            if isinstance(part, DistanceAttention):
                part.compute = plain_attention  # the faster one asks for values, which a graph cannot

    def forward(
        self, context_x: Float[Tensor, "point x"], context_y: Tensor, x: Float[Tensor, "query x"]
    ) -> tuple[Tensor, ...]:
        """Mean and standard deviation at x; of a classifier the probabilities of the classes."""
        mask = torch.ones_like(context_x[None, :, 0], dtype=torch.bool)
        context = PointSet(context_x[None], context_y[None], mask)
        if isinstance(self.model, Classifier):
            return self._classified(context, x[None])
        return self._predicted(context, x[None])

    def _classified(self, context: PointSet, x: Float[Tensor, "1 query x"]) -> tuple[Tensor]:
        posterior = self.model.posterior_given(replace(context, x=self.model.embed(context.x)))
        return (posterior.closed_form(self.model.embed(x)).probabilities[0],)

    def _predicted(self, context: PointSet, x: Float[Tensor, "1 query x"]) -> tuple[Tensor, Tensor]:
        units = self.units.of_points(context, single=False) if isinstance(self.units, ContextUnits) else self.units
        points, _ = units.points_in(context)
        like = next(self.model.parameters())
        # Below `adapt` and `predict`, which look at values to refuse bad ones.
        found: Any
        if (adjustment := self.adjustment) is None:
            found = self.model.posterior_given(points.like(like))
        else:
            network = self.model.posterior_given(adjustment.shown(points).like(like))
            found = AdjustedPosterior(
                self.model, network, adjustment, counts=points.mask.sum(1), points=points, single=False
            )
        at = units.x_in(x)
        prediction = units.y_out(found.closed_form(at if adjustment else at.to(like)))
        return prediction.mean[0].to(x), prediction.std[0].to(x)


def export_onnx(predictor: Predictor, path: Path, inputs: int | None = None, classes: int | None = None) -> None:
    """Write a model as an ONNX file.

    Args:
        predictor: What `nvdp.load` gives.
        path: The file, which holds the weights too.
        inputs: Numbers of an input x, for a model that takes several widths, like ``general``; by default 1.
        classes: Of a classifier; by default as many as it was trained with.

    The graph has the inputs ``context_x`` (points, x), ``context_y`` (points, y) and ``x`` (queries, x) in float32, and
    the outputs ``mean`` and ``std`` (queries, y), all in the user's units. Labels of a classifier are one-hot (points,
    classes), and its output is ``probabilities`` (queries, classes).
    """
    model = predictor.model
    if isinstance(model, Classifier) and not isinstance(model, FeatureClassifier):
        raise InputError(f"{model.config.name} adapts by gradients, which an ONNX graph cannot take")
    if isinstance(model, Classifier) and model.statistics == "batch":
        raise InputError("batch norm with statistics of the batch cannot be exported; use those of training: running")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise InputError(f"nvdp export needs {' and '.join(missing)}: pip install 'nvdp[export]'")
    from nvdp.export.operators import TRANSLATIONS

    example, traced = _example(predictor, inputs, classes), AdaptAndPredict(predictor).eval()
    outputs = ("probabilities",) if isinstance(model, Classifier) else ("mean", "std")
    dynamic = {0: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings(), _without_log_lines(), torch.no_grad():
        warnings.simplefilter("ignore")  # PyTorch's, about its own parts
        traced(*example)  # fixed noise is drawn now, and is a constant of the graph
        program = torch.onnx.export(
            traced,
            example,
            dynamo=True,
            verbose=False,
            input_names=INPUTS,
            output_names=outputs,
            dynamic_shapes=(dynamic, dynamic, dynamic),
            custom_translation_table=TRANSLATIONS,
        )
    assert program is not None
    for node in program.model.graph:
        for value in node.outputs:
            if value.name in outputs and not value.is_graph_output():
                value.name = f"inner_{value.name}"  # PyTorch names a mean "mean"
    write_whole(path, lambda beside: program.save(str(beside)))


def _example(predictor: Predictor, inputs: int | None, classes: int | None) -> tuple[Tensor, Tensor, Tensor]:
    """A context and queries of the widths that the graph will have."""
    config, generator = predictor.model.config, torch.Generator().manual_seed(0)
    widths = predictor.widths if predictor.kind == "regression" else Widths(range(config.x_dim, config.x_dim + 1), 0)
    wide = inputs or widths.x[0]
    if wide not in widths.x:
        raise InputError(f"inputs is {wide}; this {config.name} model takes {widths.x[0]} to {widths.x[-1]}")
    if predictor.kind == "classification":
        support = torch.eye(classes or config.num_classes).repeat(2, 1)
        x, queries = (torch.rand(size, wide, generator=generator) for size in (len(support), TRACED_QUERIES))
        return x, support, queries
    if classes is not None:
        raise InputError(f"classes is {classes}; {config.name} is a regression model")
    sizes = ((TRACED_POINTS, wide), (TRACED_POINTS, widths.y), (TRACED_QUERIES, wide))
    first, second, third = (torch.rand(size, generator=generator) for size in sizes)
    return first, second, third


@contextmanager
def _without_log_lines() -> Iterator[None]:
    """PyTorch logs a line for each operator of torchvision, and onnx_ir one for each empty list; neither is needed."""
    logs = [logging.getLogger(name) for name in ("torch.onnx._internal.exporter._registration", "onnx_ir")]
    before = [log.level for log in logs]
    for log in logs:
        log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        for log, level in zip(logs, before, strict=True):
            log.setLevel(level)
