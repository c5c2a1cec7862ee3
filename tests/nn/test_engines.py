"""Both engines compute the same bound and the same gradients; mixed precision trains."""

import pytest
import torch
from torch.distributions import kl_divergence

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.loading import load
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn.engines import AUTOGRAD, FUSED
from nvdp.objectives import KLScale, variational_prior_bound
from nvdp.tasks import TaskBatch


def bound_and_gradients(model, engine, dtype):
    model.engine = engine
    model.zero_grad()
    tasks = GPTasks().training_batch(0, 0, 3).to(dtype)
    bound = variational_prior_bound(model, tasks, KLScale("elbo", 0.1), torch.Generator().manual_seed(1))
    bound.value.backward()
    return bound.value.item(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("bounds", ["affine", "clip"])
@pytest.mark.parametrize("limit", [2**24, 1])  # 1: the low-rank way for every layer
def test_engines_agree_on_the_bound_and_its_gradients(monkeypatch, dtype, tolerance, bounds, limit):
    monkeypatch.setattr("nvdp.nn.engines.GRID_LIMIT", limit)
    model = build_model(ModelConfig("nvdp", width=16, rate_bounds=bounds)).to(dtype)
    value, gradients = bound_and_gradients(model, AUTOGRAD, dtype)
    fused_value, fused_gradients = bound_and_gradients(model, FUSED, dtype)
    assert fused_value == pytest.approx(value, rel=tolerance)
    for plain, fused in zip(gradients, fused_gradients, strict=True):
        torch.testing.assert_close(fused, plain, rtol=tolerance, atol=tolerance * float(plain.abs().max()))


@pytest.mark.parametrize("points", [1, 6])
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "silu"])
def test_engines_agree_for_narrow_networks_and_single_points(points, width, activation):
    model = build_model(ModelConfig("nvdp", width=width, layers=2, rate_width=8, activation=activation)).double()
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 3, points, 1, generator=generator, dtype=torch.float64)
    tasks, bounds = TaskBatch.first_points_as_context(x, y, 1), []
    for engine in (AUTOGRAD, FUSED):
        model.engine = engine
        model.zero_grad()
        bound = variational_prior_bound(model, tasks, KLScale("elbo", 0.1), torch.Generator().manual_seed(1)).value
        bound.backward()
        bounds.append(torch.cat([bound[None], *(parameter.grad.flatten() for parameter in model.parameters())]))
    torch.testing.assert_close(bounds[1], bounds[0], rtol=1e-8, atol=1e-10)


def test_the_kl_of_posteriors_of_unlike_tasks_is_refused_with_their_shapes():
    model = build_model(ModelConfig("nvdp", width=4, layers=2, rate_width=4))
    one, five = (model.adapt(torch.zeros(tasks, 2, 1), torch.zeros(tasks, 2, 1)) for tasks in (1, 5))
    with pytest.raises(InputError, match=r"\(5, \d+\) and \(1, \d+\)"):
        kl_divergence(five, one)


def test_rates_given_layer_by_layer_have_the_same_kl():
    model = build_model(ModelConfig("nvdp", width=4, layers=2, rate_width=4))
    q, p = (model.adapt(torch.randn(3, 2, 1), torch.randn(3, 2, 1)).rates for _ in range(2))
    torch.testing.assert_close(FUSED.kl(list(q), list(p)), FUSED.kl(q, p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_prediction_under_autocast_is_that_without_it_up_to_the_precision(dtype):
    model = load("gp-nvdp").to(dtype)
    x, y = torch.linspace(-2, 2, 9, dtype=dtype)[:, None], torch.linspace(-1, 1, 9, dtype=dtype)[:, None]
    expected = model.adapt(x, y).predict(x)
    with torch.autocast("cpu", torch.bfloat16):
        actual = model.adapt(x, y).predict(x)
    assert actual.mean.dtype == dtype
    tolerance = 0.1 if dtype == torch.float32 else 1e-9  # autocast leaves float64 alone
    torch.testing.assert_close(actual.mean, expected.mean, atol=tolerance, rtol=0)
    torch.testing.assert_close(actual.std, expected.std, atol=tolerance, rtol=0)


def test_a_step_in_mixed_precision_has_finite_gradients():
    model = build_model(ModelConfig("nvdp", width=16))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bound = variational_prior_bound(model, GPTasks().training_batch(0, 0, 3), KLScale("elbo", 0.1))
    bound.value.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("setting", [{"rate_form": "full"}, {"weight_noise": "weights"}])
def test_models_for_comparison_train_by_every_engine(setting):
    model = build_model(ModelConfig("nvdp", width=8, layers=2, rate_width=8, **setting))
    value, gradients = bound_and_gradients(model, AUTOGRAD, torch.float32)
    fused_value, fused_gradients = bound_and_gradients(model, FUSED, torch.float32)
    assert fused_value == pytest.approx(value, rel=1e-4)
    for plain, fused in zip(gradients, fused_gradients, strict=True):
        torch.testing.assert_close(fused, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0


def test_noise_on_weights_is_one_function_where_local_noise_is_none():
    x = torch.zeros(1, 6, 1)  # the same place six times: a function has one value there
    for noise, spread in (("weights", 0.0), ("local", 0.01)):
        torch.manual_seed(0)
        posterior = build_model(ModelConfig("nvdp", weight_noise=noise)).adapt(x[0], x[0])
        outputs = posterior.training_outputs(x, torch.Generator().manual_seed(0))
        assert (outputs.std(1).max() > spread) == (noise == "local")
