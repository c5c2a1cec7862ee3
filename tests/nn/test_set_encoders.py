import pytest
import torch

from nvdp.nn.encoders import AttentiveSetEncoder, BayesianSetEncoder
from nvdp.tasks import PointSet

SETTINGS = {"size": 8, "layers": 2, "activation": "relu"}


@pytest.mark.parametrize("kind", [AttentiveSetEncoder, BayesianSetEncoder])
def test_order_and_hidden_points_do_not_matter_but_their_number_does(kind, generator):
    encoder = kind(1, 1, **SETTINGS)
    x, y = torch.randn(3, 6, 1, generator=generator), torch.randn(3, 6, 1, generator=generator)
    mask = torch.tensor([True, True, True, True, False, False]).expand(3, -1)
    r = encoder(PointSet(x, y, mask))
    order = torch.tensor([2, 5, 0, 3, 1, 4])
    assert torch.allclose(r, encoder(PointSet(x[:, order], y[:, order], mask[:, order])), atol=1e-5)
    twice = PointSet(x[:, :4].repeat(1, 2, 1), y[:, :4].repeat(1, 2, 1), torch.ones(3, 8).bool())
    assert not torch.allclose(r, encoder(twice), atol=1e-3)


def test_bayesian_aggregation_is_the_posterior_mean_of_gaussian_observations(generator):
    encoder = BayesianSetEncoder(1, 1, **SETTINGS)
    x, y = torch.randn(1, 5, 1, generator=generator), torch.randn(1, 5, 1, generator=generator)
    points = PointSet(x, y, torch.ones(1, 5).bool())
    weighted, precision = encoder.encode(points).chunk(2, dim=-1)
    mean, certainty = torch.zeros(1, 8), torch.ones(1, 8)  # N(0, 1), then one observation after the other
    for i in range(5):
        observed, sure = weighted[:, i] / precision[:, i], precision[:, i]
        mean = (mean * certainty + observed * sure) / (certainty + sure)
        certainty = certainty + sure
    assert torch.allclose(encoder(points), mean, atol=1e-5)
    empty = PointSet(x, y, torch.zeros(1, 5).bool())
    assert torch.equal(encoder(empty), torch.zeros(1, 8))
