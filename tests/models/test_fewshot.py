"""What every few-shot classifier promises, and what the set-based ones promise beyond it."""

from dataclasses import replace

import pytest
import torch
from torch.distributions import kl_divergence

from nvdp.errors import InputError
from nvdp.evaluation.metrics import evaluate
from nvdp.models.base import class_means, one_hot
from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.nn.fused import AUTOGRAD
from nvdp.objectives import OBJECTIVES, KLScale
from nvdp.tasks import PointSet, TaskBatch

NAMES = [name for name, spec in MODELS.items() if "classification" in spec.tasks]
BY_GRADIENTS = [name for name in NAMES if MODELS[name].fixed_classes]
SET_BASED = [name for name in NAMES if name not in BY_GRADIENTS]
SMALL = {"decoder.width": 16, "meta.width": 16}
CLOSE = {"atol": 1e-5, "rtol": 1e-4}
WAY, SHOT, QUERIES = 4, 2, 3


def small(name, extractor="none", **changes):
    features = {"extractor.features": 8} if extractor == "none" else {}
    return build_model(ClassifierConfig(name, WAY).updated({"extractor.name": extractor} | SMALL | features | changes))


def blobs(generator, tasks, way=WAY, shot=SHOT, queries=QUERIES, noise=0.3):
    """Episodes whose classes are Gaussian blobs around random centres."""
    labels = torch.cat([torch.arange(way).repeat(shot), torch.arange(way).repeat(queries)])
    centres = torch.randn(tasks, way, 8, generator=generator)
    x = centres[:, labels] + noise * torch.randn(tasks, len(labels), 8, generator=generator)
    return TaskBatch.first_points_as_context(x, torch.eye(way)[labels].expand(tasks, -1, -1), way * shot)


@pytest.fixture
def tasks(generator):
    return blobs(generator, 3)


ACTIVATIONS = {"rates.sees": "contrast", "rates.path": "activations"}
VARIANTS = {
    "nvdp, contrast": {"rates.sees": "contrast", "decoder.sees": "x,r"},
    "nvdp, activations": ACTIVATIONS,
    "nvdp, directions": {"rates.sees": "directions", "rates.path": "activations"},
    "nvdp, directions and r": {"rates.sees": "directions", "rates.path": "activations", "decoder.sees": "x,r"},
    "nvdp, activations and r": {"rates.path": "activations", "decoder.sees": "x,r"},
}


def variant(name):
    return small(name.split(",")[0], **VARIANTS.get(name, {})).eval().requires_grad_(False)


@pytest.fixture(params=[*NAMES, *VARIANTS])
def model(request):
    return variant(request.param)


@pytest.fixture(params=[*(name for name in NAMES if name != "meta-dropout"), *VARIANTS])
def placeless_model(request):
    """All but meta-dropout, whose noise belongs to a place in the support and in the batch."""
    return variant(request.param)


@pytest.fixture(params=[*SET_BASED, *VARIANTS])
def set_model(request):
    return variant(request.param)


def same(a, b):
    torch.testing.assert_close(a.by_sample, b.by_sample, **CLOSE)


def test_order_of_the_support_does_not_matter(placeless_model, tasks):
    # A gradient is a mean over the support, too; only noise drawn for each point tells places apart.
    model = placeless_model
    support = tasks.context
    order = torch.randperm(WAY * SHOT, generator=torch.Generator().manual_seed(1))
    shuffled = PointSet(support.x[:, order], support.y[:, order], support.mask[:, order])
    same(model.adapt(shuffled).predict(tasks.x, 3, 1), model.adapt(support).predict(tasks.x, 3, 1))


def test_classes_in_another_order_give_probabilities_in_that_order(set_model, tasks):
    order = torch.tensor([2, 0, 3, 1])
    support = tasks.context
    renamed = replace(support, y=support.y[..., order])
    before, after = (set_model.adapt(points).predict(tasks.x) for points in (support, renamed))
    torch.testing.assert_close(after.by_sample, before.by_sample[..., order], **CLOSE)


