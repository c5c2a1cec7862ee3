"""The inner loop of MAML and its children: by hand, by finite differences, and against stopped gradients."""

import pytest
import torch

from nvdp.errors import InputError
from nvdp.models.config import ClassifierConfig
from nvdp.models.gradient import GradientModel
from nvdp.models.registry import build_model
from nvdp.objectives import KLScale, likelihood_bound
from nvdp.tasks import PointSet, TaskBatch

TINY = {
    "num_classes": 2,
    "extractor.name": "none",
    "extractor.features": 3,
    "decoder.width": 4,
    "extractor.normalise": False,
    "gradient.rate": 0.3,
}


@pytest.fixture
def tasks(generator):
    x = torch.randn(2, 8, 3, generator=generator, dtype=torch.float64)
    y = torch.eye(2, dtype=torch.float64).repeat(4, 1).expand(2, -1, -1)
    return TaskBatch.first_points_as_context(x, y, 4)


class Parabola(GradientModel):
    """Inner loss ½ a w² of one weight w, with a different a for each task."""

    curvature = torch.tensor([0.5, 2.0], dtype=torch.float64)

    def support_loss(self, weights, support, generator):
        w = weights["last_bias"][:, 0]
        others = sum((weight * 0).sum() for weight in weights.values())
        return (0.5 * self.curvature * w.square()).sum() + others


@pytest.mark.parametrize("steps", [1, 3])
def test_a_hand_computed_inner_loop(steps, tasks):
    # φ = (1 − αa)ᵏ w. For an outer loss ½ Σ φ² the gradient is Σ (1 − αa)²ᵏ w; with first order Σ (1 − αa)ᵏ w.
    for second_order in (True, False):
        model = Parabola(
            ClassifierConfig("maml").updated({"gradient.steps": steps, "gradient.second_order": second_order, **TINY})
        ).double()
        start = model.network.initial["last_bias"]
        start.data[0] = 1.5
        adapted = model.adapted_weights(tasks.context)["last_bias"][:, 0]
        shrink = (1 - 0.3 * Parabola.curvature) ** steps
        torch.testing.assert_close(adapted.detach(), 1.5 * shrink)
        (0.5 * adapted.square()).sum().backward()
        expected = (1.5 * shrink * (shrink if second_order else 1)).sum()
        torch.testing.assert_close(start.grad[0], expected)


def outer(model, tasks):
    return likelihood_bound(model, tasks, KLScale(), torch.Generator().manual_seed(0)).value


@pytest.mark.parametrize("name", ["maml", "meta-sgd", "meta-dropout"])
def test_second_order_gradients_are_those_of_finite_differences(name, tasks):
    model = build_model(ClassifierConfig(name).updated({"gradient.steps": 2, **TINY})).double()
    outer(model, tasks).backward()
    for key, parameter in model.named_parameters():
        place = (0,) * parameter.dim()
        values = []
        for step in (1e-5, -1e-5):
            parameter.data[place] += step
            values.append(outer(model, tasks).item())
            parameter.data[place] -= step
        assert parameter.grad[place].item() == pytest.approx((values[0] - values[1]) / 2e-5, abs=1e-8, rel=1e-5), key


def test_first_order_is_the_same_steps_with_their_gradients_held_constant(tasks):
    models = [
        build_model(
            ClassifierConfig("maml").updated({"gradient.steps": 2, "gradient.second_order": order, **TINY})
        ).double()
        for order in (True, False)
    ]
    second, first = models
    outer(first, tasks).backward()
    support = tasks.context
    weights = {name: weight.expand(2, *weight.shape) for name, weight in second.network.initial.items()}
    for _ in range(2):
        loss = second.support_loss(weights, support, None)
        gradients = torch.autograd.grad(loss, list(weights.values()), retain_graph=True)
        weights = {
            name: weight - 0.3 * gradient.detach()
            for (name, weight), gradient in zip(weights.items(), gradients, strict=True)
        }
    logits = second.network(weights, tasks.x[:, 4:])
    (logits.log_softmax(-1) * tasks.y[:, 4:]).sum(-1).mean().backward()
    for ours, expected in zip(first.network.initial.values(), second.network.initial.values(), strict=True):
        torch.testing.assert_close(ours.grad, expected.grad)


def test_second_order_differs_from_first(tasks):
    gradients = []
    for order in (True, False):
        model = build_model(
            ClassifierConfig("maml").updated({"gradient.steps": 2, "gradient.second_order": order, **TINY})
        ).double()
        outer(model, tasks).backward()
        gradients.append(model.network.initial["hidden_weight"].grad)
    assert (gradients[0] - gradients[1]).abs().max() > 1e-4


def test_an_inner_step_lowers_the_loss_of_the_support(tasks):
    model = build_model(ClassifierConfig("maml").updated({"gradient.steps": 1, **TINY})).double()
    start = {name: weight.expand(2, *weight.shape) for name, weight in model.network.initial.items()}
    adapted = model.adapted_weights(tasks.context)
    before, after = (model.support_loss(weights, tasks.context, None) for weights in (start, adapted))
    assert after < before


def test_adapting_without_gradients_gives_the_same_weights_and_keeps_no_graph(tasks):
    model = build_model(ClassifierConfig("meta-sgd").updated({"gradient.steps": 2, **TINY})).double()
    with_graph = model.adapted_weights(tasks.context)
    with torch.no_grad():
        without = model.adapted_weights(tasks.context)
    for name, weight in without.items():
        assert not weight.requires_grad
        torch.testing.assert_close(weight, with_graph[name].detach())


def test_meta_sgd_with_equal_rates_is_maml_and_its_rates_are_learned(tasks):
    maml, sgd = (build_model(ClassifierConfig(name).updated(TINY)).double() for name in ("maml", "meta-sgd"))
    torch.testing.assert_close(outer(maml, tasks), outer(sgd, tasks))
    outer(sgd, tasks).backward()
    assert sum(rate.grad.abs().sum() for rate in sgd.rates.values()) > 0


def test_meta_dropout_draws_noise_for_its_steps_and_none_for_its_predictions(tasks):
    model = build_model(ClassifierConfig("meta-dropout").updated(TINY)).double().requires_grad_(False)
    drawn = [model.posterior_given(tasks.context, torch.Generator().manual_seed(seed)) for seed in (0, 0, 1)]
    same, again, other = (posterior.mean_outputs(tasks.x) for posterior in drawn)
    assert torch.equal(same, again)
    assert not torch.allclose(same, other)
    assert torch.equal(drawn[0].mean_outputs(tasks.x), same)


def test_each_task_of_a_batch_of_images_adapts_by_itself(generator):
    model = build_model(ClassifierConfig("maml", num_classes=2)).eval().requires_grad_(False)
    x, y = torch.rand(2, 4, 784, generator=generator), torch.eye(2).repeat(2, 1).expand(2, -1, -1)
    for statistics in ("support", "batch"):
        model.statistics = statistics
        together = model.adapt(PointSet.of(x, y)).predict(x).by_sample
        alone = torch.cat(
            [model.adapt(PointSet.of(x[i : i + 1], y[i : i + 1])).predict(x[i]).by_sample for i in (0, 1)], 1
        )
        torch.testing.assert_close(together, alone, atol=1e-4, rtol=1e-4)


def test_settings_of_an_extractor_that_these_models_do_not_have_are_refused():
    for setting in ({"extractor.last_relu": False}, {"extractor.normalise_own": True}):
        with pytest.raises(InputError, match="maml has the paper's convolutions"):
            build_model(ClassifierConfig("maml").updated(setting))
