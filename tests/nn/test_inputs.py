"""What networks see of a value: places as they are, then waves of them."""

import math

import pytest
import torch

from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.nn.encoders import MeanSetEncoder
from nvdp.nn.mlp import InputScale
from nvdp.tasks import PointSet


def test_waves_are_sines_and_cosines_of_multiples_of_a_quarter_of_pi(generator):
    x = torch.randn(3, 5, 2, generator=generator, dtype=torch.float64)
    scale = InputScale(0.5, 2.0, waves=3)
    seen, place = scale(x), (x - 0.5) * 2
    assert seen.shape[-1] == scale.width(2) == 14
    torch.testing.assert_close(seen[..., :2], place)
    for axis in range(2):
        for k in range(3):
            angle = place[..., axis] * (k + 1) * math.pi / 4
            torch.testing.assert_close(seen[..., 2 + 3 * axis + k], angle.sin())
            torch.testing.assert_close(seen[..., 8 + 3 * axis + k], angle.cos())


def test_without_waves_nothing_is_added():
    x = torch.randn(4, 2)
    assert InputScale()(x) is x
    assert InputScale().width(2) == 2


def test_an_encoder_sees_products_of_waves_and_y(generator):
    """The mean of cos(πx/4) y over points is a Fourier coefficient: a linear layer finds it."""
    encoder = MeanSetEncoder(1, 2, size=8, layers=1, activation="relu", x_scale=InputScale(waves=2))
    x, y = torch.randn(1, 6, 1, generator=generator), torch.randn(1, 6, 2, generator=generator)
    seen = []
    encoder.features[0].linears[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    encoder.encode(PointSet(x, y, torch.ones(1, 6).bool()))
    (inputs,) = seen
    assert inputs.shape[-1] == encoder.features[0].linears[0].in_features == 5 + 2 + 10
    waves = InputScale(waves=2)(x)
    torch.testing.assert_close(inputs[..., 7:].unflatten(-1, (5, 2)), waves[..., None] * y[..., None, :])


@pytest.mark.parametrize("waves", [-1, 65])
def test_a_number_of_waves_that_cannot_be_is_refused(waves):
    with pytest.raises(InputError, match=f"'inputs.fourier' is {waves}; expected a whole number from 0 to 64"):
        ModelConfig().updated({"inputs.fourier": waves})