def test_a_task_may_have_more_or_fewer_classes_than_in_training(set_model, generator):
    for way in (2, 7):
        other = blobs(generator, 2, way)
        prediction = set_model.adapt(other.context).predict(other.x, 2)
        assert prediction.probabilities.shape == (2, other.x.shape[1], way)


@pytest.mark.parametrize("name", BY_GRADIENTS)
def test_a_fixed_last_layer_says_how_many_classes_it_has(name, generator):
    with pytest.raises(InputError, match=r"7 classes; this .* model has a last layer for 4"):
        small(name).adapt(blobs(generator, 2, 7).context)


def test_a_batch_equals_its_tasks_one_by_one(placeless_model, tasks):
    model = placeless_model
    together = model.adapt(tasks.context).predict(tasks.x)
    for index, alone in enumerate(tasks):
        prediction = model.adapt(alone.x_context, alone.y_context).predict(tasks.x[index])
        torch.testing.assert_close(prediction.by_sample, together.by_sample[:, index], **CLOSE)


def test_values_in_the_padding_change_nothing(model, tasks):
    support = tasks.context
    padded = PointSet(*(torch.cat([part, part[:, :2]], 1) for part in (support.x, support.y, support.mask)))
    padded.mask[:, -2:] = False
    spoiled = replace(padded, x=padded.x + 9 * ~padded.mask[..., None])
    if model.config.name != "meta-dropout":
        same(model.adapt(padded).predict(tasks.x), model.adapt(support).predict(tasks.x))
    same(model.adapt(spoiled).predict(tasks.x), model.adapt(padded).predict(tasks.x))


def test_a_query_is_classified_alike_alone_and_among_others(model, tasks):
    posterior = model.adapt(tasks.context)
    x = posterior.embed(tasks.x)
    noise = torch.Generator()
    everything, one = (posterior.sampled_outputs(part, 2, noise.manual_seed(1)) for part in (x, x[:, 5:6]))
    torch.testing.assert_close(everything[:, :, 5:6], one, **CLOSE)
    everything, one = posterior.predict(tasks.x), posterior.predict(tasks.x[:, 5:6])
    torch.testing.assert_close(everything.by_sample[:, :, 5:6], one.by_sample, **CLOSE)


@pytest.mark.parametrize("name", [*NAMES, "nvdp, activations"])
def test_on_images_a_query_does_not_depend_on_the_others_unless_asked_to(name, generator):
    changes, name = VARIANTS.get(name, {}), name.split(",")[0]
    model = small(name, "conv4", **changes).train()
    y = torch.eye(WAY).repeat(2, 1).expand(2, -1, -1)
    images = TaskBatch.first_points_as_context(torch.rand(2, 2 * WAY, 784, generator=generator), y, WAY)
    OBJECTIVES[MODELS[name].objective](model, images, KLScale(), generator).value.backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    model.eval().requires_grad_(False)

    def difference():
        posterior = model.adapt(images.context)
        return (
            (posterior.predict(images.x).by_sample[:, :, :2] - posterior.predict(images.x[:, :2]).by_sample).abs().max()
        )

    assert difference() < 1e-4
    model.statistics = "batch"
    assert difference() > 1e-3


def test_kl_is_zero_between_posteriors_of_one_set_and_positive_to_that_of_the_whole(model, tasks):
    q, prior = model.adapt_both(model.embedded(tasks))
    assert kl_divergence(q, model.adapt_both(model.embedded(tasks))[0]).tolist() == [0.0] * 3
    assert ((kl_divergence(q, prior) > 0) == (q.size > 0)).all()


def test_samples_disagree_unless_the_posterior_is_a_point(model, tasks):
    posterior = model.adapt(tasks.context)
    prediction = posterior.predict(tasks.x, 8)
    assert (prediction.disagreement.max() > 1e-6) == (posterior.size > 0)
    assert torch.equal(prediction.by_sample, posterior.predict(tasks.x, 8).by_sample)


