"""`export_onnx`: ``adapt`` and ``predict`` of a regression model as one ONNX graph, for programs without PyTorch.

The graph takes one task in the user's units: a context of any number of points, and any number of inputs to predict at.
"""

import warnings
from copy import deepcopy
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from nvdp.errors import InputError
from nvdp.loading import Predictor
from nvdp.models.base import RegressionModel
from nvdp.models.registry import model_spec
from nvdp.nn.attention import DistanceAttention, plain_attention
from nvdp.posteriors.latent import LatentPosterior
from nvdp.system import write_whole
from nvdp.tasks import PointSet
from nvdp.units import ContextUnits

INPUTS, OUTPUTS = ("context_x", "context_y", "x"), ("mean", "std")
TRACED_POINTS, TRACED_QUERIES = 7, 11  # of the example that is traced; the graph takes any number


class AdaptAndPredict(nn.Module):
    """What ``predictor.adapt(context_x, context_y).predict(x)`` computes, as a function of tensors alone."""

    def __init__(self, predictor: Predictor) -> None:
        super().__init__()
        self.model, self.units = deepcopy(predictor.model), predictor.units
        for part in self.model.modules():
            if isinstance(part, DistanceAttention):
                part.compute = plain_attention  # the faster one asks for values, which a graph cannot

    def forward(
        self, context_x: Float[Tensor, "point x"], context_y: Float[Tensor, "point y"], x: Float[Tensor, "query x"]
    ) -> tuple[Float[Tensor, "query y"], Float[Tensor, "query y"]]:
        """Mean and standard deviation at x."""
        mask = torch.ones_like(context_x[None, :, 0], dtype=torch.bool)
        context = PointSet(context_x[None], context_y[None], mask)
        units = self.units.of_points(context) if isinstance(self.units, ContextUnits) else self.units
        points, _ = units.points_in(context)
        like = next(self.model.parameters())
        posterior = self.model.posterior_given(points.like(like))
        posterior.single = True
        prediction = units.y_out(posterior._without_sampling(units.x_in(x)[None].to(like)))
        return prediction.mean.to(x), prediction.std.to(x)


def export_onnx(predictor: Predictor, path: Path) -> None:
    """Write a regression model as an ONNX file.

    Args:
        predictor: What `nvdp.load` gives; its prediction must have a closed form, without samples.
        path: The file, which holds the weights too.

    The graph has the inputs ``context_x`` (points, x), ``context_y`` (points, y) and ``x`` (queries, x) in float32, and
    the outputs ``mean`` and ``std`` (queries, y), all in the user's units.
    """
    model = predictor.model
    if not isinstance(model, RegressionModel):
        raise InputError(f"only models of regression can be exported; {model.config.name} is a classifier")
    if model_spec(model.config.name).reader == "convolution":
        raise InputError(f"{model.config.name} reads its context by convolutions, which cannot be exported yet")
    if predictor.adjustment is not None:
        raise InputError("this model of nvdp fit is adjusted after the network, which cannot be exported yet")
    widths = model.config.x_dim if not isinstance(predictor.units, ContextUnits) else 1, model.config.y_dim
    generator = torch.Generator().manual_seed(0)
    sizes = ((TRACED_POINTS, widths[0]), (TRACED_POINTS, widths[1]), (TRACED_QUERIES, widths[0]))
    example = tuple(torch.rand(size, generator=generator) for size in sizes)
    traced = AdaptAndPredict(predictor).eval()
    with torch.no_grad():
        posterior = model.posterior_given(PointSet.of(torch.zeros(1, model.config.x_dim), torch.zeros(1, widths[1])))
    if isinstance(posterior, LatentPosterior):
        raise InputError(f"{model.config.name} predicts by sampled functions, which an ONNX graph cannot draw alike")
    missing = [name for name in ("onnx", "onnxscript") if find_spec(name) is None]
    if missing:
        raise InputError(f"nvdp export needs {' and '.join(missing)}: pip install 'nvdp[export]'")
    dynamic = {0: torch.export.Dim.DYNAMIC}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's, about its own parts
        program = torch.onnx.export(
            traced,
            example,
            dynamo=True,
            verbose=False,
            input_names=INPUTS,
            output_names=OUTPUTS,
            dynamic_shapes=(dynamic, dynamic, dynamic),
            custom_translation_table={torch.ops.aten.silu_backward.default: _silu_backward()},
        )
    assert program is not None
    write_whole(path, lambda beside: program.save(str(beside)))


def _silu_backward() -> Any:
    """The derivative of SiLU in ONNX; predictions in closed form need the mean slope of an activation."""
    from onnxscript import opset18

    op: Any = opset18

    def silu_backward(gradient: Any, values: Any) -> Any:
        gate = op.Sigmoid(values)
        one = op.CastLike(op.Constant(value_float=1.0), values)
        slope = op.Mul(gate, op.Add(one, op.Mul(values, op.Sub(one, gate))))
        return op.Mul(gradient, slope)

    return silu_backward
