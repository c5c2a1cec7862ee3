import math

import pytest
import torch
from torch.distributions import Normal

from nvdp.data.gp import GPTasks
from nvdp.evaluation.metrics import (
    RegressionScores,
    RunningCorrelation,
    RunningMoments,
    evaluate,
    gaussian_crps,
    task_means,
)
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.posteriors.latent import PointPosterior
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import Task, TaskBatch


@pytest.fixture(scope="module")
def gp_batch():
    return GPTasks().training_batch(seed=0, step=3, tasks=12)


class TwoConstants(PointPosterior):
    """Predicts N(0, 1) with mean parameters, and N(−1, 1) and N(1, 1) in turn when sampled."""

    def at_mean_parameters(self, x):
        return self._constants(torch.tensor([0.0]), x)

    def predict(self, x, samples=0, generator=None):
        return self._constants(torch.tensor([-1.0, 1.0]).repeat(samples // 2), x)

    def components(self, x, samples, generator=None):
        return self.predict(x, samples)

    def _constants(self, heights, x):
        functions = heights[:, None, None, None].expand(-1, *x.shape)
        return Prediction(functions, torch.ones_like(functions))


class Integrating(TwoConstants):
    """Predicts single points by N(0, 2) itself and not by the sampled functions, to whose seeds it listens."""

    def components(self, x, samples, generator=None):
        zeros = torch.zeros(1, *x.shape)
        return Prediction(zeros, zeros + math.sqrt(2), coherent=False)

    def predict(self, x, samples=0, generator=None):
        prediction = super().predict(x, samples)
        return Prediction((1 + torch.rand((), generator=generator)) * prediction.functions, prediction.stds)


class Constant(MetaModel):
    """Answers with one of these posteriors, whatever the context."""

    config = ModelConfig()

    def __init__(self, posterior=TwoConstants):
        super().__init__()
        self.register_parameter("nothing", torch.nn.Parameter(torch.zeros(())))
        self.kind = posterior

    def posterior_given(self, points, generator=None):
        return self.kind(points.x[:, 0], torch.zeros_like, GaussianLikelihood(1), 1)

    def scored(self, tasks):
        return tasks.whole

    def check(self, points):
        pass


@pytest.mark.parametrize("seed", range(5))
def test_running_moments_equal_one_pass_however_the_stream_is_cut(seed, generator):
    generator.manual_seed(seed)
    values = 1e3 + torch.randn(1000, generator=generator, dtype=torch.float64)
    cuts = torch.randint(1001, (7,), generator=generator).sort().values
    moments = RunningMoments()
    for chunk in values.tensor_split(cuts):
        moments.add(chunk)
    assert moments.count == 1000
    assert moments.mean == pytest.approx(values.mean().item(), rel=1e-12)
    assert moments.std == pytest.approx(values.std().item(), rel=1e-9)
    assert moments.stderr == pytest.approx(values.std().item() / math.sqrt(1000), rel=1e-9)


def test_running_moments_of_float32_are_kept_in_float64():
    moments = RunningMoments()
    for _ in range(100):
        moments.add(torch.full((1000,), 0.1))
    assert moments.mean == pytest.approx(torch.tensor(0.1).item(), rel=1e-14)
    assert moments.std == pytest.approx(0, abs=1e-12)


def test_running_moments_of_none_one_and_two_numbers():
    moments = RunningMoments()
    assert math.isnan(moments.std)
    assert math.isnan(moments.stderr)
    moments.add(torch.tensor([1.0]))
    assert moments.mean == 1.0
    assert math.isnan(moments.std)
    assert math.isnan(moments.stderr)
    moments.add(torch.tensor([3.0]))
    assert (moments.mean, moments.std, moments.stderr) == pytest.approx((2.0, math.sqrt(2), 1.0))


def test_correlation_is_that_of_all_pairs_at_once_whatever_their_scale(generator):
    a, b = 1e-3 * torch.randn(2, 50, generator=generator, dtype=torch.float64)
    b = b - 0.5 * a
    correlation = RunningCorrelation()
    for part in (slice(0, 20), slice(20, 50)):
        correlation.add(a[part], b[part])
    assert correlation.value == pytest.approx(torch.corrcoef(torch.stack([a, b]))[0, 1].item(), rel=1e-9)


@pytest.mark.parametrize("flip", [False, True])
def test_there_is_no_correlation_with_what_never_varies(flip):
    pair = torch.tensor([1.0, 2.0, 4.0]), torch.full((3,), 2.0)
    correlation = RunningCorrelation()
    correlation.add(*(reversed(pair) if flip else pair))
    assert math.isnan(correlation.value)


def test_task_means_average_real_points_and_leave_out_tasks_without_any():
    values = torch.tensor([[[1.0], [3.0], [100.0]], [[5.0], [100.0], [100.0]], [[7.0], [7.0], [7.0]]])
    mask = torch.tensor([[True, True, False], [True, False, False], [False, False, False]])
    assert task_means(values, mask).tolist() == [2.0, 5.0]


def test_ll_rll_and_pll_average_over_task_context_and_targets():
    tasks = TaskBatch.collate([Task([0.0, 1.0], [0.0, 2.0], [2.0], [4.0]), Task([0.0], [1.0], [1.0], [3.0])])
    scores = evaluate(Constant(), [tasks], samples=2)["scores"]

    def check(flavour, score):
        rll = ((score(0) + score(2)) / 2 + score(1)) / 2
        pll = (score(4) + score(3)) / 2
        ll = ((score(0) + score(2) + score(4)) / 3 + (score(1) + score(3)) / 2) / 2
        for metric, expected in (("LL", ll), ("RLL", rll), ("PLL", pll)):
            assert scores[metric][flavour] == pytest.approx(expected, rel=1e-6)

    def log_prob(y, mean):
        return -0.5 * (y - mean) ** 2 - 0.5 * math.log(2 * math.pi)

    check("mean_parameters", lambda y: log_prob(y, 0))
    check("expected_log", lambda y: (log_prob(y, -1) + log_prob(y, 1)) / 2)
    check("log_expected", lambda y: math.log((math.exp(log_prob(y, -1)) + math.exp(log_prob(y, 1))) / 2))


def test_error_spread_and_counts_of_a_hand_made_model():
    tasks = TaskBatch.collate([Task([0.0], [0.0], [1.0, 2.0], [3.0, 4.0])])
    result = evaluate(Constant(), [tasks, tasks], samples=4)
    assert (result["tasks"], result["samples"]) == (2, 4)
    assert result["rmse"] == pytest.approx(math.sqrt((9 + 16) / 2))
    assert result["spread"] == pytest.approx(1.0)
    assert result["rates"] is None


def test_coverage_and_crps_of_a_hand_made_model():
    # The mixture's distribution function at 1, 2, 2.3 and 4 is 0.74, 0.92, 0.951 and 0.999.
    y = torch.tensor([1.0, 2.0, 2.3, 4.0])
    tasks = TaskBatch.collate([Task([0.0], [0.0], y, y)])
    result = evaluate(Constant(), [tasks], samples=2)
    assert result["coverage"] == pytest.approx({"50%": 0.25, "90%": 0.5, "95%": 0.75})
    crps = gaussian_crps(y, torch.zeros(()), torch.tensor(math.sqrt(2)))
    assert result["crps"] == pytest.approx(crps.mean().item(), rel=1e-6)


def test_points_are_scored_by_components_and_spread_is_that_of_functions_drawn_anew_for_each_batch():
    y = torch.tensor([1.0, 2.0])
    tasks, seen = TaskBatch.collate([Task([0.0], [0.0], y, y)]), []
    result = evaluate(Constant(Integrating), [tasks, tasks], samples=2, watch=lambda _, spread: seen.append(spread))
    log_prob = Normal(0.0, math.sqrt(2)).log_prob(y).mean().item()
    assert result["scores"]["PLL"]["expected_log"] == pytest.approx(log_prob, rel=1e-6)
    first, second = (spread.unique().item() for spread in seen)
    assert 1 < first < 2
    assert first != second
    assert result["spread"] == pytest.approx((first + second) / 2)
    whole = [Normal(sign * size, 1.0).log_prob(y).mean() for size in (first, second) for sign in (-1, 1)]
    assert result["expected_log_of_functions"]["PLL"] == pytest.approx(torch.stack(whole).mean().item(), rel=1e-5)
    assert "expected_log_of_functions" not in evaluate(Constant(), [tasks], samples=2)  # its samples are functions


@pytest.mark.parametrize("name", ["nvdp", "np"])
def test_expected_log_is_at_most_log_expected(small_config, gp_batch, name):
    scores = evaluate(build_model(small_config(name)), [gp_batch])["scores"]
    for metric in ("LL", "RLL", "PLL"):
        assert scores[metric]["expected_log"] < scores[metric]["log_expected"]


def test_a_cnp_has_no_spread_and_one_score_in_three_flavours(small_config, gp_batch):
    result = evaluate(build_model(small_config("cnp")), [gp_batch])
    assert result["spread"] == 0.0
    flavours = [result["scores"]["LL"][f] for f in ("mean_parameters", "expected_log", "log_expected")]
    assert flavours == pytest.approx([flavours[0]] * 3, rel=1e-6)


def test_an_nvdp_reports_the_mean_rate_of_every_layer(small_config, gp_batch):
    model = build_model(small_config("nvdp"))
    result = evaluate(model, [gp_batch, gp_batch])
    expected = model.adapt(gp_batch.context).mean_rates().mean(0).tolist()
    assert result["rates"] == pytest.approx(expected, rel=1e-5)
    assert result["mean_rate"] == pytest.approx(sum(expected) / len(expected), rel=1e-5)
    assert result["spread"] > 0


@pytest.mark.parametrize("name", ["nvdp", "cnp"])
def test_mean_parameter_scores_do_not_depend_on_the_chunks(small_config, gp_batch, name):
    model = build_model(small_config(name))
    tasks = list(gp_batch)
    chunks = [TaskBatch.collate(tasks[start:stop]) for start, stop in [(0, 1), (1, 7), (7, 12)]]
    whole, parts = (evaluate(model, batches, 2) for batches in ([gp_batch], chunks))
    assert whole["tasks"] == parts["tasks"] == 12
    for metric in ("LL", "RLL", "PLL"):
        for number in ("mean_parameters", "std", "stderr"):
            assert parts["scores"][metric][number] == pytest.approx(whole["scores"][metric][number], rel=1e-5)


def test_the_standard_error_of_one_task_is_not_known(small_config, gp_batch):
    one, two = (evaluate(build_model(small_config()), [gp_batch.first(count)], 2)["scores"] for count in (1, 2))
    for metric in ("LL", "RLL", "PLL"):
        assert (one[metric]["std"], one[metric]["stderr"]) == (None, None)
        assert two[metric]["stderr"] == pytest.approx(two[metric]["std"] / math.sqrt(2))
        assert two[metric]["stderr"] > 0


def test_evaluation_is_reproducible_from_its_seed(small_config, gp_batch):
    model = build_model(small_config("nvdp"))
    first, second, other = (evaluate(model, [gp_batch], seed=seed) for seed in (0, 0, 1))
    assert first == second == evaluate(model, [gp_batch], samples=16)
    assert first["scores"]["LL"]["expected_log"] != other["scores"]["LL"]["expected_log"]
    assert first["scores"]["LL"]["mean_parameters"] == other["scores"]["LL"]["mean_parameters"]


def test_coverage_of_the_true_distribution_is_nominal(generator):
    tasks, points = 400, 50
    y = 1 + 0.5 * torch.randn(tasks, points, 1, generator=generator)
    batch = TaskBatch.first_points_as_context(torch.zeros_like(y), y, 0)
    totals = RegressionScores()
    prediction = Prediction(torch.ones(1, *y.shape), torch.full((1, *y.shape), 0.5))
    totals.add_samples(prediction, prediction.spread, batch)
    for level in (0.5, 0.9, 0.95):
        error = math.sqrt(level * (1 - level) / y.numel())
        assert totals.value("coverage", f"{level:.0%}") == pytest.approx(level, abs=4 * error)
    assert totals.value("calibration", "mse") == pytest.approx(0.25, abs=4 * 0.25 * math.sqrt(2 / y.numel()))


def test_a_group_without_points_scores_not_a_number_rather_than_zero(small_config, make_task):
    no_context = TaskBatch.collate([make_task(0, 5), make_task(0, 3)])
    scores = evaluate(build_model(small_config("cnp")), [no_context])["scores"]
    assert math.isnan(scores["RLL"]["mean_parameters"])
    assert math.isfinite(scores["PLL"]["mean_parameters"])


@pytest.mark.parametrize(("y", "mean", "std"), [(0.0, 0.0, 1.0), (2.0, -1.0, 0.5), (-0.3, 0.2, 2.0)])
def test_crps_is_the_integral_of_the_squared_distance_of_distribution_functions(y, mean, std):
    t = torch.linspace(-30, 30, 600_001, dtype=torch.float64)
    squared = (Normal(mean, std).cdf(t) - (t >= y).double()).square()
    y, mean, std = (torch.tensor(v, dtype=torch.float64) for v in (y, mean, std))
    assert gaussian_crps(y, mean, std).item() == pytest.approx(torch.trapezoid(squared, t).item(), abs=2e-4)
