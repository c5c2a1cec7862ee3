import pytest
import torch
from torch.distributions import Categorical, MixtureSameFamily, Normal

from nvdp.errors import InputError
from nvdp.posteriors.prediction import Prediction


@pytest.fixture
def mixture(generator):
    functions = torch.randn(5, 2, 3, 1, generator=generator, dtype=torch.float64)
    return Prediction(functions, 0.2 + torch.rand(functions.shape, generator=generator, dtype=torch.float64))


@pytest.fixture
def reference(mixture):
    weights = Categorical(torch.ones(2, 3, 1, 5, dtype=torch.float64))
    return MixtureSameFamily(weights, Normal(mixture.functions.movedim(0, -1), mixture.stds.movedim(0, -1)))


def test_moments_and_distribution_are_those_of_the_mixture(mixture, reference):
    torch.testing.assert_close(mixture.mean, reference.mean)
    torch.testing.assert_close(mixture.std, reference.stddev)
    y = torch.linspace(-2, 2, 6, dtype=torch.float64).view(2, 3, 1)
    torch.testing.assert_close(mixture.cdf(y), reference.cdf(y))
    torch.testing.assert_close(mixture.log_prob(y), reference.log_prob(y))


def test_a_component_has_the_density_of_one_normal(mixture):
    y = torch.zeros(2, 3, 1, dtype=torch.float64)
    components = mixture.component_log_prob(y)
    torch.testing.assert_close(components, Normal(mixture.functions, mixture.stds).log_prob(y))
    assert (components.mean(0) < mixture.log_prob(y)).all()  # E log p ≤ log E p


def test_the_noise_of_a_sample_may_be_several_components(generator):
    functions, stds = torch.randn(6, 3, 1, generator=generator), torch.rand(6, 3, 1, generator=generator) + 0.1
    y, prediction = torch.zeros(3, 1), Prediction(functions, stds, noise=2)  # three φ with two components each
    density = Normal(functions, stds).log_prob(y).exp()
    expected = torch.stack([(density[k] + density[k + 3]) / 2 for k in range(3)]).log()
    torch.testing.assert_close(prediction.log_prob_by_sample(y), expected)
    torch.testing.assert_close(prediction.scaled([0.0], [1.0]).log_prob_by_sample(y).float(), expected)


@pytest.mark.parametrize("level", [0.01, 0.05, 0.5, 0.9, 0.975])
def test_quantile_inverts_the_distribution_function(mixture, level):
    torch.testing.assert_close(mixture.cdf(mixture.quantile(level)), torch.full((2, 3, 1), level, dtype=torch.float64))


def test_quantile_of_one_component_is_the_normal_quantile():
    one = Prediction(torch.full((1, 2, 1), 3.0), torch.full((1, 2, 1), 0.5))
    expected = Normal(3.0, 0.5).icdf(torch.tensor(0.9)).expand(2, 1)
    torch.testing.assert_close(one.quantile(0.9), expected)


def test_variance_is_noise_plus_disagreement(mixture):
    torch.testing.assert_close(mixture.std.square(), mixture.stds.square().mean(0) + mixture.spread.square())


def test_what_is_written_to_the_mean_stays_there():
    prediction = Prediction(torch.zeros(1, 2, 3, 2).mT, torch.ones(1, 2, 3, 2).mT)
    prediction.mean.add_(1)
    prediction.std.add_(1)
    assert not prediction.mean.any()
    assert torch.equal(prediction.std.view(-1), torch.ones(12))


def test_one_function_has_no_spread():
    one = Prediction(torch.randn(1, 4, 1), torch.ones(1, 4, 1))
    assert not one.spread.any()


def test_samples_have_the_mean_and_std_of_their_function(generator):
    n = 20_000
    prediction = Prediction(torch.full((n, 1, 1), 2.0), torch.full((n, 1, 1), 0.3))
    draws = prediction.sample(generator)
    assert draws.shape == (n, 1, 1)
    assert abs(draws.mean() - 2.0) < 4 * 0.3 / n**0.5
    assert abs(draws.std() - 0.3) < 4 * 0.3 / (2 * n) ** 0.5


def test_a_flat_y_is_one_feature_and_another_length_is_refused():
    prediction = Prediction(torch.zeros(4, 7, 1), torch.ones(4, 7, 1))
    assert prediction.log_prob([0.0] * 7).shape == (7, 1)
    assert prediction.cdf(torch.zeros(7)).shape == (7, 1)
    with pytest.raises(InputError, match=r"y has shape \(6, 1\); the prediction has \(7, 1\)"):
        prediction.log_prob(torch.zeros(6))


def test_observations_are_drawn_from_a_seed_and_leave_the_global_state_alone():
    prediction = Prediction(torch.zeros(4, 7, 1), torch.ones(4, 7, 1))
    before = torch.get_rng_state()
    assert torch.equal(prediction.sample(), prediction.sample(0))
    assert not torch.equal(prediction.sample(1), prediction.sample(0))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float16])
def test_quantiles_of_half_precision_are_those_of_single_precision(precision):
    full = Prediction(torch.randn(3, 4, 1), 0.5 + torch.rand(3, 4, 1))
    half = Prediction(full.functions.to(precision), full.stds.to(precision))
    for ours, theirs in (
        (half.quantile(0.9), full.quantile(0.9)),
        (half.cdf(torch.zeros(4, 1)), full.cdf(torch.zeros(4, 1))),
    ):
        assert ours.dtype == precision
        torch.testing.assert_close(ours.float(), theirs, atol=0.05, rtol=0.05)
