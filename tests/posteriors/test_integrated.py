import math

import pytest
import torch
from torch.distributions import MultivariateNormal
from torch.nn import functional as F

from nvdp.evaluation.joint import gaussian_joint
from nvdp.models.registry import build_model
from nvdp.posteriors.dropout import DropoutPosterior
from nvdp.posteriors.integrated import IntegratedPosterior, joint_log_density
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet

NAMES = ("nvdp", "nvdp-attentive", "nvdp-conv")
PLAIN = {"likelihood.integrate_plain": True}


@pytest.fixture(params=NAMES)
def posterior(request, small_config, make_task):
    model = build_model(small_config(request.param, {"decoder.activation": "silu", **PLAIN})).eval()
    task = make_task(6, 0)
    with torch.no_grad():
        for rate_head in model.rates.heads:
            rate_head.bias.fill_(1.0)  # rates well above their floor
    return model.adapt(task.x_context, task.y_context)


def test_components_say_what_many_sampled_functions_say(posterior, generator):
    x = torch.linspace(-2, 2, 5)
    assert isinstance(posterior, IntegratedPosterior)
    sampled, closed = posterior.predict(x, 20_000, generator), posterior.components(x, 4_000, generator)
    error = sampled.spread / math.sqrt(20_000)
    assert ((sampled.mean - closed.mean).abs() < 5 * error + 1e-4).all()
    assert torch.allclose(sampled.std, closed.std, rtol=0.03)
    assert (closed.functions.std(0) < sampled.spread).all()  # what is left to sample is less


def test_a_prediction_has_the_moments_of_many_sampled_functions(posterior, generator):
    x = torch.linspace(-2, 2, 5)
    sampled, closed = posterior.predict(x, 20_000, generator), posterior.predict(x)
    assert len(closed.functions) == 1
    assert ((sampled.mean - closed.mean).abs() < 0.05 * sampled.std).all()
    assert torch.allclose(sampled.std, closed.std, rtol=0.03)
    assert (posterior.at_mean_parameters(x).std < closed.std).all()  # the uncertainty of the hidden layers is inside


def test_all_points_together_have_the_density_of_their_covariance(generator):
    features, y = torch.randn(2, 9, 4, generator=generator), torch.randn(2, 9, 3, generator=generator)
    mean, variance = torch.randn(2, 9, 3, generator=generator), torch.rand(2, 5, 3, generator=generator)
    mask = torch.tensor([[True] * 9, [True] * 6 + [False] * 3])
    noise = torch.tensor([0.3, 0.5, 1.0]).expand(2, 9, 3)
    basis = F.pad(features, (0, 1), value=1.0)[:, None] * variance.mT.sqrt()[:, :, None]
    for points in (9, 3):  # more points than features, and fewer
        cut = PointSet(torch.zeros(2, points, 1), y[:, :points], mask[:, :points])
        ours = joint_log_density(cut, basis[:, :, :points], mean[:, :points], noise[:, :points])
        for task in range(2):
            real = mask[task, :points]
            a = torch.cat([features[task, :points][real], torch.ones(int(real.sum()), 1)], dim=1)
            total = 0.0
            for output in range(3):
                covariance = (a * variance[task, :, output]) @ a.T + noise[0, 0, output] ** 2 * torch.eye(len(a))
                density = MultivariateNormal(mean[task, :points, output][real], covariance)
                total += density.log_prob(y[task, :points, output][real]).item()
            assert ours[task].item() == pytest.approx(total, abs=1e-3)


@pytest.mark.parametrize(("points", "k"), [(4, 6), (6, 3)], ids=["fewer points than features", "more"])
def test_gradients_of_the_joint_density_are_those_of_finite_differences(points, k, generator):
    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_()

    mask = torch.ones(2, points, dtype=torch.bool)
    mask[1, -1] = False

    def density(y, basis, mean, noise):
        cut = PointSet(torch.zeros(2, points, 1, dtype=torch.float64), y, mask)
        return joint_log_density(cut, basis, mean, noise.exp())

    parts = draw(2, points, 2), draw(2, 2, points, k), draw(2, points, 2), draw(2, points, 2)
    assert torch.autograd.gradcheck(density, parts)


def test_single_points_alone_are_scored_as_they_are_predicted(small_config, make_task):
    model = build_model(small_config("nvdp-attentive", {"likelihood.joint_share": 0.0, "rates.floor": 1e-6})).eval()
    with torch.no_grad():
        for head in model.rates.heads[:-1]:
            head.bias.fill_(-30.0)  # hidden layers without noise: nothing is sampled
    task = make_task(5, 4)
    x, y = (torch.cat(parts) for parts in ((task.x_context, task.x_target), (task.y_context, task.y_target)))
    posterior = model.adapt(task.x_context, task.y_context)
    trained = posterior.expected_log_likelihood(PointSet.of(x, y))
    assert trained.item() == pytest.approx(posterior.predict(x).log_prob(y).sum().item(), rel=1e-3)


def test_all_outputs_together_have_the_density_of_many_sampled_functions(posterior, generator):
    x = torch.linspace(-2, 2, 3)[None, :, None]
    y = posterior.predict(x[0]).mean[None] + 0.1
    points = PointSet(x, y, torch.ones(1, 3, dtype=torch.bool))
    sampled = DropoutPosterior.joint_log_prob(posterior, points, 8_000, generator)
    ours = posterior.joint_log_prob(points, 8 * 200, generator)
    assert ours.item() == pytest.approx(sampled.item(), abs=0.2)
    functions = posterior.predict(x[0], 4_000)
    fitted = gaussian_joint(Prediction(functions.functions[:, None], functions.stds[:, None]), y)
    assert posterior.joint_closed_form(points).item() == pytest.approx(fitted.item(), abs=0.3)


def test_a_plain_model_is_integrated_only_where_its_configuration_says_so(small_config):
    before, after = (build_model(small_config("nvdp", change)) for change in ({}, PLAIN))
    assert type(before.adapt([0.0], [1.0])) is DropoutPosterior
    assert type(after.adapt([0.0], [1.0])) is IntegratedPosterior
    assert (before.likelihood.outputs, after.likelihood.outputs) == (2, 1)
