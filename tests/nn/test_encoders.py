import pytest
import torch

from nvdp.nn.encoders import AttentiveSetEncoder, BayesianSetEncoder, MeanSetEncoder
from nvdp.nn.mlp import InputScale
from nvdp.tasks import PointSet

SETTINGS = {"size": 8, "layers": 2, "activation": "relu"}
ENCODERS = [
    {},
    {"residual": True},
    {"paths": 2},
    {"residual": True, "paths": 2},
]


@pytest.fixture(params=ENCODERS, ids=str)
def encoder(request):
    return MeanSetEncoder(2, 1, size=8, layers=3, activation="relu", **request.param).double().requires_grad_(False)


@pytest.fixture
def batch(ragged_batch):
    return ragged_batch(2, 1, torch.float64)


def test_a_representation_is_the_mean_of_the_features_of_its_points(encoder, batch):
    r = encoder(batch.context)
    assert r.shape == (4, encoder.size)
    features = encoder.encode(batch.context)
    width = features.shape[-1]
    for task in (0, 2, 3):
        torch.testing.assert_close(r[task, :width], features[task][batch.context.mask[task]].mean(0))
    assert not r[1, :width].any()


def test_order_of_the_points_does_not_matter(encoder, batch):
    points = batch.whole
    order = torch.randperm(points.x.shape[1])
    shuffled = PointSet(points.x[:, order], points.y[:, order], points.mask[:, order])
    torch.testing.assert_close(encoder(shuffled), encoder(points))


def test_padding_never_reaches_the_representation(encoder, batch):
    points = batch.context
    outside = ~points.mask[..., None]
    spoiled = PointSet(points.x + 50 * outside, points.y - 50 * outside, points.mask)
    torch.testing.assert_close(encoder(spoiled), encoder(points))


def test_one_encoding_serves_context_and_task(encoder, batch):
    both = encoder.aggregate(encoder.encode(batch.whole), batch.is_context, batch.mask)
    for r, points in zip(both, (batch.context, batch.whole), strict=True):
        torch.testing.assert_close(r, encoder(points))


def test_an_encoder_sees_products_of_fourier_features_and_y(generator):
    """The mean of cos(πx/4) y over points is a Fourier coefficient: a linear layer finds it."""
    encoder = MeanSetEncoder(1, 2, size=8, layers=1, activation="relu", x_scale=InputScale(fourier=2))
    x, y = torch.randn(1, 6, 1, generator=generator), torch.randn(1, 6, 2, generator=generator)
    seen = []
    encoder.features[0].linears[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    encoder.encode(PointSet(x, y, torch.ones(1, 6).bool()))
    (inputs,) = seen
    assert inputs.shape[-1] == encoder.features[0].linears[0].in_features == 5 + 2 + 10
    fourier = InputScale(fourier=2)(x)
    torch.testing.assert_close(inputs[..., 7:].unflatten(-1, (5, 2)), fourier[..., None] * y[..., None, :])


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
