"""Classes by the API: probabilities are the model's own, refusals have a reason; and models fitted to tables."""

import json

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from small_served import PIXELS, classifier, regression

from nvdp.data.tables import Columns
from nvdp.errors import InputError
from nvdp.training.config import RunConfig
from nvdp.units import Units
from nvdp.web import limits
from nvdp.web.served import served_models
from nvdp.web.server import create_app

PICTURES = np.random.default_rng(0).uniform(size=(7, PIXELS)).round(3)
QUESTION = {
    "model": "signs",
    "support": PICTURES[:5].tolist(),
    "labels": [0, 1, 2, 1, 0],
    "query": PICTURES[5:].tolist(),
    "samples": 6,
    "seed": 3,
}


@pytest.fixture(scope="module")
def signs():
    torch.manual_seed(0)
    return classifier()


@pytest.fixture
def client(signs, small_config):
    config = RunConfig(model=small_config("nvdp"))
    served = {"signs": signs, "maml": classifier("maml", "maml"), "curve": regression("curve", config)}
    with TestClient(create_app(served), raise_server_exceptions=False) as client:
        yield client


def refused(client, path="/api/classify", **changes):
    question = json.dumps(QUESTION | changes)
    answer = client.post(path, content=question, headers={"Content-Type": "application/json"})
    assert answer.status_code == 422, answer.text
    return answer.json()["detail"]


def test_the_answer_is_what_the_classifier_predicts(client, signs):
    answer = client.post("/api/classify", json=QUESTION).json()
    with torch.no_grad():
        posterior = signs.classifier.model.adapt(torch.from_numpy(PICTURES[:5]).float(), [0, 1, 2, 1, 0])
        query = torch.from_numpy(PICTURES[5:]).float()
        prediction, sampled = posterior.predict(query), posterior.predict(query, samples=6, generator=3)
    np.testing.assert_allclose(answer["probabilities"], prediction.probabilities, atol=1e-5)
    np.testing.assert_allclose(answer["samples"], sampled.by_sample.exp(), atol=1e-5)
    np.testing.assert_allclose(answer["std"], prediction.spread, atol=1e-5)
    np.testing.assert_allclose(answer["disagreement"], prediction.disagreement, atol=1e-5)
    assert np.ptp(answer["samples"], axis=0).max() > 0  # an NVDP is many classifiers


def test_probabilities_are_the_same_however_many_classifiers_are_drawn(client):
    few, none = (client.post("/api/classify", json=QUESTION | {"samples": n}).json() for n in (2, 0))
    assert (len(few.pop("samples")), none.pop("samples")) == (2, [])
    assert few == none


def test_the_order_of_the_classes_is_that_of_the_labels(client):
    renamed = [2 - label for label in QUESTION["labels"]]
    rows = [
        client.post("/api/classify", json=QUESTION | {"labels": labels, "samples": 0}).json()["probabilities"]
        for labels in (QUESTION["labels"], renamed)
    ]
    np.testing.assert_allclose(rows[0], np.flip(rows[1], 1), atol=1e-5)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"labels": [0, 1, 2, 1]}, "there are 5 support pictures and 4 labels"),
        ({"labels": [0, 1, 3, 1, 0]}, "class 2 has no support picture"),
        ({"labels": [0, 0, 0, 0, 0]}, "there is 1 class; classification needs at least 2"),
        ({"labels": [0, 1, 2, 1, 20]}, "labels[4]: input should be less than or equal to 19; got 20"),
        ({"labels": [0, 1, 2, 1, -1]}, "labels[4]: input should be greater than or equal to 0"),
        ({"labels": [0, 1, 2, 1, True]}, "labels[4]: input should be a valid integer"),
        ({"labels": [0, 1, 2, 1, 0.5]}, "labels[4]"),
        ({"query": []}, "query: list should have at least 1 item"),
        ({"query": [[0.5] * 63]}, "query[0] holds 63 numbers; this model takes 64"),
        ({"query": [[0.5] * 5000]}, "query[0]: list should have at most 4096 items"),
        ({"query": [[float("nan")] * 64]}, "query[0][0]: input should be a finite number"),
        ({"query": [[255] * 64]}, "query[0][0]: input should be less than or equal to 1; got 255"),
        ({"query": [["1"] * 64]}, "query[0][0]: input should be a valid number"),
        ({"query": [[0.0] * 64] * 21}, "query: list should have at most 20 items"),
        ({"support": [[0.0] * 64] * 51}, "support: list should have at most 50 items"),
        ({"support": None}, "support: input should be a valid list"),
        ({"samples": 65}, "samples: input should be less than or equal to 64"),
        ({"model": "curve"}, "'curve' is no classifier; ask /api/adapt"),
        ({"model": "maml"}, "the task has 3 classes; this maml model has a last layer for 5"),
    ],
)
def test_bad_requests_are_told_what_was_wrong(client, changes, reason):
    assert reason in refused(client, **changes)


