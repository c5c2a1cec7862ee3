"""Both engines compute the same bound and the same gradients; mixed precision trains."""

import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn.engines import AUTOGRAD, FUSED
from nvdp.objectives import KLScale, variational_prior_bound


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
