"""Rates that start from a class's own activations: what they are at the start, and what they are worth."""

import pytest
import torch
from torch.nn import functional as F

from nvdp.evaluation.metrics import evaluate
from nvdp.models.base import class_means
from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.nn.class_rates import GAINS, start_from_nearest_mean
from nvdp.nn.dropout import DropoutNetwork
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.tasks import TaskBatch
from nvdp.training.nearest_mean import nearest_mean_hits

WAY, FEATURES = 5, 32
SIZES = {
    "num_classes": WAY,
    "extractor.name": "none",
    "extractor.features": FEATURES,
    "decoder.width": 128,
    "meta.width": 32,
}
ACTIVATIONS = {"rates.sees": "contrast", "rates.path": "activations"}


def rectified_blobs(seed, tasks, shot=1, queries=5, noise=0.7):
    """Episodes of features as a network with ReLU gives them: noisy, none negative, alike for all classes."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.cat([torch.arange(WAY).repeat(shot), torch.arange(WAY).repeat(queries)])
    centres = torch.randn(tasks, WAY, FEATURES, generator=generator)
    x = centres[:, labels] + noise * torch.randn(tasks, len(labels), FEATURES, generator=generator)
    return TaskBatch.first_points_as_context(F.relu(x), torch.eye(WAY)[labels].expand(tasks, -1, -1), WAY * shot)


HELD_OUT = rectified_blobs(1, 100)


def accuracy(model):
    return evaluate(model, [HELD_OUT])["accuracy"]


def trained(name, steps=40, **changes):
    model = build_model(ClassifierConfig(name).updated({**SIZES, **changes})).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    for step in range(steps):
        optimizer.zero_grad()
        bound = OBJECTIVES[MODELS[name].objective](
            model, rectified_blobs(100 + step, 8), KLScale("elbo", 1e-5), torch.Generator().manual_seed(step)
        )
        (-bound.value).backward()
        optimizer.step()
    return model


def test_paired_first_weights_keep_products_of_inputs_for_any_width():
    for inputs, width in ((4, 8), (4, 24), (6, 7)):
        network = DropoutNetwork([inputs, width, 1], "relu")
        start_from_nearest_mean(network)
        first, last = network.dropout_layers()
        half = width // 2
        assert torch.equal(first.weight[:, :half], -first.weight[:, half : 2 * half])
        assert (last.weight == last.weight[0]).all()
        if half >= inputs:
            products = first.weight[:, :half] @ first.weight[:, :half].mT
            torch.testing.assert_close(products, half / inputs * torch.eye(inputs), atol=1e-5, rtol=0)


def with_small_gains(**changes):
    model = build_model(ClassifierConfig("nvdp").updated({**SIZES, **changes})).requires_grad_(False).double()
    first_gain, last_gain = model.rates.row_gains
    first_gain.zero_()
    last_gain.fill_(1e-3)
    for head in model.rates.heads:
        head.weight.zero_()
    return model


def test_with_small_gains_the_start_is_the_product_of_query_and_class_mean():
    model = with_small_gains(**ACTIVATIONS)
    tasks = model.embedded(rectified_blobs(0, 3).to(torch.float64))
    logits = model.posterior_given(tasks.context).mean_outputs(tasks.x)  # (task, point, way)
    means = class_means(tasks.context.x, tasks.context)
    contrast = F.layer_norm(means - means.mean(1, keepdim=True), means.shape[-1:])
    products = tasks.x @ contrast.mT
    own, expected = (values - values.mean(-1, keepdim=True) for values in (logits, products))
    slope = (own * expected).sum() / expected.square().sum()
    assert slope > 0
    torch.testing.assert_close(own, slope * expected, rtol=0, atol=1e-4 * own.abs().max().item())


def test_with_directions_the_start_orders_classes_by_their_cosine_with_the_query():
    model = with_small_gains(**ACTIVATIONS | {"rates.sees": "directions"})
    tasks = model.embedded(rectified_blobs(0, 3, shot=3, noise=2.0).to(torch.float64))
    logits = model.posterior_given(tasks.context).mean_outputs(tasks.x)
    cosines = tasks.x @ F.normalize(class_means(tasks.context.x, tasks.context), dim=-1).mT
    own, expected = (values - values.mean(-1, keepdim=True) for values in (logits, cosines))
    slopes = (own * expected).sum((1, 2)) / expected.square().sum((1, 2))  # a task's classes share one
    assert (slopes > 0).all()
    torch.testing.assert_close(own, slopes[:, None, None] * expected, rtol=0, atol=1e-4 * own.abs().max().item())


def test_an_input_that_a_class_excites_has_a_smaller_rate():
    model = build_model(ClassifierConfig("nvdp").updated({**SIZES, **ACTIVATIONS})).requires_grad_(False)
    assert model.rates.row_gains[0].unique().tolist() == [GAINS[0]]
    support = HELD_OUT.context
    means = class_means(model.embed(support.x), support)
    contrast = (means - means.mean(1, keepdim=True)).flatten(0, 1)
    rows = model.adapt(support).rates[0].rows
    assert torch.corrcoef(torch.stack([contrast.ravel(), rows.ravel()]))[0, 1] < -0.8


def test_before_training_it_classifies_as_well_as_the_nearest_mean_and_others_by_chance():
    nearest = nearest_mean_hits(HELD_OUT, HELD_OUT.x).mean().item()
    assert nearest > 0.8
    assert accuracy(build_model(ClassifierConfig("nvdp").updated({**SIZES, **ACTIVATIONS}))) > nearest - 0.03
    for name in ("nvdp", "versa"):
        assert accuracy(build_model(ClassifierConfig(name).updated(SIZES))) < 0.5  # by chance 0.2


@pytest.mark.parametrize("rival", ["versa", "cnp"])
def test_after_as_many_steps_it_beats_rivals_that_start_from_nothing(rival):
    model = trained("nvdp", **ACTIVATIONS)
    scores = evaluate(model, [HELD_OUT])
    assert scores["accuracy"] > accuracy(trained(rival)) + 0.05
    assert scores["mean_rate"] > 0.1  # the posterior is alive: rates are far from their floor of 0.01
    assert scores["disagreement"] > 1e-3
