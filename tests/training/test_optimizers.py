"""Adam and NAdam by one kernel against PyTorch's own."""

from copy import deepcopy

import pytest
import torch
from torch import nn

from nvdp.training.optimizers import Adam, NAdam, build_optimizer, clip_gradients

STEPS = 30
OURS = {"adam": (Adam, torch.optim.Adam, {"fused": True}), "nadam": (NAdam, torch.optim.NAdam, {})}


def weights(dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 4), (5,), (2, 1, 3))
    return [nn.Parameter(torch.randn(*shape, generator=generator, dtype=dtype)) for shape in shapes]


def gradients(own, step):
    generator = torch.Generator().manual_seed(step)
    for weight in own:
        size = 10.0 ** (step % 5 - 2)
        weight.grad = size * torch.randn(weight.shape, generator=generator, dtype=weight.dtype)


def trained(optimizer, own, first=0, steps=STEPS):
    for step in range(first, first + steps):
        optimizer.param_groups[0]["lr"] = 0.01 / (1 + step)
        gradients(own, step)
        optimizer.step()
    return own


@pytest.mark.parametrize("name", OURS)
@pytest.mark.parametrize(("dtype", "near"), [(torch.float32, 1e-6), (torch.float64, 1e-14)])
def test_steps_are_those_of_pytorch(name, dtype, near):
    kind, theirs, options = OURS[name]
    ours, reference = weights(dtype), weights(dtype)
    optimizer, other = kind(ours, lr=0.1), theirs(reference, lr=0.1, **options)
    trained(optimizer, ours)
    trained(other, reference)
    assert optimizer._lists is not None  # the kernel was used
    for own, expected in zip(ours, reference, strict=True):
        torch.testing.assert_close(own, expected, rtol=near, atol=near)
        for key, value in other.state[expected].items():
            torch.testing.assert_close(optimizer.state[own][key], value, rtol=10 * near, atol=10 * near)


@pytest.mark.parametrize("name", OURS)
def test_a_state_of_pytorch_is_continued(name):
    kind, theirs, _ = OURS[name]
    reference = weights()
    other = theirs(reference, lr=0.1)
    trained(other, reference)
    ours = [nn.Parameter(weight.detach().clone()) for weight in reference]
    optimizer = kind(ours, lr=0.1)
    optimizer.load_state_dict(deepcopy(other.state_dict()))
    trained(optimizer, ours, STEPS, 5)
    trained(other, reference, STEPS, 5)
    torch.testing.assert_close(ours, reference, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("name", OURS)
def test_a_weight_without_a_gradient_stays_as_it_is(name):
    own = weights()
    optimizer = build_optimizer(name, own, 0.1)
    trained(optimizer, own, steps=3)
    before = own[1].detach().clone()
    gradients(own, 3)
    own[1].grad = None
    optimizer.step()
    assert torch.equal(own[1], before)
    trained(optimizer, own, 4, 2)  # the weights' numbers of steps differ now
    steps = [float(optimizer.state[weight]["step"]) for weight in own]
    assert steps == [6, 5, 6]


@pytest.mark.parametrize("largest", [0.5, 1e9, float("inf")])
def test_clipping_is_that_of_pytorch(largest):
    ours, reference = weights(), weights()
    for own in (ours, reference):
        gradients(own, 3)
    norm = clip_gradients(ours, largest)
    assert norm.item() == nn.utils.clip_grad_norm_(reference, largest).item()
    assert all(torch.equal(a.grad, b.grad) for a, b in zip(ours, reference, strict=True))
