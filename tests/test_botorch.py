"""The BoTorch model: its samples are functions, its gradients are right, and acquisition functions work with it."""

import numpy as np
import pytest
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.exceptions.errors import UnsupportedError
from botorch.optim import optimize_acqf
from botorch.sampling.get_sampler import get_sampler
from botorch.sampling.normal import SobolQMCNormalSampler

from nvdp.botorch import FunctionsPosterior, NVDPModel
from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.loading import Predictor
from nvdp.models.registry import build_model
from nvdp.plots.curves import RegretPanel, figure_regret
from nvdp.posteriors.adjusted import Adjustment
from nvdp.units import Units

NAMES = ("nvdp", "cnp", "np", "np+cnp", "nvdp-attentive")  # every kind of posterior, with a memory and without
SHAPE = torch.Size([8])


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture(params=NAMES)
def model(request, small_config):
    meta = build_model(small_config(request.param, x_dim=2))
    return NVDPModel(meta, numbers(5, 2), numbers(5, 1, seed=1), samples=8)


@pytest.fixture
def cnp(small_config):
    return build_model(small_config("cnp", x_dim=2))


def test_a_sample_is_one_function_in_whatever_batch_it_is_asked(model):
    x = numbers(4, 3, 2)
    whole = model.posterior(x.reshape(12, 2))
    assert whole.rsample(torch.Size([5])).shape == (5, 12, 1)
    torch.testing.assert_close(model.posterior(x).values.reshape(8, 12, 1), whole.values)
    torch.testing.assert_close(model.posterior(x[:, None]).values.reshape(8, 12, 1), whole.values)
    torch.testing.assert_close(model.posterior(x[1, 2:]).values[:, 0], whole.values[:, 5])
    sampler = SobolQMCNormalSampler(SHAPE, seed=0)
    torch.testing.assert_close(sampler(model.posterior(x)).reshape(8, 12, 1), sampler(whole))


def test_quasi_random_samples_take_every_function_once(model):
    posterior = model.posterior(numbers(3, 2))
    sampler = get_sampler(posterior, SHAPE, seed=1)
    drawn = sampler(posterior)
    same = (drawn[:, None] == posterior.values).flatten(2).all(-1)
    assert same.any(0).all()
    torch.testing.assert_close(drawn.mean(0), posterior.mean)
    torch.testing.assert_close(drawn.var(0, correction=0), posterior.variance)


def test_gradients_in_the_points_are_those_of_finite_differences(model):
    x = numbers(2, 1, 2).requires_grad_()
    assert torch.autograd.gradcheck(lambda at: model.posterior(at).values, (x,), atol=1e-4, nondet_tol=0)


def test_the_moments_are_those_of_the_prediction(small_config):
    meta = build_model(small_config("nvdp")).eval()
    x, y, at = numbers(4, 1), numbers(4, 1, seed=1), numbers(6, 1, seed=2)
    ours = NVDPModel(meta, x, y, samples=4_096).posterior(at)
    sampled = meta.adapt(x, y).predict(at, 4_096, 1)
    torch.testing.assert_close(ours.mean, sampled.mean.double(), atol=0.05, rtol=0)
    beyond_floor = sampled.std.double().square() - meta.config.likelihood.min_std**2
    torch.testing.assert_close(ours.variance, beyond_floor, rtol=0.08, atol=0)
    alone = NVDPModel(meta, x, y, samples=4_096, lean=False).posterior(at)
    torch.testing.assert_close(alone.variance, sampled.spread.double().square(), rtol=0.15, atol=0)
    noisy = NVDPModel(meta, x, y, samples=4_096).posterior(at, observation_noise=True)
    torch.testing.assert_close(noisy.variance, sampled.std.double().square(), rtol=0.1, atol=0)


def test_more_observations_are_those_of_a_model_made_with_all(model):
    x, y, at = numbers(3, 2, seed=4), numbers(3, 1, seed=5), numbers(2, 2, seed=6)
    (old_x,), old_y = model.train_inputs, model.train_targets
    more = model.condition_on_observations(x, y)
    scratch = NVDPModel(model.meta_model, torch.cat([old_x, x]), torch.cat([old_y, y]), samples=8)
    torch.testing.assert_close(more.posterior(at).values, scratch.posterior(at).values)
    assert more.meta_model is model.meta_model


def test_a_batch_of_observations_is_a_batch_of_models(cnp):
    """A CNP has one function, so that each model of the batch can be compared with one of its own."""
    model = NVDPModel(cnp, numbers(5, 2), numbers(5, 1, seed=1), samples=4)
    x, y = numbers(3, 4, 1, 2, seed=2), numbers(3, 4, 1, 1, seed=3)
    many = model.condition_on_observations(x, y)
    assert many.batch_shape == (3, 4)
    at = numbers(6, 1, 1, 2, 2, seed=4)
    values = many.posterior(at).values
    assert values.shape == (4, 6, 3, 4, 2, 1)
    one = model.condition_on_observations(x[2, 1], y[2, 1])
    torch.testing.assert_close(values[:, :, 2, 1], one.posterior(at[:, 0, 0]).values)


