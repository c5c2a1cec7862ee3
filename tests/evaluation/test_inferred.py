"""The GP that must infer its kernel: its mixture against one kernel, its functions against its moments."""

import numpy as np
import torch

from nvdp.data.gp import LENGTH_SCALES, NOISE, GPTaskBatch, GPTasks
from nvdp.evaluation.inferred import InferredGP

QUERY = np.linspace(-2, 2, 9)[:, None]


def test_with_one_kernel_it_is_the_oracle_of_the_tasks(monkeypatch):
    tasks = GPTasks().validation_chunk(0, 0).first(1)
    for name in ("length", "signal"):
        value = float(getattr(tasks, f"{name}_scale")[0])
        monkeypatch.setattr(f"nvdp.evaluation.inferred.{name.upper()}_SCALES", (value, value))
    is_context = tasks.is_context[0]
    x, y = (part[0][is_context].double().numpy() for part in (tasks.x, tasks.y))
    posterior = InferredGP(cells=(1, 1)).adapt(x, y)
    answer, oracle = posterior.predict(tasks.x[0].double().numpy()), tasks.oracle()
    np.testing.assert_allclose(answer.mean, oracle.mean[0], atol=1e-6)
    np.testing.assert_allclose(answer.std, oracle.std[0], atol=1e-6)


def test_many_points_tell_the_kernel_that_drew_them():
    x = torch.linspace(-2, 2, 60, dtype=torch.float64)
    everything, points = torch.ones(1, 60, dtype=torch.bool), x[None, :, None]
    scales = torch.tensor([0.25], dtype=torch.float64), torch.tensor([0.9], dtype=torch.float64)
    covariance = GPTaskBatch(points, points, everything, everything, *scales).kernel(points, points)[0]
    covariance.diagonal().add_(NOISE**2)
    noise = torch.randn(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = (torch.linalg.cholesky(covariance) @ noise)[:, 0]
    by_length = torch.logsumexp(InferredGP().given(x, y, x[:1]).log_weight, 1)
    low, high = LENGTH_SCALES
    likeliest = low + (high - low) * (int(by_length.argmax()) + 0.5) / len(by_length)
    assert abs(likeliest - 0.25) < 0.07


def test_sampled_functions_have_the_mixtures_mean_and_deviation():
    x, y = np.array([[-1.0], [0.5]]), np.array([[0.5], [-0.5]])
    posterior = InferredGP().adapt(x, y)
    moments, sampled = posterior.predict(QUERY), posterior.predict(QUERY, samples=4000)
    np.testing.assert_allclose(sampled.mean, moments.mean, atol=0.06)
    np.testing.assert_allclose(sampled.std, moments.std, atol=0.06)


def test_functions_pass_through_points_whatever_is_asked_beside():
    x, y = np.array([[0.25]]), np.array([[0.75]])
    repeated = np.full((50, 1), 0.25)  # as singular as a covariance can be
    functions = InferredGP().adapt(x, y).predict(repeated, 5, 3).functions
    np.testing.assert_allclose(functions, 0.75, atol=0.15)
