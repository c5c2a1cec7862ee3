"""Panels of figures, computed from models and tasks."""

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.data.gp import DOMAIN, LENGTH_SCALES, NOISE, SIGNAL_SCALES, GPTaskBatch, rbf_kernel
from nvdp.data.trigonometry import FUNCTIONS, TrigonometryTasks
from nvdp.errors import InputError, unknown_name
from nvdp.models.base import MetaModel
from nvdp.plots.functions import FunctionPanel, RatesPanel, SharedWeightsPanel
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

FUNCTION_GRID, FIVE = 200, 5
BAND_SAMPLES = 100  # a band needs more functions than a figure shows
CURVES_OF_EACH_KIND = 4
JITTER = 1e-8  # relative to σ_f²: a standard deviation of 1e-4 σ_f


def five_point_task(seed: int) -> GPTaskBatch:
    """One function drawn from a GP on a 200-point grid of [−2, 2], with five noisy context points.

    Args:
        seed: Fixes function and context.

    Returns:
        A batch of one task. Its targets carry no noise, so they show the true function.

    >>> task = five_point_task(seed=0)
    >>> task.x.shape, task.is_context.sum().item()
    (torch.Size([1, 200, 1]), 5)
    """
    generator = derived_generator(seed, "five-point task")
    length_scale, signal_scale = (
        low + (high - low) * torch.rand(1, generator=generator, dtype=torch.float64)
        for low, high in (LENGTH_SCALES, SIGNAL_SCALES)
    )
    x = torch.linspace(*DOMAIN, FUNCTION_GRID, dtype=torch.float64)[None, :, None]
    is_context = torch.zeros(1, FUNCTION_GRID, dtype=torch.bool)
    inner = torch.randperm(FUNCTION_GRID - 2, generator=generator) + 1
    is_context[0, inner[:FIVE]] = True
    white, noise = torch.randn(2, 1, FUNCTION_GRID, 1, generator=generator, dtype=torch.float64)
    y = _root(rbf_kernel(x, x, length_scale, signal_scale), signal_scale) @ white
    y = y + NOISE * noise * is_context[..., None]
    mask = torch.ones_like(is_context)
    return GPTaskBatch(x.float(), y.float(), is_context, mask, length_scale, signal_scale)


def gp_function_panel(
    model: MetaModel, title: str, row: str, tasks: GPTaskBatch, samples: int = 10, seed: int = 0
) -> FunctionPanel:
    """Posterior of a model for one task.

    Args:
        model: The model.
        title: Column of the panel.
        row: Row of the panel.
        tasks: A batch of one task.
        samples: Sampled functions to show.
        seed: Of the sampled functions.

    Returns:
        The panel. A model with a fixed variance has no standard deviation.
    """
    prediction = model.adapt(tasks.context).predict(tasks.x, max(samples, BAND_SAMPLES), seed)
    std = prediction.std if model.config.likelihood.variance == "learned" else None
    return _panel(title, row, tasks, prediction.functions[:samples, 0, :, 0], prediction.mean, std)


def oracle_panel(
    tasks: GPTaskBatch, row: str, title: str = "exact GP", samples: int = 10, seed: int = 0
) -> FunctionPanel:
    """Exact GP posterior of one task under its true kernel.

    Args:
        tasks: A batch of one task.
        row: Row of the panel.
        title: Column of the panel.
        samples: Sampled functions to show.
        seed: Of the sampled functions.

    Returns:
        The panel.
    """
    prediction = tasks.oracle()
    return _panel(title, row, tasks, exact_functions(tasks, samples, seed), prediction.mean, prediction.std)


def exact_functions(tasks: GPTaskBatch, samples: int, seed: int) -> Float[Tensor, "sample point"]:
    """Functions drawn from the exact joint posterior of one task.

    N(k_x C⁻¹ y, k_xx − k_x C⁻¹ k_xᵀ) with C = k + σ²I on the context.
    """
    x, context = tasks.x.double(), tasks.is_context[0]
    x_context, y_context = x[:, context], tasks.y.double()[:, context]
    covariance = tasks.kernel(x_context, x_context) + NOISE**2 * torch.eye(int(context.sum()), dtype=x.dtype)
    factor = torch.linalg.cholesky(covariance)
    cross = tasks.kernel(x_context, x)  # (1, context, point)
    whitened = torch.linalg.solve_triangular(factor, cross, upper=False)
    mean = whitened.mT @ torch.linalg.solve_triangular(factor, y_context, upper=False)
    root = _root(tasks.kernel(x, x) - whitened.mT @ whitened, tasks.signal_scale)
    generator = derived_generator(seed, "exact functions")
    white = torch.randn(x.shape[1], samples, generator=generator, dtype=x.dtype)
    return (mean + root @ white)[0].mT


