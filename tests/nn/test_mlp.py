import math
from functools import partial

import pytest
import torch
from torch import nn

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.nn.mlp import ACTIVATIONS, MLP, ConditionedMLP, InputScale, StackedMLP, activated, activation_named


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_an_activation_in_place_has_the_values_and_gradients_of_the_plain_one(name):
    activation, values = activation_named(name), torch.linspace(-3, 3, 24).reshape(4, 6)
    weight = torch.linspace(-1, 1, 36).reshape(6, 6).requires_grad_()
    results = []
    for apply in (activation, partial(activated, activation)):
        weight.grad = None
        out = apply(values @ weight)
        out.square().sum().backward()
        results.append((out.detach(), weight.grad))
    torch.testing.assert_close(results[1], results[0])
    with torch.no_grad():
        torch.testing.assert_close(activated(activation, values @ weight), results[0][0])


def own_network(stack, copy, activation):
    """The MLP that one copy of a stack stands for."""
    inputs, width = stack.weights[0].shape[1:]
    network = MLP(inputs, width, len(stack.weights), activation, residual=stack.residual).double()
    with torch.no_grad():
        for linear, weight, bias in zip(network.linears, stack.weights, stack.biases, strict=True):
            linear.weight.copy_(weight[copy].mT)
            linear.bias.copy_(bias[copy, 0])
        if stack.residual:
            for norm, scale, shift in zip(network.norms, stack.scales, stack.shifts, strict=True):
                norm.weight.copy_(scale[copy, 0])
                norm.bias.copy_(shift[copy, 0])
    return network


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("layers", [1, 3])
def test_a_stack_is_separate_networks_side_by_side(activation, residual, layers):
    stack = StackedMLP(3, 4, 6, layers, activation, residual=residual).double()
    with torch.no_grad():
        for parameter in stack.parameters():
            parameter.uniform_(-1, 1)
    x = torch.randn(5, 4, dtype=torch.float64)
    separate = torch.stack([own_network(stack, copy, activation)(x) for copy in range(3)])
    torch.testing.assert_close(stack(x), separate)
    assert not torch.allclose(separate[0], separate[1])


def test_a_residual_network_starts_with_normalised_blocks():
    network = MLP(2, 6, 3, "silu", residual=True).double()
    x = torch.randn(5, 2, dtype=torch.float64)
    h = network.linears[0](x)
    for index in (1, 2):
        h = h + network.linears[index](nn.functional.silu(nn.functional.layer_norm(h, (6,))))
    torch.testing.assert_close(network(x), nn.functional.silu(nn.functional.layer_norm(h, (6,))))


@pytest.mark.parametrize("samples", [(), (3,)])
def test_a_conditioned_network_is_a_plain_one_on_concatenated_inputs(samples):
    network = ConditionedMLP(2, 3, width=6, layers=3, outputs=4, activation="gelu").double()
    first = nn.Linear(5, 6).double()
    with torch.no_grad():
        first.weight.copy_(torch.cat([network.first_x.mT, network.first_condition.weight], dim=1))
        first.bias.copy_(network.first_condition.bias)
    plain = nn.Sequential(first, nn.GELU())
    for hidden in network.hidden:
        plain.extend([hidden, nn.GELU()])
    plain.append(network.last)

    x = torch.randn(5, 7, 2, dtype=torch.float64)
    condition = torch.randn(*samples, 5, 3, dtype=torch.float64)
    pairs = torch.cat([x.expand(*samples, 5, 7, 2), condition.unsqueeze(-2).expand(*samples, 5, 7, 3)], dim=-1)
    torch.testing.assert_close(network(x, condition), plain(pairs))


def test_an_unknown_activation_is_refused_with_the_known_ones():
    with pytest.raises(InputError, match=r"'tanhh'.*relu.*mish"):
        activation_named("tanhh")


def test_fourier_features_are_sines_and_cosines_of_multiples_of_a_quarter_of_pi(generator):
    x = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    scale = InputScale(0.5, 2.0, fourier=3)
    seen, place = scale(x), (x - 0.5) * 2
    assert seen.shape[-1] == scale.width(2) == 14
    torch.testing.assert_close(seen[..., :2], place)
    for axis in range(2):
        for k in range(3):
            angle = place[..., axis] * (k + 1) * math.pi / 4
            torch.testing.assert_close(seen[..., 2 + 3 * axis + k], angle.sin())
            torch.testing.assert_close(seen[..., 8 + 3 * axis + k], angle.cos())


def test_without_fourier_features_nothing_is_added():
    x = torch.randn(4, 2)
    assert InputScale()(x) is x
    assert InputScale().width(2) == 2


@pytest.mark.parametrize("fourier", [-1, 65])
def test_an_impossible_number_of_fourier_features_is_refused(fourier):
    with pytest.raises(InputError, match=f"'inputs.fourier' is {fourier}; expected a whole number from 0 to 64"):
        ModelConfig().updated({"inputs.fourier": fourier})
