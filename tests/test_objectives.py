import math

import pytest
import torch
from torch.distributions import Normal, kl_divergence

from nvdp.errors import InputError
from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.nn.dropout import LocalNoise
from nvdp.objectives import (
    OBJECTIVES,
    KLScale,
    likelihood_bound,
    log_uniform_bound,
    log_uniform_kl,
    neural_process_bound,
    variational_prior_bound,
)
from nvdp.tasks import Task, TaskBatch

KINDS = ("regression", "classification")


def seeded():
    return torch.Generator().manual_seed(3)


@pytest.fixture
def batch(ragged_batch):
    return ragged_batch(1, 2, torch.float64)


@pytest.fixture
def build(small_config):
    return lambda name: build_model(small_config(name, y_dim=2)).double()


@pytest.fixture
def episodes(generator):
    """Two episodes of three classes, with two and four queries a class."""

    def episode(queries):
        labels = torch.eye(3, dtype=torch.float64).repeat(2 + queries, 1)
        x = labels @ torch.randn(3, 4, generator=generator, dtype=torch.float64)
        x = x + 0.3 * torch.randn(x.shape, generator=generator, dtype=torch.float64)
        return Task(x[:6], labels[:6], x[6:], labels[6:])

    return TaskBatch.collate([episode(2), episode(4)])


def classifier(name):
    return build_model(
        ClassifierConfig(name, 3).updated(
            {"extractor.name": "none", "extractor.features": 4, "decoder.width": 8, "meta.width": 8}
        )
    ).double()


def normals(layer, rates):
    """Eq. 2 for the weights and the bias of one layer."""
    for theta, p in ((layer.weight, rates.weight()), (layer.bias, rates.bias())):
        yield Normal((1 - p) * theta, (p * (1 - p)).sqrt() * theta.abs())


def test_the_bound_of_nvdp_is_equation_5_written_out(build, batch):
    model, weight = build("nvdp"), 0.3
    q, prior = model.adapt(batch.context), model.adapt(batch.whole)

    mean, raw = q.network(batch.x, q.rates, LocalNoise(seeded())).chunk(2, dim=-1)
    likelihood = Normal(mean, 0.1 + 0.9 * torch.nn.functional.softplus(raw))
    log_likelihood = (likelihood.log_prob(batch.y) * batch.mask[..., None]).sum((-2, -1))
    kl = torch.zeros(4, dtype=torch.float64)
    for layer, ours, theirs in zip(q.network.layers, q.rates, prior.rates, strict=True):
        for a, b in zip(normals(layer, ours), normals(layer, theirs), strict=True):
            kl = kl + kl_divergence(a, b).flatten(1).sum(1)
    values = 2 * batch.mask.sum(-1)

    bound = variational_prior_bound(model, batch, KLScale("elbo", weight), seeded())
    torch.testing.assert_close(bound.value, ((log_likelihood - weight * kl) / values).mean())
    torch.testing.assert_close(bound.log_likelihood, (log_likelihood / values).mean())
    torch.testing.assert_close(bound.kl, kl.mean())


def test_the_neural_process_bound_swaps_the_roles_of_context_and_task(build, batch):
    model = build("np")
    with torch.no_grad():  # an untrained latent path hardly tells two sets apart
        for parameter in (*model.encoder.parameters(), *model.latent_head.parameters()):
            parameter.mul_(3)
    q, prior = model.adapt(batch.context), model.adapt(batch.whole)
    values = batch.whole.count * 2
    bounds = [bound(model, batch, KLScale(), seeded()) for bound in (variational_prior_bound, neural_process_bound)]
    for bound, expectation, other in zip(bounds, (q, prior), (prior, q), strict=True):
        log_likelihood = expectation.expected_log_likelihood(batch.whole, seeded())
        kl = kl_divergence(expectation, other)
        torch.testing.assert_close(bound.value, ((log_likelihood - kl) / values).mean())
        torch.testing.assert_close(bound.kl, kl.mean())
    assert not torch.isclose(bounds[0].value, bounds[1].value)


def test_the_two_bounds_agree_when_every_point_is_context(build, make_task):
    batch = TaskBatch.collate([make_task(5, 0, 1, 2, torch.float64), make_task(8, 0, 1, 2, torch.float64)])
    model = build("np")
    bounds = [bound(model, batch, KLScale(), seeded()) for bound in (variational_prior_bound, neural_process_bound)]
    torch.testing.assert_close(bounds[0].value, bounds[1].value)


