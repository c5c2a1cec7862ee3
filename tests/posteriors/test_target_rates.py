import pytest
import torch
from torch import nn
from torch.distributions import MultivariateNormal

import nvdp
from nvdp.evaluation.gates import mean_over_tasks, next_task
from nvdp.models.registry import build_model
from nvdp.nn.dropout import MeanWeights
from nvdp.posteriors.target_rates import TargetRatesPosterior
from nvdp.tasks import PointSet

PER_TARGET = {"rates.per": "target", "decoder.activation": "silu"}
NAMES = ("nvdp-attentive", "nvdp-conv")


def made(small_config, name, changes=None, spread=1.0):
    """A model whose targets have rates of their own, its hidden layers nearly without noise."""
    model = build_model(small_config(name, PER_TARGET | {"rates.floor": 1e-6} | (changes or {}))).eval()
    with torch.no_grad():
        for head in model.rates.heads[:-1]:
            head.bias.fill_(-30.0)
        generator = torch.Generator().manual_seed(1)
        nn.init.normal_(model.target_logits.weight, std=spread, generator=generator)
    return model


@pytest.fixture(params=[(name, reads) for name in NAMES for reads in (True, False)])
def posterior(request, small_config, make_task):
    task, (name, reads) = make_task(6, 0), request.param
    return made(small_config, name, {"decoder.reads": reads}).adapt(task.x_context, task.y_context)


def test_without_logits_of_targets_the_answer_is_that_of_task_rates(small_config, make_task):
    model, task = made(small_config, "nvdp-conv", spread=0.0), make_task(6, 5)
    plain = build_model(small_config("nvdp-conv", {"decoder.activation": "silu", "rates.floor": 1e-6})).eval()
    plain.load_state_dict(model.state_dict(), strict=False)
    points = PointSet.of(task.x_target, task.y_target)
    ours, theirs = (each.adapt(task.x_context, task.y_context) for each in (model, plain))
    assert isinstance(ours, TargetRatesPosterior)
    for each in ("mean", "std"):
        assert torch.allclose(getattr(ours.predict(task.x_target), each), getattr(theirs.predict(task.x_target), each))
    assert torch.allclose(ours.joint_closed_form(points), theirs.joint_closed_form(points), atol=1e-4)


def test_rates_differ_between_targets(posterior):
    rows = posterior._rows_at(posterior.seen(torch.tensor([[[-1.5], [1.5]]])))
    assert (rows[0, 0] - rows[0, 1]).abs().max() > 0.01


def test_the_mean_by_products_of_matrices_is_that_of_the_mean_weights(posterior, generator):
    seen = posterior.seen(torch.linspace(-2, 2, 4)[None, :, None])
    (layer, rates), rows = posterior._last(), posterior._rows_at(seen)
    hidden = torch.randn(rows.shape, generator=generator)
    columns = rates.columns * rates.layer
    kept = 1 - rates.bounds(rows[..., None] * columns[:, None, None])
    by_weights = (hidden[..., None] * (kept * layer.weight)).sum(-2)
    assert torch.allclose(posterior._mean(hidden, rows, columns), by_weights, atol=1e-5)


def test_a_prediction_has_the_moments_of_sampled_functions(posterior, generator):
    x = torch.linspace(-2, 2, 5)
    sampled, closed = posterior.predict(x, 20_000, generator), posterior.predict(x)
    assert ((sampled.mean - closed.mean).abs() < 5 * sampled.spread / 20_000**0.5 + 1e-4).all()
    assert torch.allclose(sampled.std, closed.std, rtol=0.02)


def test_all_outputs_together_have_the_covariance_of_sampled_functions(posterior, generator):
    x = torch.linspace(-2, 2, 3)[None, :, None]
    functions = posterior.predict(x[0], 20_000, generator)
    values = functions.functions.flatten(1)
    covariance = values.T.cov() + functions.stds[0].flatten().square().diag()
    y = values.mean(0) + 0.1
    ours = posterior.joint_closed_form(PointSet(x, y[None, :, None], torch.ones(1, 3, dtype=torch.bool)))
    assert ours.item() == pytest.approx(MultivariateNormal(values.mean(0), covariance).log_prob(y).item(), abs=0.1)


def test_a_sample_is_the_same_function_wherever_it_is_asked(posterior):
    functions = posterior.functions(samples=4)
    both, one = functions(torch.tensor([[[0.5], [0.7]]]))[0], functions(torch.tensor([[[0.7]]]))[0]
    assert torch.allclose(both[:, :, 1:], one, atol=1e-5)


@torch.no_grad()
def test_several_outputs_have_their_own_basis(small_config, generator):
    model = made(small_config, "nvdp-conv", {"y_dim": 2})
    x, y = torch.randn(3, 6, 1, generator=generator), torch.randn(3, 6, 2, generator=generator)
    posterior, points = model.adapt(x[:, :4], y[:, :4]), PointSet.of(x, y, torch.ones(3, 6, dtype=torch.bool))
    together = posterior.joint_closed_form(points)
    seen = posterior.seen(x)
    _, basis = posterior._outputs_and_basis(posterior._hidden(x, MeanWeights(), seen), seen)
    mean, std = model.likelihood(posterior.mean_outputs(x))
    for task in range(3):
        total = sum(
            MultivariateNormal(
                mean[task, :, output],
                basis[task, output] @ basis[task, output].T + std[task, :, output].square().diag(),
            ).log_prob(y[task, :, output])
            for output in range(2)
        )
        assert together[task].item() == pytest.approx(float(total), abs=1e-3)


def test_changed_rates_are_one_vector_for_all_targets_or_those_of_another_task(small_config, generator):
    model = made(small_config, "nvdp-conv")
    x, y = torch.randn(3, 6, 1, generator=generator), torch.randn(3, 6, 1, generator=generator)
    posterior = model.adapt(x, y)
    rates, constant, other = (
        each._rows_at(each.seen(x))
        for each in (posterior, posterior.changed(mean_over_tasks), posterior.changed(next_task))
    )
    assert torch.allclose(constant[0, 0], constant[2, 5])
    assert not torch.allclose(rates[0, 0], rates[2, 5])
    assert torch.allclose(other[1], rates[0], rtol=0.2, atol=0.05)  # rows of the next task


def test_the_bound_reaches_the_logits_of_targets(small_config, make_task):
    model, task = made(small_config, "nvdp-attentive", spread=0.0), make_task(5, 4)
    posterior = model.adapt(task.x_context, task.y_context)
    posterior.expected_log_likelihood(PointSet.of(task.x_target, task.y_target)).sum().backward()
    assert model.target_logits.weight.grad.abs().sum() > 0


def test_a_model_without_a_reader_has_no_rates_of_targets(small_config):
    with pytest.raises(nvdp.InputError, match=r"rates\.per"):
        build_model(small_config("nvdp", {"rates.per": "target"}))


def test_rates_may_be_the_only_path_from_context_to_prediction(small_config, make_task):
    model, task = made(small_config, "nvdp-conv", {"decoder.reads": False}), make_task(5, 4)
    one, other = (model.adapt(task.x_context, sign * task.y_context) for sign in (1, -1))
    assert not torch.allclose(one.predict(task.x_target).mean, other.predict(task.x_target).mean)

    def same(posterior):
        return posterior.changed(lambda experts: torch.full_like(experts, 0.5)).predict(task.x_target).mean

    assert torch.equal(same(one), same(other))
    with pytest.raises(nvdp.InputError, match=r"decoder\.reads"):
        build_model(small_config("nvdp-conv", {"decoder.reads": False}))