@pytest.mark.parametrize("changes", [{}, *VARIANTS.values()])
def test_hand_derived_gradients_are_those_of_autograd_for_rates_of_classes(changes, tasks):
    gradients = []
    for engine in (None, AUTOGRAD):
        model = small("nvdp", **changes).double()
        if engine:
            model.engine = engine
        noise = torch.Generator().manual_seed(3)
        OBJECTIVES["variational-prior"](model, tasks.to(torch.float64), KLScale(), noise).value.backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_noise_of_single_points_predicts_what_sampled_weights_predict(tasks, monkeypatch):
    posterior = small("nvdp", **{"rates.floor": 0.2}).eval().requires_grad_(False).double().adapt(tasks.context)
    x = posterior.embed(tasks.x.double())[:, :4]
    noise = torch.Generator().manual_seed(1)
    monkeypatch.setattr("nvdp.posteriors.base.NUMBERS_AT_ONCE", 2**10)  # two groups of tasks
    groups = posterior._groups(x)
    assert len(groups) == 2
    coherent = posterior.sampled_outputs(x, 400, noise)
    pointwise = torch.cat([posterior._of(g)._with_local_noise(x[g], 400, noise) for g in groups], 1)
    error = coherent.std(0) / 400**0.5
    assert ((coherent.mean(0) - pointwise.mean(0)).abs() < 6 * error).all()
    torch.testing.assert_close(coherent.std(0), pointwise.std(0), rtol=0.25, atol=0)
    assert torch.equal(posterior.components(tasks.x, 3, 5).by_sample, posterior.components(tasks.x, 3, 5).by_sample)


def test_contrast_makes_the_classes_of_a_task_differ_more_from_the_start(tasks):
    far_away = replace(tasks, x=tasks.x + 20)  # what all classes share says nothing about any of them
    spreads = []
    for changes in ({}, {"rates.sees": "contrast"}):
        model = small("nvdp", **{"extractor.normalise": False}, **changes)
        spreads.append(model.adapt(far_away.context).rates[0].rows.unflatten(0, (-1, WAY)).std(1).mean())
    assert spreads[1] > 3 * spreads[0]


def test_class_logits_of_a_pure_nvdp_differ_by_the_rates_alone(tasks):
    model = small("nvdp").eval()
    posterior = model.adapt(tasks.context)
    assert posterior.representation is None
    spread = posterior.mean_outputs(model.embed(tasks.x)).std(-1)
    assert spread.min() > 1e-4


def test_the_likelihood_is_that_of_the_queries_alone(tasks):
    model = small("protonet")
    bound = OBJECTIVES["likelihood"](model, tasks, KLScale())
    queries = model.scored(tasks)
    prediction = model.adapt(tasks.context).predict(queries.x)
    torch.testing.assert_close(bound.log_likelihood.detach(), prediction.log_prob(queries.y).mean())
    assert queries.x.shape[1] == WAY * QUERIES


