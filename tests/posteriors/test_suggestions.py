"""Suggestions: where the uncertainty is, never twice, and each in the light of the ones before."""

import math

import pytest
import torch

import nvdp
from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.posteriors import suggestions
from nvdp.posteriors.prediction import Prediction
from nvdp.posteriors.suggestions import uncertainty
from nvdp.tables import NVDPRegressor

NAMES = ("nvdp", "cnp", "np", "np+cnp", "nvdp-attentive")  # every kind of posterior, with a memory and without


@pytest.fixture
def candidates(generator):
    return torch.randn(12, 1, generator=generator)


@pytest.fixture(params=NAMES)
def posterior(request, small_config):
    model = build_model(small_config(request.param)).eval().requires_grad_(False)
    return model.adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])


def test_the_first_suggestion_is_where_sampled_functions_differ_most(posterior, candidates):
    prediction = posterior.predict(candidates, 8, 3)
    by_hand = prediction.functions.var(0, correction=0)[:, 0]
    if posterior.size == 0:  # one function: its own standard deviation is all the uncertainty there is
        by_hand = prediction.std[:, 0]
    assert posterior.suggest(candidates, samples=8, seed=3).tolist() == [by_hand.argmax().item()]
    by_std = posterior.suggest(candidates, by="std", samples=8, seed=3)
    assert by_std.tolist() == [prediction.std[:, 0].argmax().item()]


def test_all_candidates_are_suggested_once(posterior, candidates):
    assert sorted(posterior.suggest(candidates, k=12, samples=4).tolist()) == list(range(12))


def test_the_second_is_chosen_as_if_the_first_had_its_expected_value(small_config, candidates):
    posterior = build_model(small_config("nvdp")).eval().adapt([-1.0, 0.0], [0.3, 0.9])
    first, second = posterior.suggest(candidates, k=2, samples=8).tolist()
    believed = posterior.predict(candidates[[first]], 8, 0).mean
    left = [index for index in range(12) if index != first]
    again = posterior.update(candidates[[first]], believed).suggest(candidates[left], samples=8)
    assert left[again.item()] == second


def test_without_a_memory_functions_are_conditioned_as_a_gaussian(generator):
    """Against cov − c cᵀ / (c_ii + σ²) on the whole matrix."""
    points, samples, noise = 9, 6, 0.3
    half = torch.randn(samples, points, generator=generator, dtype=torch.float64)
    functions = torch.cat([half, -half])[..., None]  # their mean is exactly zero
    stds = torch.full_like(functions, math.sqrt(noise))

    class Forgetful:
        memory = None

        def predict(self, x, samples=0, generator=None):
            return Prediction(functions[:, None], stds[:, None])

    chosen = suggestions.suggest(Forgetful(), torch.zeros(1, points, 1), 5, "spread", samples, 0)
    covariance, expected = half.mT @ half / samples, []
    for _ in range(5):
        variance = covariance.diagonal().clone()
        variance[expected] = -1
        best = int(variance.argmax())
        expected.append(best)
        column = covariance[:, best]
        covariance = covariance - torch.outer(column, column) / (column[best] + noise)
    assert chosen[0].tolist() == expected


def test_several_tasks_at_once_equal_each_alone(small_config, ragged_batch, candidates):
    model = build_model(small_config("cnp")).eval()
    batch = ragged_batch()
    together = model.adapt(batch.context).suggest(candidates, k=3)
    for task, chosen in zip(batch, together, strict=True):
        assert model.adapt(task.x_context, task.y_context).suggest(candidates, k=3).tolist() == chosen.tolist()


def test_candidates_in_small_parts_are_judged_alike(small_config, candidates, monkeypatch):
    posterior = build_model(small_config("np")).eval().adapt([-1.0, 0.0], [0.3, 0.9])
    whole = posterior.suggest(candidates, k=4)
    monkeypatch.setattr(suggestions, "CANDIDATES_AT_ONCE", 100)
    assert torch.equal(posterior.suggest(candidates, k=4), whole)


def test_what_cannot_be_suggested_is_told_in_one_line(small_config, candidates):
    posterior = build_model(small_config("nvdp")).eval().adapt([0.0], [1.0])
    for k in (0, 13):
        with pytest.raises(InputError, match=f"k is {k}; expected a number from 1 to 12"):
            posterior.suggest(candidates, k=k)
    with pytest.raises(InputError, match="unknown acquisition 'variance'; there are: spread, std"):
        posterior.suggest(candidates, by="variance")
    with pytest.raises(InputError, match="x has shape"):
        posterior.suggest(torch.zeros(3, 2))


def test_uncertainty_adds_up_over_outputs():
    functions = torch.tensor([[[0.0, 0.0]], [[2.0, 4.0]]])
    assert uncertainty(Prediction(functions, torch.ones(2, 1, 2))).tolist() == [1.0 + 4.0]
    assert uncertainty(Prediction(functions, torch.ones(2, 1, 2)), "std").tolist() == [2.0 + 5.0]


def test_a_fitted_estimator_suggests_in_its_own_units():
    regressor = NVDPRegressor.from_pretrained("gp").fit([[-1.0], [0.0], [1.0]], [0.3, 0.9, 0.1])
    candidates = torch.linspace(-2, 2, 21)
    posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
    assert regressor.suggest(candidates[:, None].numpy(), k=2).tolist() == posterior.suggest(candidates, k=2).tolist()
