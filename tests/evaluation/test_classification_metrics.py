import math

import pytest
import torch

from nvdp.errors import InputError
from nvdp.evaluation.metrics import CalibrationBins, ClassificationTotals, evaluate
from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import build_model
from nvdp.posteriors.prediction import ClassPrediction
from nvdp.tasks import PointSet, TaskBatch


def test_scores_of_a_hand_computed_case():
    # Two tasks of two queries: both right in the first, one right in the second; the right class has p = 0.8 or 0.2.
    right, wrong = [0.8, 0.2], [0.2, 0.8]
    prediction = ClassPrediction(torch.tensor([[[right, right], [right, wrong]]]).log())
    y = torch.tensor([1.0, 0.0]).expand(2, 2, 2)
    scores = ClassificationTotals()
    scores.add(prediction, PointSet(torch.zeros(2, 2, 1), y, torch.ones(2, 2, dtype=torch.bool)))
    result = scores.result()
    assert result["accuracy"] == pytest.approx(0.75)
    assert result["interval95"] == pytest.approx(1.96 * math.sqrt(0.125) / math.sqrt(2))
    assert result["nll"] == pytest.approx(-(3 * math.log(0.8) + math.log(0.2)) / 4)
    assert result["ece"] == pytest.approx(0.8 - 0.75)


def test_padded_queries_do_not_count():
    prediction = ClassPrediction(torch.tensor([[[[0.9, 0.1], [0.1, 0.9]]]]).log())
    points = PointSet(torch.zeros(1, 2, 1), torch.tensor([[[1.0, 0.0], [1.0, 0.0]]]), torch.tensor([[True, False]]))
    scores = ClassificationTotals()
    scores.add(prediction, points)
    assert scores.result()["accuracy"] == 1.0
    assert scores.result()["nll"] == pytest.approx(-math.log(0.9))


def test_a_calibrated_classifier_has_no_calibration_error_in_the_long_run(generator):
    confidence = torch.rand(200_000, generator=generator, dtype=torch.float64)
    correct = torch.rand(200_000, generator=generator, dtype=torch.float64) < confidence
    bins = CalibrationBins()
    for part in zip(confidence.split(70_000), correct.split(70_000), strict=True):
        bins.add(*part)
    assert bins.expected_error < 0.01
    over_confident = CalibrationBins()
    over_confident.add(confidence.sqrt(), correct)
    assert over_confident.expected_error == pytest.approx(2 / 3 - 1 / 2, abs=0.01)  # E[√p] − E[p]


@pytest.fixture
def tasks(generator):
    y = torch.eye(5).repeat(3, 1).expand(4, -1, -1)
    return TaskBatch.first_points_as_context(torch.rand(4, 15, 784, generator=generator), y, 5)


def test_an_evaluation_says_what_was_scored_and_leaves_the_model_as_it_was(tasks):
    model = build_model(ClassifierConfig("nvdp").updated({"decoder.width": 16, "meta.width": 16}))
    result = evaluate(model, [tasks, tasks.first(2)], samples=3)
    assert (result["tasks"], result["way"], result["shot"], result["samples"]) == (6, 5, 1, 3)
    assert 0 < result["mean_rate"] < 1
    assert result["disagreement"] > 0
    assert model.statistics == "running"
    model.statistics = "batch"
    assert evaluate(model, [tasks], samples=3)["nll"] != evaluate(model, [tasks.first(2)], samples=3)["nll"]
    with pytest.raises(InputError, match="'all'"):
        model.statistics = "all"
    assert model.statistics == "batch"


def test_the_interval_of_one_task_is_not_known(tasks):
    one, two = (evaluate(build_model(ClassifierConfig("protonet")), [tasks.first(count)]) for count in (1, 2))
    for scores in (one, one["without_sampling"]):
        assert (scores["interval95"], scores["std"], scores["nll_interval95"]) == (None, None, None)
    assert two["nll_interval95"] > 0


def test_many_samples_agree_with_the_answer_without_sampling_and_few_are_worse(tasks):
    sizes = {"decoder.width": 64, "meta.width": 16, "rates.sees": "contrast", "rates.path": "activations"}
    model = build_model(ClassifierConfig("nvdp").updated(sizes))
    few, many = (evaluate(model, [tasks], samples=samples) for samples in (2, 1_000))
    assert few["without_sampling"] == many["without_sampling"]
    exact = few["without_sampling"]["nll"]
    assert many["nll"] == pytest.approx(exact, abs=0.02)
    assert few["nll"] > exact + 0.03


def test_without_sampling_a_deterministic_model_has_the_same_scores(tasks):
    result = evaluate(build_model(ClassifierConfig("protonet")), [tasks])
    assert {name: result[name] for name in result["without_sampling"]} == pytest.approx(result["without_sampling"])


def test_the_same_seed_gives_the_same_evaluation(tasks):
    model = build_model(ClassifierConfig("versa"))
    first, again, other = (evaluate(model, [tasks], samples=2, seed=seed) for seed in (1, 1, 2))
    assert first == again
    assert first["nll"] != other["nll"]


def test_no_tasks_are_refused():
    with pytest.raises(InputError, match="at least 1 task"):
        evaluate(build_model(ClassifierConfig("protonet")), [])
