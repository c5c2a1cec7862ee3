import pytest
import torch

from nvdp.nn.encoders import MeanSetEncoder
from nvdp.tasks import PointSet

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