def rates_panel(model: MetaModel, kind: str, samples: int = 10, seed: int = 0) -> RatesPanel:
    """Functions and keep probabilities for a task with four context points.

    Args:
        model: An NVDP trained on the trigonometry tasks.
        kind: "sine", "cosine" or "tanh".
        samples: Sampled functions to show.
        seed: Of the task and the sampled functions.

    Returns:
        The panel.
    """
    if kind not in FUNCTIONS:
        raise unknown_name("function", kind, FUNCTIONS)
    chunk = TrigonometryTasks().validation_chunk(seed, 0)
    index = int((chunk.kind == list(FUNCTIONS).index(kind)).nonzero()[0])
    task = TaskBatch(*(part[index : index + 1] for part in (chunk.x, chunk.y, chunk.is_context, chunk.mask)))
    posterior = _dropout_posterior(model, task)
    prediction = posterior.predict(task.x, max(samples, BAND_SAMPLES), seed)
    function = _panel(kind, kind, task, prediction.functions[:samples, 0, :, 0], prediction.mean, None)
    return RatesPanel(function, tuple(_array(1 - layer.weight()[0]) for layer in posterior.rates))


def shared_weights_panel(model: MetaModel, seed: int = 0) -> SharedWeightsPanel:
    """Example curves of each kind, and the weights θ of a model trained on them.

    Args:
        model: An NVDP trained on the trigonometry tasks.
        seed: Of the curves.

    Returns:
        The panel.
    """
    chunk = TrigonometryTasks().validation_chunk(seed, 0)
    network = _dropout_posterior(model, chunk).network
    theta = tuple(_array(network.get_parameter(f"layers.{index}.weight")) for index in range(len(network.layer_shapes)))
    curves = {
        kind: _array(chunk.y[chunk.kind == index, :, 0][:CURVES_OF_EACH_KIND]) for index, kind in enumerate(FUNCTIONS)
    }
    return SharedWeightsPanel(_array(chunk.x[0, :, 0]), curves, theta)


def _dropout_posterior(model: MetaModel, tasks: TaskBatch) -> DropoutPosterior:
    posterior = model.adapt(tasks.context)
    if not isinstance(posterior, DropoutPosterior):
        raise InputError(f"a {model.config.name} model has no dropout rates; expected an nvdp model")
    return posterior


def _panel(
    title: str, row: str, tasks: TaskBatch, functions: Tensor, mean: Tensor, std: Tensor | None
) -> FunctionPanel:
    if len(tasks) != 1:
        raise InputError(f"a panel shows one task; got {len(tasks)}")
    x, y, context = _array(tasks.x[0, :, 0]), _array(tasks.y[0, :, 0]), tasks.is_context[0].numpy()
    if (np.diff(x) <= 0).any():
        raise InputError("a panel draws lines; x must be in ascending order")
    # The context of a GP task carries noise: draw the true function without it.
    truth = np.interp(x, x[~context], y[~context]) if isinstance(tasks, GPTaskBatch) else y
    return FunctionPanel(
        title,
        row,
        x,
        truth,
        x[context],
        y[context],
        _array(functions),
        _array(mean[0, :, 0]),
        None if std is None else _array(std[0, :, 0]),
    )


def _array(values: Tensor) -> Float[np.ndarray, "..."]:
    return values.detach().double().cpu().numpy()


def _root(covariance: Tensor, signal_scale: Tensor) -> Tensor:
    jitter = JITTER * signal_scale.square()[:, None, None]
    identity = torch.eye(covariance.shape[-1], dtype=covariance.dtype)
    return torch.linalg.cholesky(covariance + jitter * identity)
