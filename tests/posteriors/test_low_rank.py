import torch
from torch.distributions import MultivariateNormal

from nvdp.models.registry import build_model
from nvdp.posteriors.low_rank import LowRankPosterior
from nvdp.tasks import PointSet


def convgnp(small_config, make_task, y_dim=2, **changes):
    model = build_model(small_config("convgnp", changes, y_dim=y_dim)).eval().requires_grad_(False)
    task = make_task(6, 5, 1, y_dim)
    return model.adapt(task.x_context, task.y_context), task


def test_a_prediction_has_the_moments_of_many_sampled_functions(small_config, make_task, generator):
    posterior, task = convgnp(small_config, make_task)
    assert isinstance(posterior, LowRankPosterior)
    sampled, closed = posterior.predict(task.x_target, 20_000, generator), posterior.predict(task.x_target)
    assert torch.allclose(sampled.mean, closed.mean, atol=0.03)
    assert torch.allclose(sampled.std, closed.std, rtol=0.03)


def test_all_points_together_have_the_density_of_their_covariance(small_config, make_task):
    posterior, task = convgnp(small_config, make_task, **{"likelihood.joint_share": 1.0})
    mask = torch.tensor([[True, True, True, False, True]])
    points = PointSet(task.x_target[None], task.y_target[None], mask)
    outputs, basis = posterior._split(points.x)
    mean, std = posterior.likelihood(outputs)
    expected = torch.zeros(())
    for output in range(2):
        own = basis[0, mask[0], output]
        covariance = own @ own.T + torch.diag(std[0, mask[0], output].square())
        expected += MultivariateNormal(mean[0, mask[0], output], covariance).log_prob(points.y[0, mask[0], output])
    torch.testing.assert_close(posterior.joint_closed_form(points)[0], expected, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(posterior.expected_log_likelihood(points), posterior.joint_closed_form(points))


def test_without_a_joint_share_the_bound_is_that_of_single_points(small_config, make_task):
    posterior, task = convgnp(small_config, make_task, **{"likelihood.joint_share": 0.0})
    points = PointSet(task.x_target[None], task.y_target[None], torch.ones(1, 5, dtype=torch.bool))
    each = posterior.predict(task.x_target).log_prob(task.y_target)
    torch.testing.assert_close(posterior.expected_log_likelihood(points)[0], each.sum(), atol=1e-4, rtol=1e-4)


def test_components_have_the_uncertainty_of_z_inside(small_config, make_task, generator):
    posterior, task = convgnp(small_config, make_task)
    ours, many = posterior.components(task.x_target, 4), posterior.predict(task.x_target, 8_000, generator)
    assert len(ours.functions) == 1
    assert torch.allclose(ours.std, many.std, rtol=0.05)