@pytest.mark.parametrize("bound", [variational_prior_bound, neural_process_bound])
def test_a_cnp_has_no_kl_and_its_bound_is_the_likelihood(build, batch, bound):
    result = bound(build("cnp"), batch, KLScale("text", 5.0), seeded())
    assert result.kl.item() == 0.0
    assert result.value.item() == result.log_likelihood.item()


def test_a_bound_over_tasks_is_the_mean_of_the_tasks_bounds(build, batch):
    model = build("cnp")
    alone = [variational_prior_bound(model, TaskBatch.collate([task]), KLScale()).value for task in batch]
    torch.testing.assert_close(variational_prior_bound(model, batch, KLScale()).value, torch.stack(alone).mean())


@pytest.mark.parametrize("name", [name for name, spec in MODELS.items() if "regression" in spec.tasks])
def test_the_bound_of_every_model_reaches_every_parameter(build, batch, name):
    model = build(name)
    OBJECTIVES[MODELS[name].objective](model, batch, KLScale(), seeded()).value.backward()
    for parameter_name, parameter in model.named_parameters():
        assert parameter.grad is not None, parameter_name
        assert torch.isfinite(parameter.grad).all(), parameter_name
        assert parameter.grad.any(), parameter_name


@pytest.mark.parametrize(
    ("reduction", "expected"), [("elbo", [1.0, 1.5]), ("text", [10.0, 30.0]), ("released", [0.2, 0.3])]
)
def test_each_reduction_divides_by_what_its_name_says(reduction, expected):
    kl, values = torch.tensor([20.0, 60.0]), torch.tensor([10.0, 20.0])
    assert KLScale(reduction, 0.5)(kl, 5, values).tolist() == pytest.approx(expected)


def test_the_mean_over_one_number_is_the_number_and_over_none_nothing():
    kl, values = torch.tensor([20.0, 60.0]), torch.tensor([10.0, 20.0])
    assert torch.equal(KLScale("released")(kl, 1, values), KLScale("elbo")(kl, 1, values))
    assert not KLScale("released")(torch.zeros(2), 0, values).any()


@pytest.mark.parametrize(
    ("reduction", "weight", "words"),
    [("mean", 1.0, "'mean'; there are elbo, text, released"), ("elbo", -1.0, "-1.0"), ("elbo", math.nan, "nan")],
)
def test_impossible_kl_scales_are_refused(reduction, weight, words):
    with pytest.raises(InputError, match=words):
        KLScale(reduction, weight)


def test_log_uniform_kl_decreases_in_the_rate_down_to_zero():
    kl = log_uniform_kl(torch.linspace(0.001, 0.999, 1000, dtype=torch.float64))
    assert (kl.diff() < 0).all()
    assert (kl > 0).all()
    assert log_uniform_kl(torch.tensor(1 - 1e-9, dtype=torch.float64)).item() == pytest.approx(0, abs=1e-6)


def test_log_uniform_kl_agrees_with_numerical_integration():
    # −KL = ½ log α − E log|1 + √α ε| + const; the constant goes away in differences.
    rates = torch.tensor([0.1, 0.3, 0.5, 0.7, 0.9], dtype=torch.float64)
    alpha = (rates / (1 - rates))[:, None]
    epsilon = (torch.arange(-80_000, 80_000, dtype=torch.float64) + 0.5) * 1e-4
    density = torch.exp(-0.5 * epsilon**2) / math.sqrt(2 * math.pi)
    expectation = ((1 + alpha.sqrt() * epsilon).abs().log() * density).sum(-1) * 1e-4
    exact = expectation - 0.5 * alpha[:, 0].log()
    torch.testing.assert_close(log_uniform_kl(rates).diff(), exact.diff(), atol=0.02, rtol=0)


def test_the_log_uniform_bound_sums_over_weights_and_biases(build, batch):
    model = build("nvdp")
    bound = log_uniform_bound(model, batch, KLScale("text", 1.0), seeded())
    q = model.adapt(batch.context)
    rates = [p.flatten(1) for layer in q.rates for p in (layer.weight(), layer.bias())]
    torch.testing.assert_close(bound.kl, log_uniform_kl(torch.cat(rates, 1)).sum(1).mean())
    torch.testing.assert_close(bound.value, bound.log_likelihood - bound.kl)


