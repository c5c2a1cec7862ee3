"""The compiled work on grids against PyTorch's own calls, piece by piece and in a whole training step."""

import inspect
import os

import pytest
import torch

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn import compiled_grids
from nvdp.nn.grids import PLAIN, Grids
from nvdp.objectives import KLScale
from nvdp.randomness import derived_generator
from nvdp.training.loop import TrainingStep, check_engine, has_compiler

FLOOR = 0.01
needs_compiler = pytest.mark.skipif(not has_compiler() and "NVDP_NO_SKIPS" not in os.environ, reason="no C++ compiler")


@pytest.fixture
def as_written(monkeypatch: pytest.MonkeyPatch) -> Grids:
    """The same formulas for arrays of any size, not compiled."""
    monkeypatch.setattr(compiled_grids, "SMALLEST", 0)
    monkeypatch.setattr(torch, "compile", lambda work, **options: work)
    return compiled_grids.compiled_grids()


def experts(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    parts = torch.sigmoid(3 * torch.randn(3, 9, generator=generator, dtype=torch.float64)).split([5, 4], dim=-1)
    return parts[0], parts[1]


def test_weights_and_their_gradients_are_those_of_plain_calls(as_written):
    (u, b), theta = experts(1), torch.randn(5, 4, dtype=torch.float64)
    u = u * (2 * FLOOR - 1)
    mean, variance = as_written.weights(theta, u, b, FLOOR)
    torch.testing.assert_close((mean, variance), PLAIN.weights(theta, u, b, FLOOR))
    incoming = torch.randn(2, 3, 5, 4, dtype=torch.float64)
    expected = PLAIN.gradients(theta, u, b, FLOOR, mean.clone(), *incoming.clone())
    torch.testing.assert_close(as_written.gradients(theta, u, b, FLOOR, mean, *incoming), expected)


@pytest.mark.parametrize("other", [1, 2])
def test_the_kl_and_its_gradients_are_those_of_plain_calls(as_written, other):
    arguments = (*(torch.cat(sides) for sides in zip(experts(1), experts(other), strict=True)), FLOOR, True)
    torch.testing.assert_close(as_written.kl(*arguments), PLAIN.kl(*arguments), atol=1e-9, rtol=1e-9)


@needs_compiler
@pytest.mark.filterwarnings("ignore::UserWarning")  # of the compiler, while it reads tensors that require gradients
def test_a_compiled_step_has_the_bound_and_the_gradients_of_the_others(monkeypatch):
    monkeypatch.setattr(compiled_grids, "SMALLEST", 2**8)
    for name in ("_rates", "_weights", "_gradients", "_kl"):  # the compiler does not see through checks of shapes
        monkeypatch.setattr(compiled_grids, name, inspect.unwrap(getattr(compiled_grids, name)))
    config = ModelConfig("nvdp", width=16, layers=2, representation=8, encoder_layers=2, rate_width=8, rate_layers=1)
    tasks = GPTasks().training_batch(0, 0, 4)
    bounds, gradients = [], []
    for engine in ("fused", "compiled", "autograd"):
        torch.manual_seed(0)
        model = build_model(config)
        step = TrainingStep(model, "variational-prior", KLScale(), engine)
        bound = step(tasks.x, tasks.y, tasks.is_context, tasks.mask, derived_generator(0, "noise"))["bound"]
        bound.backward()
        bounds.append(bound.detach())
        gradients.append({name: parameter.grad for name, parameter in model.named_parameters()})
    for bound, gradient in zip(bounds[1:], gradients[1:], strict=True):
        torch.testing.assert_close(bound, bounds[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(gradient, gradients[0], rtol=1e-3, atol=1e-5)


def test_without_a_compiler_the_engine_is_refused_with_another_to_take(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(InputError, match=r"needs a C\+\+ compiler.*take 'fused'"):
        check_engine("compiled")
