"""Units: what is asked and answered in the user's units is what a standardised model says, scaled."""

import numpy as np
import pytest
import torch

import nvdp
from nvdp.data.tables import Columns
from nvdp.errors import FarNote, InputError
from nvdp.loading import Predictor
from nvdp.models.registry import build_model
from nvdp.posteriors.prediction import Prediction
from nvdp.units import PosteriorInUnits, Units
from nvdp.web.served import check_distance

UNITS = Units((3.0, -1.0), (2.0, 5.0), (100.0, 0.0), (10.0, 0.5), (-50.0, -50.0), (50.0, 50.0))


@pytest.fixture
def predictor(small_config):
    return Predictor(build_model(small_config("nvdp", (), 2, 2)).eval().requires_grad_(False), UNITS)


def scaled_back(x, y):
    x_centre, x_spread, y_centre, y_spread = map(torch.tensor, list(vars(UNITS).values())[:4])
    return x * x_spread + x_centre, y * y_spread + y_centre


def test_the_log_density_is_that_of_the_standardised_output_less_the_log_of_its_spread(predictor, make_task):
    task = make_task(5, 4, 2, 2)
    own = predictor.model.adapt(task.x_context, task.y_context)
    posterior = predictor.adapt(*scaled_back(task.x_context, task.y_context))
    x, y = scaled_back(task.x_target, task.y_target)
    for samples in (0, 6):
        ours, theirs = posterior.predict(x, samples), own.predict(task.x_target, samples)
        expected = theirs.log_prob(task.y_target).double() - torch.tensor([10.0, 0.5], dtype=torch.float64).log()
        torch.testing.assert_close(ours.log_prob(y), expected, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.cdf(y), theirs.cdf(task.y_target).double(), atol=1e-4, rtol=1e-4)
        assert ours.coherent == theirs.coherent


def test_a_density_integrates_to_one_and_its_quantiles_agree():
    prediction = Prediction(torch.randn(3, 1, 1), 0.3 + torch.rand(3, 1, 1)).scaled([40.0], [7.0])
    grid = torch.linspace(-60, 140, 20_001, dtype=torch.float64)
    density = Prediction(prediction.functions.expand(3, 20_001, 1), prediction.stds.expand(3, 20_001, 1))
    mass = density.log_prob(grid).exp()
    assert torch.trapezoid(mass[:, 0], grid).item() == pytest.approx(1, abs=1e-6)
    below = grid <= prediction.quantile(0.2).item()
    assert torch.trapezoid(mass[below, 0], grid[below]).item() == pytest.approx(0.2, abs=1e-3)


def test_points_may_come_as_sets_and_padding_stays_out(predictor, make_task):
    from nvdp.tasks import TaskBatch

    batch = TaskBatch.collate([make_task(3, 2, 2, 2), make_task(6, 2, 2, 2)])
    x, y = scaled_back(batch.x, batch.y)
    together = predictor.adapt(TaskBatch(x, y, batch.is_context, batch.mask).context).predict(x)
    alone = predictor.adapt(x[0, :3], y[0, :3]).predict(x[0])
    torch.testing.assert_close(together.mean[0], alone.mean, atol=1e-4, rtol=1e-5)
    assert together.mean.shape == (2, 8, 2)


