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
