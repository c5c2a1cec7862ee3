import pytest
import torch
from torch.distributions import Categorical, Normal

from nvdp.errors import InputError
from nvdp.nn.likelihoods import CategoricalLikelihood, GaussianLikelihood, gaussian_log_prob


def test_log_prob_is_that_of_the_normal_distribution(generator):
    y, mean = torch.randn(2, 50, generator=generator, dtype=torch.float64)
    std = 0.1 + torch.rand(50, generator=generator, dtype=torch.float64)
    torch.testing.assert_close(gaussian_log_prob(y, mean, std), Normal(mean, std).log_prob(y))


@pytest.mark.parametrize("min_std", [0.1, 0.01])
def test_learned_std_is_a_floor_plus_softplus(min_std):
    likelihood = GaussianLikelihood(2, "learned", min_std)
    assert likelihood.outputs == 4
    outputs = torch.tensor([[1.0, 2.0, 0.0, -200.0]])
    mean, std = likelihood(outputs)
    assert mean.tolist() == [[1.0, 2.0]]
    expected = [min_std + (1 - min_std) * 0.6931472, min_std]
    assert std[0].tolist() == pytest.approx(expected, rel=1e-6)


def test_fixed_std_is_one():
    likelihood = GaussianLikelihood(3, "fixed")
    assert likelihood.outputs == 3
    outputs = torch.randn(4, 3)
    mean, std = likelihood(outputs)
    assert torch.equal(mean, outputs)
    assert torch.equal(std, torch.ones(4, 3))


def test_unknown_variance_is_refused():
    with pytest.raises(InputError, match="'free'"):
        GaussianLikelihood(1, "free")


@pytest.mark.parametrize("variance", ["learned", "fixed"])
def test_log_prob_of_outputs_sums_over_the_values_of_a_point(variance, generator):
    likelihood = GaussianLikelihood(2, variance)
    outputs = torch.randn(5, likelihood.outputs, generator=generator)
    y = torch.randn(5, 2, generator=generator)
    assert torch.equal(likelihood.log_prob(outputs, y), gaussian_log_prob(y, *likelihood(outputs)).sum(-1))


def test_categorical_log_prob_is_that_of_the_categorical_distribution(generator):
    logits = 9 * torch.randn(20, 4, generator=generator, dtype=torch.float64)
    classes = torch.randint(4, (20,), generator=generator)
    one_hot = torch.eye(4, dtype=torch.float64)[classes]
    expected = Categorical(logits=logits).log_prob(classes)
    torch.testing.assert_close(CategoricalLikelihood().log_prob(logits, one_hot), expected)
