"""The pretrained model `general`: right in any units, honest with few points, the same through every door."""

import numpy as np
import pytest
import torch

import nvdp
from nvdp.errors import InputError
from nvdp.evaluation.in_turn import joint_log_prob, sample_in_turn
from nvdp.tables import NVDPRegressor
from nvdp.units import MOST_POINTS, ContextUnits

RANDOM = np.random.default_rng(0)
X = RANDOM.uniform(0, 5, (30, 1))
Y = np.sin(X) + 0.1 * RANDOM.normal(size=(30, 1))
AT = np.linspace(-1, 7, 9)[:, None]


@pytest.fixture(scope="module")
def general():
    return nvdp.load("general")


@pytest.mark.parametrize("inputs", [1, 2, 3])
def test_answers_follow_affine_maps_of_inputs_and_outputs(general, inputs):
    x, at = (np.tile(part, inputs) + np.arange(inputs) * part**2 for part in (X, AT))
    here = general.adapt(x, Y).predict(at)
    there = general.adapt(1e3 * x - 7, 1e-3 * Y + 50).predict(1e3 * at - 7)
    torch.testing.assert_close((there.mean - 50) * 1e3, here.mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(there.std * 1e3, here.std, atol=1e-4, rtol=1e-4)


def test_a_few_outliers_do_not_change_the_units_of_the_rest():
    spoilt = Y.copy()
    spoilt[:2] += 500
    plain, robust = (ContextUnits().of_context(X, y).y_spread.item() for y in (Y, spoilt))
    assert robust < 60 * plain < 0.5 * spoilt.std()


@pytest.mark.parametrize("size", [0, 1, 2])
def test_contexts_of_no_one_and_two_points_are_answered(general, size):
    prediction = general.adapt(X[:size], Y[:size]).predict(AT)
    assert prediction.std.min() > 0.05
    assert prediction.mean.isfinite().all()


def test_noise_is_inferred(general):
    clean, noisy = (np.sin(X) + noise * RANDOM.normal(size=X.shape) for noise in (0.01, 0.7))
    surer, surest_not = (general.adapt(X, y).predict([[2.5]]).std.item() for y in (clean, noisy))
    assert surer < 0.3 < surest_not


def test_two_answers_at_one_input_are_noise(general):
    prediction = general.adapt(np.zeros((2, 1)), [[-1.0], [1.0]]).predict([[0.0]])
    assert abs(prediction.mean.item()) < 0.5
    assert prediction.std.item() > 0.5


def test_tasks_of_a_batch_have_units_of_their_own(general):
    both = general.adapt(np.stack([X, 10 * X]), np.stack([Y, Y + 100]), torch.ones(2, 30, dtype=torch.bool))
    first, second = both.predict(np.stack([AT, 10 * AT])).mean
    torch.testing.assert_close(first, general.adapt(X, Y).predict(AT).mean, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(second - 100, first, atol=1e-4, rtol=1e-4)


def test_padding_does_not_change_the_units():
    padded = np.concatenate([X, np.full((5, 1), 1e6)])[None], np.concatenate([Y, np.full((5, 1), -1e6)])[None]
    units = ContextUnits().of_context(*padded, torch.arange(35)[None] < 30)
    plain = ContextUnits().of_context(X, Y)
    assert units.y_spread.item() == pytest.approx(plain.y_spread.item())
    assert units.x_centre.item() == pytest.approx(plain.x_centre.item())


def test_a_range_of_inputs_scales_them_instead(general):
    prediction = general.within([0.0], [5.0]).adapt(X[:1], Y[:1]).predict(AT)
    assert prediction.mean.isfinite().all()
    with pytest.raises(InputError, match="units of its own"):
        nvdp.load("gp").within([0.0], [1.0])
    with pytest.raises(InputError, match="range of x"):
        general.within([1.0], [0.0]).adapt(X, Y)


def test_more_points_than_it_reads_are_thinned_with_a_warning(general):
    x = np.linspace(0, 1, MOST_POINTS + 200)[:, None]
    with pytest.warns(UserWarning, match="1200 points and this model reads at most 1000"):
        mean = general.adapt(x, 3 * x).predict([[0.5]]).mean
    assert mean.item() == pytest.approx(1.5, abs=0.3)


def test_more_inputs_than_it_takes_are_one_line(general):
    with pytest.raises(InputError, match="4 features; this model takes at most 3"):
        general.adapt(np.zeros((5, 4)), np.zeros((5, 1)))
    with pytest.raises(InputError, match="4 features and y 1 outputs; the model was meta-trained on 1 to 3 and 1"):
        NVDPRegressor().fit(np.zeros((5, 4)), np.arange(5.0))


def test_the_estimator_uses_it_where_there_are_no_tasks(general):
    mean, std = NVDPRegressor().fit(X, Y[:, 0]).predict(AT, return_std=True)
    prediction = general.adapt(X, Y).predict(AT)
    np.testing.assert_allclose(mean, prediction.mean[:, 0])
    np.testing.assert_allclose(std, prediction.std[:, 0])


def test_draws_in_turn_are_coherent_and_scatter_like_predictions(general):
    near = np.array([[6.9], [7.0]])  # beyond the context: both are uncertain, and together
    drawn = sample_in_turn(general, X, Y, near, samples=200, seed=1)[..., 0]
    assert torch.corrcoef(drawn.T)[0, 1] > 0.3
    std = general.adapt(X, Y).predict(near).std[0].item()
    assert drawn[:, 0].std().item() == pytest.approx(std, rel=0.5)
    assert NVDPRegressor().fit(X, Y[:, 0]).sample_y(near, 3, in_turn=2).shape == (2, 3)


def test_a_joint_density_of_one_point_is_that_of_the_prediction(general):
    single = general.adapt(X, Y).predict(AT[:1]).log_prob([[0.3]]).item()
    assert joint_log_prob(general, X, Y, AT[:1], [[0.3]]).item() == pytest.approx(single)
    independent = general.adapt(X, Y).predict(AT).log_prob(np.zeros((9, 1))).sum().item()
    assert joint_log_prob(general, X, Y, AT, np.zeros((9, 1)), block=9).item() == pytest.approx(independent, rel=1e-5)


def test_it_keeps_no_memory_and_says_so(general):
    with pytest.raises(InputError, match="keeps no memory"):
        general.posterior_from_bytes(b"")
    with pytest.raises(InputError, match="keeps no memory"):
        general.adapt(X, Y).update(X, Y)


def test_botorch_takes_it_in_any_units(general):
    from nvdp.botorch import NVDPModel

    x = torch.tensor(X)
    here = NVDPModel(general, x, torch.tensor(Y)).posterior(torch.tensor(AT)).mean
    there = NVDPModel(general, 10 * x, torch.tensor(Y) - 30).posterior(10 * torch.tensor(AT)).mean
    torch.testing.assert_close(there + 30, here, atol=1e-6, rtol=1e-6)
