"""`export_onnx`: ``adapt`` and ``predict`` of a model as one ONNX graph, for programs without PyTorch.

The graph takes one task in the user's units: a context of any number of points, and any number of inputs to predict at.
It is traced from the code that predicts in PyTorch.
"""

import warnings
from copy import deepcopy
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from nvdp.errors import InputError
from nvdp.loading import Predictor, Widths
from nvdp.models.base import Classifier, FeatureClassifier
from nvdp.models.hierarchical_gp import ConditionedGP, HierarchicalGP, Observations
from nvdp.nn.attention import DistanceAttention, plain_attention
from nvdp.posteriors.adjusted import AdjustedPosterior, Adjustment
from nvdp.system import write_whole
from nvdp.tasks import PointSet
from nvdp.units import ContextUnits

INPUTS = ("context_x", "context_y", "x")
TRACED_POINTS, TRACED_QUERIES = 7, 11  # of the example that is traced; the graph takes any number


class ProcessInGraph(HierarchicalGP):
    """A hierarchical GP that takes all outputs of a context as known: sizes must not depend on values."""

    def conditioned(self, points: PointSet) -> list[ConditionedGP]:
        """The process after the one context of a graph."""
        outputs, y = self.kernel.outputs, points.y.double().flatten(1)
        x = points.x.double().repeat_interleave(outputs, 1)
        output = torch.arange(outputs).repeat(1, points.x.shape[1])
        return [ConditionedGP(self, Observations(x, output, y, torch.ones_like(y, dtype=torch.bool)))]


class LinearAlgebraInGraph(TorchFunctionMode):
    """Distances by plain arithmetic; Cholesky factors and what is solved with them by two loops of `operators`."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """The same function, or one that ONNX can have."""
        if func is torch.linalg.cholesky:
            return torch.linalg.cholesky_ex(*args).L  # without a check, which needs values
        if func is torch.cdist:
            return (args[0][..., :, None, :] - args[1][..., None, :, :]).square().sum(-1).sqrt()
        if func in (torch.cholesky_solve, torch.cholesky_inverse):
            factor = args[-1]
            unit = torch.eye(factor.shape[-1], dtype=factor.dtype)
            inverse = torch.linalg.solve_triangular(factor, unit.expand(factor.shape), upper=False)
            right = inverse if func is torch.cholesky_inverse else inverse @ args[0]
            return inverse.mT @ right
        return func(*args, **(kwargs or {}))


class AdaptAndPredict(nn.Module):
    """What ``predictor.adapt(context_x, context_y).predict(x)`` computes, as a function of tensors alone."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model, self.units, self.adjustment = deepcopy(predictor.model), predictor.units, predictor.adjustment
        if self.adjustment is not None and self.adjustment.process is not None:
            process = self.adjustment.process
            self.adjustment = replace(self.adjustment, process=ProcessInGraph(**vars(process)))
        for part in self.model.modules():
            if isinstance(part, DistanceAttention):
                part.compute = plain_attention  # the faster one asks for values, which a graph cannot

    def forward(
        self, context_x: Float[Tensor, "point x"], context_y: Tensor, x: Float[Tensor, "query x"]
    ) -> tuple[Tensor, ...]:
        """Mean and standard deviation at x; of a classifier the probabilities of the classes."""
        mask = torch.ones_like(context_x[None, :, 0], dtype=torch.bool)
        with LinearAlgebraInGraph():
            if isinstance(self.model, Classifier):
                return self._classified(PointSet(context_x[None], context_y[None], mask), x[None])
            return self._predicted(PointSet(context_x[None], context_y[None], mask), x[None])

    def _classified(self, context: PointSet, x: Float[Tensor, "1 query x"]) -> tuple[Tensor]:
        posterior = self.model.posterior_given(replace(context, x=self.model.embed(context.x)))
        return (posterior._without_sampling(self.model.embed(x)).probabilities[0],)

    def _predicted(self, context: PointSet, x: Float[Tensor, "1 query x"]) -> tuple[Tensor, Tensor]:
        units = self.units.of_points(context, single=False) if isinstance(self.units, ContextUnits) else self.units
        points, _ = units.points_in(context)
        adjustment, like = self.adjustment or Adjustment(), next(self.model.parameters())
        seen = points if adjustment.process is None else adjustment.process.residual_context(points)
        network = self.model.posterior_given(seen.like(like))
        posterior = AdjustedPosterior(self.model, network, adjustment, points.mask.sum(1), points, single=False)
        # Below `predict`, which looks at values to refuse bad ones.
        answer = posterior._answer(units.x_in(x), lambda network, at: network._without_sampling(at.to(like)))
        prediction = units.y_out(answer)
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
    from nvdp.export.operators import TRANSLATIONS  # needs onnxscript

    example, traced = _example(predictor, inputs, classes), AdaptAndPredict(predictor).eval()
    outputs = ("probabilities",) if isinstance(model, Classifier) else ("mean", "std")
    dynamic = {0: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings(), torch.no_grad():
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