def test_padded_images_never_reach_batch_norm(generator):
    x, y = torch.rand(2, 2 * WAY, 784, generator=generator), torch.eye(WAY).repeat(2, 1).expand(2, -1, -1)
    tasks = TaskBatch.first_points_as_context(x, y, WAY)
    mask = torch.cat([tasks.mask, torch.zeros(2, 3, dtype=torch.bool)], 1)
    padded = TaskBatch(
        torch.cat([x, 9 * torch.ones(2, 3, 784)], 1), torch.cat([y, y[:, :3]], 1), mask & (torch.arange(11) < WAY), mask
    )
    for training in (True, False):
        for statistics in ("running", "batch"):
            model = small("protonet", "conv4").train(training).requires_grad_(False)
            model.statistics = statistics
            torch.testing.assert_close(model.embedded(padded).x[:, : 2 * WAY], model.embedded(tasks).x, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
def test_every_method_learns_to_tell_blobs_apart(name):
    generator = torch.Generator().manual_seed(0)
    rates = {"gradient.steps": 3, "gradient.rate": 0.3}
    model = small(name, **{"extractor.normalise": False, "decoder.width": 64, "meta.width": 32}, **rates).train()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    objective = OBJECTIVES[MODELS[name].objective]
    for _ in range(60):
        optimizer.zero_grad()
        (-objective(model, blobs(generator, 8, shot=1), KLScale("elbo", 0.001), generator).value).backward()
        optimizer.step()
    result = evaluate(model, [blobs(generator, 50, shot=1, queries=10)])
    assert result["accuracy"] > 0.8  # by chance 0.25


def test_labels_may_be_numbers_of_classes(model, tasks):
    task = next(iter(tasks))
    numbers = model.adapt(task.x_context, task.y_context.argmax(-1))
    same(numbers.predict(task.x_target), model.adapt(task.x_context, task.y_context).predict(task.x_target))
    assert numbers.predict(task.x_target).top_class.shape == (WAY * QUERIES,)
    assert one_hot([[0, 1], [1, 0]]).tolist() == [[0, 1], [1, 0]]


def test_class_means_are_means_over_the_points_of_a_class(tasks):
    means = class_means(tasks.context.x, tasks.context)
    torch.testing.assert_close(means[1, 2], tasks.x[1, : WAY * SHOT][tasks.y[1, : WAY * SHOT, 2] == 1].mean(0))


def test_wrong_inputs_are_refused_with_their_numbers(model, tasks):
    support = tasks.context
    with pytest.raises(InputError, match=r"x has 7 numbers a point; this .* model takes 8"):
        model.adapt(support.x[..., :7], support.y)
    with pytest.raises(InputError, match="not one-hot"):
        model.adapt(support.x, support.y * 0.5)
    with pytest.raises(InputError, match="class 3 of task 0 has no support point"):
        model.adapt(support.x[:, :3], support.y[:, :3])
    with pytest.raises(InputError, match="class number -1"):
        model.adapt(support.x[0], -torch.ones(WAY * SHOT, dtype=torch.long))
    with pytest.raises(InputError, match=r"expected \(points, 8\)"):
        model.adapt(support).predict(torch.zeros(4, 1))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"num_classes": 1}, "'num_classes' is 1"),
        ({"decoder.width": 0}, "'decoder.width' is 0"),
        (
            {"extractor.name": "conv6"},
            "'conv6'; expected 'conv4' or 'conv4-wide' or 'conv5' or 'conv5-patches' or 'conv5-wide' or 'none'",
        ),
        ({"extractor.name": "conv5"}, "'extractor.features' is 256; conv5 gives 0 for images of 28×28"),
        ({"decoder.sees": "r"}, "'decoder.sees' is 'r'"),
        ({"gradient.rate": 0}, "'gradient.rate' is 0"),
        ({"rates.sees": "all"}, "'rates.sees' is 'all'"),
        ({"rates.path": "r"}, "'rates.path' is 'r'; expected 'network' or 'activations'"),
        ({"extractor.statistics": "support"}, "'support'; expected running or batch"),
        ({"name": "maml", "extractor.statistics": "running"}, "'running'; expected support or batch"),
    ],
)
def test_impossible_architectures_are_refused_by_name(changes, words):
    with pytest.raises(InputError, match=words):
        build_model(ClassifierConfig().updated(changes))


def test_a_model_for_one_kind_of_task_is_refused_for_the_other():
    with pytest.raises(InputError, match="np is not for classification; there are nvdp, cnp, versa"):
        build_model(ClassifierConfig("np"))
    assert MODELS["nvdp"].tasks == MODELS["cnp"].tasks == ("regression", "classification")
    assert MODELS["versa"].tasks == ("classification",)