def test_a_classifier_has_no_functions_and_an_unknown_one_is_not_found(client):
    question = {"model": "signs", "x": [], "y": [], "query": [[0.0]]}
    assert client.post("/api/adapt", json=question).json() == {"detail": "'signs' is a classifier; ask /api/classify"}
    for name in ("../signs", "/etc/passwd", "sings", "signs\u0000"):
        answer = client.post("/api/classify", json=QUESTION | {"model": name})
        assert answer.status_code == 404
        assert "unknown model" in answer.json()["detail"]


def test_ten_million_pixels_are_refused_by_their_length(client):
    body = json.dumps(QUESTION | {"query": [[0] * 10**6]})
    answer = client.post("/api/classify", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 413
    assert f"expected at most {limits.MAX_BYTES}" in answer.json()["detail"]


def test_the_largest_question_that_is_allowed_is_answered(client):
    many = {"support": [[0.125] * 64] * 50, "labels": [i % 20 for i in range(50)], "query": [[1.0] * 64] * 20}
    answer = client.post("/api/classify", json=QUESTION | many | {"samples": 64}).json()
    assert np.shape(answer["samples"]) == (64, 20, 20)


def test_entries_say_where_classifiers_and_fitted_models_are_shown(signs, small_config):
    assert (signs.entry.page, signs.entry.x_dim, signs.entry.image_size, signs.entry.way) == ("characters", 64, 8, None)
    assert classifier("maml", "maml").entry.way == 5
    assert classifier("pets", task="folder-of-classes").entry.page is None
    with pytest.raises(
        InputError, match="'pets' classifies pictures of 7056 numbers; the page serves those of at most"
    ):
        classifier("pets", size=84, **{"extractor.features": 64 * 6 * 6})
    config = RunConfig(task="csv", model=small_config("nvdp"))
    scale = Units((350.0,), (200.0,), (60.0,), (30.0,), (0.0,), (700.0,))
    entry = regression("trees", config, scale, Columns("tree", ("day",), ("size",))).entry
    assert (entry.page, entry.x_range, entry.columns.y) == ("data", (0.0, 700.0), ["size"])
    assert regression("made", config, scale).entry.page is None  # units without names: no page can label them


def test_a_fitted_model_is_asked_and_answers_in_the_units_of_its_table(small_config):
    config = RunConfig(task="csv", model=small_config("nvdp"))
    scale = Units((350.0,), (200.0,), (6e-5,), (3e-5,), (0.0,), (700.0,))
    plain = regression("plain", config)
    fitted = regression("fitted", config, scale, model=plain.predictor.model)
    x, y, query = np.array([[150.0], [550.0]]), np.array([[3e-5], [9e-5]]), np.linspace(0, 700, 5)[:, None]
    expected = plain.answer((x - 350) / 200, (y - 6e-5) / 3e-5, (query - 350) / 200, 4, 0)
    answer = fitted.answer(x, y, query, 4, 0)
    np.testing.assert_allclose(np.array(answer["mean"]), 6e-5 + 3e-5 * np.array(expected["mean"]), atol=1e-10)
    np.testing.assert_allclose(np.array(answer["samples"]), 6e-5 + 3e-5 * np.array(expected["samples"]), atol=1e-10)
    np.testing.assert_allclose(np.array(answer["std"]), 3e-5 * np.array(expected["std"]), atol=1e-10)


def test_run_folders_of_every_kind_are_served(runs):
    pages = {name: model.entry.page for name, model in served_models(runs).items()}
    expected = {"small-cnp": "functions", "digits": "images", "signs": "characters", "trees": "data", "gp": "functions"}
    assert expected.items() <= pages.items()