def test_units_are_those_of_the_fitted_model(cnp):
    units = Units((3.0, 0.0), (2.0, 5.0), (100.0,), (10.0,), (-1.0, -1.0), (1.0, 1.0))
    fitted = Predictor(cnp, units)
    x, y, at = numbers(5, 2), numbers(5, 1, seed=1), numbers(3, 2, seed=2)
    plain = NVDPModel(cnp, x, y, samples=4).posterior(at)
    spread = torch.tensor([2.0, 5.0], dtype=torch.float64)
    shift = torch.tensor([3.0, 0.0], dtype=torch.float64)
    scaled = NVDPModel(fitted, x * spread + shift, 100 + 10 * y, samples=4)
    torch.testing.assert_close(scaled.posterior(at * spread + shift).values, 100 + 10 * plain.values)
    again = scaled.condition_on_observations(at * spread + shift, 100 + 10 * numbers(3, 1))
    assert again.predictor.units == units


def test_the_acquisition_optimum_is_that_of_a_fine_grid():
    """Minimising on [−2, 2] with a pretrained model, default sampler and optimiser."""
    import nvdp

    task = next(iter(GPTasks().training_batch(seed=3, step=0, tasks=1)))
    x, y = task.x_context[:4].double(), task.y_context[:4].double()
    model = NVDPModel(nvdp.load("gp-nvdp"), x, y, samples=16)
    minimise = LinearMCObjective(torch.tensor([-1.0], dtype=torch.float64))
    torch.manual_seed(0)
    acquisition = qLogExpectedImprovement(model, best_f=-y.min(), objective=minimise)
    bounds = torch.tensor([[-2.0], [2.0]], dtype=torch.float64)
    best, value = optimize_acqf(acquisition, bounds, q=1, num_restarts=3, raw_samples=64)
    with torch.no_grad():
        grid = acquisition(torch.linspace(-2, 2, 201, dtype=torch.float64)[:, None, None])
    assert bounds[0, 0] <= best.item() <= bounds[1, 0]
    assert value.item() >= grid.max().item() - 1e-2
    pair, _ = optimize_acqf(acquisition, bounds, q=2, num_restarts=2, raw_samples=32)
    assert pair.shape == (2, 1)


def test_what_cannot_be_is_told_in_one_line(cnp):
    x, y = numbers(5, 2), numbers(5, 1)
    with pytest.raises(InputError, match=r"train_X has shape \(5, 2\) but train_Y has \(4, 1\)"):
        NVDPModel(cnp, x, y[:4])
    with pytest.raises(InputError, match="expected 2 values in the last axis"):
        NVDPModel(cnp, numbers(5, 3), y)
    with pytest.raises(InputError, match="samples is 0"):
        NVDPModel(cnp, x, y, samples=0)
    batch = NVDPModel(cnp, numbers(3, 5, 2), numbers(3, 5, 1))
    with pytest.raises(InputError, match=r"batch shape \(1, 7, 1\)|tasks have \(1,\)"):
        NVDPModel(cnp, numbers(1, 5, 2), numbers(1, 5, 1)).posterior(numbers(7, 1, 2))
    with pytest.raises(UnsupportedError, match="True or False"):
        batch.posterior(x, observation_noise=y)
    with pytest.raises(InputError, match=r"base samples have shape \(2, 1, 1\)"):
        FunctionsPosterior(numbers(4, 3, 1)).rsample_from_base_samples(SHAPE, numbers(2, 1, 1))


def test_a_task_never_seen_has_the_prior(cnp):
    prior = NVDPModel(cnp, numbers(0, 2), numbers(0, 1), samples=4).posterior(numbers(3, 2))
    expected = cnp.eval().adapt(np.zeros((0, 2)), np.zeros((0, 1))).predict(numbers(3, 2)).mean
    torch.testing.assert_close(prior.mean, expected.double(), atol=1e-5, rtol=1e-5)


def test_the_calibration_of_a_fit_stretches_the_functions(cnp):
    x, y, at = numbers(5, 2), numbers(5, 1), numbers(3, 2)
    plain, wide = (
        NVDPModel(
            Predictor(cnp.eval(), Units.identity(2, 1), adjustment=Adjustment(factors=(factor,))), x, y, samples=8
        )
        for factor in (1.0, 2.0)
    )
    torch.testing.assert_close(wide.posterior(at).variance, 4 * plain.posterior(at).variance)
    torch.testing.assert_close(wide.posterior(at).mean, plain.posterior(at).mean)


def test_regret_is_drawn_a_panel_a_family(tmp_path):
    curves = {"NVDP": np.array([[2.0, 1.0], [3.0, 0.0]]), "GP from scratch": np.ones((2, 2))}
    written = figure_regret([RegretPanel("one", curves), RegretPanel("other", curves)], tmp_path / "regret.png")
    assert [path.suffix for path in written] == [".png", ".pdf"]
    with pytest.raises(InputError, match="at least one panel"):
        figure_regret([], tmp_path / "none.png")