def test_functions_are_the_same_functions_in_the_users_units(predictor, make_task):
    task = make_task(5, 4, 2, 2)
    posterior = predictor.adapt(*scaled_back(task.x_context, task.y_context))
    x = scaled_back(task.x_target, task.y_target)[0]
    values, stds = posterior.functions(8, seed=3)(x[None])
    drawn = posterior.predict(x, 8, 3)
    torch.testing.assert_close(values[:, 0], drawn.functions, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(stds[:, 0], drawn.stds, atol=1e-4, rtol=1e-5)


def test_values_as_they_are_cost_nothing(predictor, small_config):
    x, y = torch.randn(3, 2), torch.randn(3, 2)
    plain = Predictor.of(predictor.model)
    assert plain.units.x_in(x) is x
    assert plain.units.points_in(x, y)[1] is y
    assert not isinstance(plain.adapt(x, y), PosteriorInUnits)
    prediction = plain.adapt(x, y).predict(x)
    assert plain.units.y_out(prediction) is prediction


def test_digits_of_large_numbers_are_kept():
    """Seconds since 1970 differ in digits that float32 does not have."""
    units = Units((1.7e9,), (1.0,), (0.0,), (1.0,), (0.0,), (2e9,))
    for seconds in ([1.7e9 + 0.25], np.array([1.7e9 + 0.25]), [[1.7e9 + 0.25]]):
        assert units.x_in(seconds).item() == 0.25


def test_numbers_whose_squares_are_nothing_keep_their_spread():
    y = np.array([[1.0], [3.0]])
    tiny, usual = (Units.of([y], [y * scale]) for scale in (1e-300, 1.0))
    assert 1e300 * tiny.y_spread[0] == pytest.approx(usual.y_spread[0])
    assert Units.of([y], [y * 0]).y_spread == (1.0,)


def test_a_note_about_far_points_names_columns_and_writes_dates():
    columns = Columns("cow", ("day", "age"), ("milk",), dates=("day",))
    units = Units.of([np.array([[0.0, 1.0], [10.0, 5.0]])], [np.array([[1.0], [3.0]])])
    note = units.far([[20.0, 3.0]], [[500.0]], columns)
    assert "1 of 1 points lie outside the inputs of training, day from 1970-01-01 to 1970-01-11: " in note
    assert "milk goes from 500 to 500" in note
    assert "age" not in note


@pytest.mark.parametrize("x", [[1.0, 2.0], [[1.0], [2.0]], [["a", "b"]], 5.0])
def test_inputs_of_another_width_are_refused(predictor, x):
    with pytest.raises(InputError, match=r"x has shape|not an array"):
        predictor.adapt(x, [[1.0, 2.0]])


def test_units_come_back_from_their_dictionary():
    free = Units.identity(2, 1, x_low=0.0)
    assert Units.from_dict(free.to_dict()) == free
    assert Units.from_dict(UNITS.to_dict()) == UNITS
    with pytest.raises(InputError, match="no units"):
        Units.from_dict({"x_centre": [0.0]})


def test_the_general_model_refuses_what_it_cannot_standardise_and_warns_far_from_the_context():
    general = nvdp.load("general")
    with pytest.raises(InputError, match=r"the largest value is 1e\+300; standardising needs"):
        general.adapt([1.0, 2.0], [1e300, -1e300])
    with pytest.raises(InputError, match="x is not an array of numbers"):
        general.adapt([[1.0], [2.0, 3.0]], [1.0, 2.0])
    with pytest.raises(InputError, match="the range of x"):
        general.within([0.0], [np.inf]).adapt([1.0, 1.5], [1.0, 2.0])
    posterior = general.adapt([1.0, 2.0, 3.0], [1.0, 2.0, 3.0])
    for ask in (posterior.predict, posterior.suggest):
        with pytest.warns(FarNote, match=r"1 of 2 points lie more than 10 .* the farthest 1.22e\+03"):
            ask([2.0, 1002.0])


@pytest.mark.parametrize("name", ["gp", "gp-nvdp"])
def test_queries_outside_the_inputs_of_training_are_told(name):
    posterior = nvdp.load(name).adapt([0.0, 1.0], [0.5, -0.5])
    posterior.predict([-2.0, 2.0])
    with pytest.warns(FarNote, match=r"1 of 2 points lie outside the inputs of training, \[-2, 2\]"):
        posterior.predict([0.0, 2.5])


def test_inputs_that_are_taken_by_their_logarithm_are_outside_by_factors():
    x = np.geomspace(1.0, 1e6, 20)[:, None]
    units = Units.of([x], [x], x_log=(True,))
    assert units.outside(np.array([[1.0], [1e6], [0.9], [1e7]])).tolist() == [False, False, True, True]


def test_a_served_model_measures_distances_of_logarithms_by_factors():
    near, far = np.array([[5.0, 1e4]]), np.array([[5.0, 1e9]])
    centre, spread = np.array([0.0, 0.0]), np.array([0.1, 0.01])
    check_distance("x", near, centre, spread, (False, True))
    with pytest.raises(InputError, match=r"x\[0\]\[1\] is 1e\+09"):
        check_distance("x", far, centre, spread, (False, True))
