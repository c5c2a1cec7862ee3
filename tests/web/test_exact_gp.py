"""The exact GP of the page: its mixture against one kernel's closed form, and its functions against its moments."""

import numpy as np
import torch

from nvdp.data.gp import NOISE, GPTaskBatch, GPTasks
from nvdp.web.exact_gp import ExactGP

QUERY = np.linspace(-2, 2, 9)[:, None]


def test_with_one_kernel_it_is_the_oracle_of_the_tasks():
    tasks = GPTasks().validation_chunk(0, 0).first(1)
    exact = ExactGP()
    exact.length_scale, exact.signal_scale = tasks.length_scale, tasks.signal_scale
    is_context = tasks.is_context[0]
    x, y = (part[0][is_context].double().numpy() for part in (tasks.x, tasks.y))
    answer, oracle = exact.adapt(x, y).predict(tasks.x[0].double().numpy()), tasks.oracle()
    np.testing.assert_allclose(answer.mean, oracle.mean[0], atol=1e-6)
    np.testing.assert_allclose(answer.std, oracle.std[0], atol=1e-6)


def test_many_points_tell_the_kernel_that_drew_them():
    exact = ExactGP()
    kernel = 2 * 6 + 5  # a short length scale and the largest signal
    x = torch.linspace(-2, 2, 60, dtype=torch.float64)[None, :, None]
    everything = torch.ones(1, 60, dtype=torch.bool)
    scales = exact.length_scale[[kernel]], exact.signal_scale[[kernel]]
    covariance = GPTaskBatch(x, x, everything, everything, *scales).kernel(x, x)[0]
    covariance.diagonal().add_(NOISE**2)
    noise = torch.randn(60, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    y = torch.linalg.cholesky(covariance) @ noise
    likeliest = float(exact.length_scale[exact.adapt(x[0].numpy(), y.numpy()).log_evidence.argmax()])
    assert abs(likeliest - float(exact.length_scale[kernel])) < 0.07


def test_sampled_functions_have_the_mixtures_mean_and_deviation():
    x, y = np.array([[-1.0], [0.5]]), np.array([[0.5], [-0.5]])
    posterior = ExactGP().adapt(x, y)
    moments, sampled = posterior.predict(QUERY), posterior.predict(QUERY, samples=4000)
    np.testing.assert_allclose(sampled.mean, moments.mean, atol=0.06)
    np.testing.assert_allclose(sampled.std, moments.std, atol=0.06)


def test_functions_pass_through_points_whatever_is_asked_beside():
    x, y = np.array([[0.25]]), np.array([[0.75]])
    repeated = np.full((50, 1), 0.25)  # as singular as a covariance can be
    functions = ExactGP().adapt(x, y).predict(repeated, 5, 3).functions
    np.testing.assert_allclose(functions, 0.75, atol=0.15)