@pytest.mark.parametrize("name", ["cnp", "np", "np+cnp+vp"])
def test_the_log_uniform_bound_refuses_models_without_dropout(build, batch, name):
    with pytest.raises(InputError, match=f"{name.replace('+', '[+]')} has none"):
        log_uniform_bound(build(name), batch, KLScale())


def test_in_the_usual_bound_only_the_latent_path_may_know_of_the_targets(small_config, ragged_batch):
    model, tasks = build_model(small_config("np+cnp")), ragged_batch()
    q_context, q_task = model.adapt_both(tasks)
    sampled = q_task.with_deterministic_path_of(q_context)
    assert torch.equal(sampled.representation, q_context.representation)
    assert not torch.equal(q_task.representation, q_context.representation)
    assert sampled.latent is q_task.latent
    bound = neural_process_bound(model, tasks, KLScale("elbo", 0.0), torch.Generator().manual_seed(0))
    expected = sampled.expected_log_likelihood(tasks.whole, torch.Generator().manual_seed(0))
    values = tasks.mask.sum(-1) * tasks.y.shape[-1]
    torch.testing.assert_close(bound.value, (expected / values).mean())


def test_the_bound_of_queries_is_equation_5_with_their_likelihood_alone(episodes):
    model, weight = classifier("nvdp"), 0.3
    seen = model.embedded(episodes)
    q, prior, queries = *model.adapt_both(seen), model.scored(seen)
    log_softmax = q.training_outputs(queries.x, seeded()).log_softmax(-1)
    log_likelihood = ((log_softmax * queries.y).sum(-1) * queries.mask).sum(-1)
    kl, values = kl_divergence(q, prior), torch.tensor([6.0, 12.0])

    bound = variational_prior_bound(model, episodes, KLScale("elbo", weight), seeded())
    torch.testing.assert_close(bound.value, ((log_likelihood - weight * kl) / values).mean())
    torch.testing.assert_close(bound.log_likelihood, (log_likelihood / values).mean())
    torch.testing.assert_close(bound.kl, kl.mean())

    alone = likelihood_bound(model, episodes, KLScale("elbo", weight), seeded())
    assert alone.kl.item() == 0.0
    assert alone.value.item() == alone.log_likelihood.item() == bound.log_likelihood.item()
    for result in (bound, alone):
        assert torch.equal(result.posterior.mean_outputs(queries.x), q.mean_outputs(queries.x))


@pytest.mark.parametrize(
    ("objective", "name", "kind"),
    [
        *(("variational-prior", name, "regression") for name in ("nvdp", "np")),
        ("neural-process", "np+cnp", "regression"),
        *((objective, "nvdp", kind) for objective in ("likelihood", "log-uniform") for kind in KINDS),
        ("variational-prior", "nvdp", "classification"),
        ("likelihood", "meta-dropout", "classification"),
    ],
)
def test_all_noise_of_a_bound_comes_from_its_generator(build, batch, episodes, objective, name, kind):
    model, tasks = (build(name), batch) if kind == "regression" else (classifier(name), episodes)
    before = torch.get_rng_state()
    first, second, other = (
        OBJECTIVES[objective](model, tasks, KLScale(), torch.Generator().manual_seed(seed)).value.item()
        for seed in (3, 3, 4)
    )
    assert first == second != other
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("objective", ["likelihood", "log-uniform"])
def test_a_bound_keeps_the_posterior_of_the_context(build, batch, objective):
    model = build("nvdp")
    result = OBJECTIVES[objective](model, batch, KLScale(), seeded())
    assert torch.equal(result.posterior.mean_rates(), model.adapt(batch.context).mean_rates())


def test_likelihood_alone_is_the_first_half_of_the_bound(build, batch):
    model = build("nvdp")
    whole, alone = (OBJECTIVES[o](model, batch, KLScale(), seeded()) for o in ("variational-prior", "likelihood"))
    assert alone.kl.item() == 0.0
    assert alone.value.item() == alone.log_likelihood.item() == whole.log_likelihood.item()
