"""The API: what it answers is what the model says; what it refuses, it refuses with a reason."""

import json

import numpy as np
import pytest
import torch
from fastapi.testclient import TestClient
from small_served import regression

import nvdp
from nvdp.cards import card_lines, card_of
from nvdp.loading import find_run
from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.web.served import served_models
from nvdp.web.server import STATIC, create_app

X, Y = [[-1.0], [0.25], [1.5]], [[0.4], [-0.3], [0.9]]
QUERY = [[-2.0], [-0.5], [0.0], [2.0]]
QUESTION = {"model": "gp", "x": X, "y": Y, "query": QUERY, "samples": 5, "seed": 7}


@pytest.fixture(scope="module")
def client():
    with TestClient(create_app(), raise_server_exceptions=False) as client:
        yield client


def refused(client, status, **changes):
    """The reason for refusing the question with these changes; a value of ... leaves its key out."""
    question = {name: value for name, value in (QUESTION | changes).items() if value is not ...}
    answer = client.post("/api/adapt", content=json.dumps(question), headers={"Content-Type": "application/json"})
    assert answer.status_code == status, answer.text
    assert list(answer.json()) == ["detail"]
    return answer.json()["detail"]


@pytest.mark.parametrize("name", ["general", "gp", "gp-nvdp"])
def test_the_answer_is_what_the_model_predicts(name, client):
    answer = client.post("/api/adapt", json=QUESTION | {"model": name}).json()
    with torch.no_grad():
        posterior = nvdp.load(name).adapt(X, Y)
        prediction = posterior.predict(QUERY, samples=5, generator=7)
        points = posterior.predict(QUERY)
    assert set(answer) == {"mean", "std", "samples", "rates"}
    np.testing.assert_allclose(answer["mean"], points.mean, atol=1e-5)
    np.testing.assert_allclose(answer["std"], points.std, atol=1e-5)
    np.testing.assert_allclose(answer["samples"], prediction.functions, atol=1e-5)
    np.testing.assert_allclose([layer["mean"] for layer in answer["rates"]], posterior.mean_rates()[0], atol=1e-3)


def test_heat_maps_are_block_means_of_the_rates(client):
    layer = client.post("/api/adapt", json=QUESTION | {"model": "gp-nvdp"}).json()["rates"][1]
    with torch.no_grad():
        rates = nvdp.load("gp-nvdp").adapt(X, Y).rates[1].weight()[0]
    assert layer["shape"] == [128, 128]
    blocks = rates.reshape(32, 4, 32, 4).mean((1, 3))
    np.testing.assert_allclose(layer["heat"], blocks, atol=1e-4)


def test_an_empty_context_is_the_prior_and_no_samples_are_no_functions(client):
    answer = client.post("/api/adapt", json=QUESTION | {"x": [], "y": [], "samples": 0}).json()
    prior = nvdp.load("gp").adapt(torch.zeros(0, 1), torch.zeros(0, 1)).predict(QUERY)
    np.testing.assert_allclose(answer["mean"], prior.mean, atol=1e-5)
    assert answer["samples"] == []


def test_the_server_remembers_nothing_between_requests(client):
    first = client.post("/api/adapt", json=QUESTION).json()
    client.post("/api/adapt", json=QUESTION | {"x": [[0.0]], "y": [[2.0]], "seed": 1})
    assert client.post("/api/adapt", json=QUESTION).json() == first


CANDIDATES = [[x / 10] for x in range(-20, 21)]


@pytest.mark.parametrize("model", ["general", "gp", "gp-nvdp"])
def test_the_suggestion_is_that_of_the_posterior(client, model):
    question = QUESTION | {"model": model, "query": CANDIDATES}
    suggestion = client.post("/api/suggest", json=question).json()
    index = suggestion["index"]
    assert index == nvdp.load(model).adapt(X, Y).suggest(CANDIDATES, seed=7).item()
    assert suggestion["x"] == CANDIDATES[index]
    answer = client.post("/api/adapt", json=question).json()
    np.testing.assert_allclose(suggestion["mean"], answer["mean"][index], atol=1e-4)
    np.testing.assert_allclose(suggestion["std"], answer["std"][index], atol=1e-4)


def test_the_exact_gp_suggests_the_point_of_largest_deviation(client):
    question = QUESTION | {"model": "exact-gp", "query": CANDIDATES}
    std = client.post("/api/adapt", json=question).json()["std"]
    assert client.post("/api/suggest", json=question).json()["index"] == int(np.argmax(std))


def test_models_say_where_they_are_shown(client):
    entries = {entry["name"]: entry for entry in client.get("/api/models").json()}
    known = {"page": "functions", "model": "nvdp", "x_dim": 1, "has_rates": True, "pretrained": True}
    assert entries["gp-nvdp"] | known == entries["gp-nvdp"]
    assert list(entries)[-1] == "exact-gp"
    assert entries["gp-nvdp"]["card"] == card_lines(card_of(find_run("gp-nvdp")))


def test_a_model_of_grey_pictures_is_for_the_page_of_images(small_config):
    config = RunConfig(task="mnist", model=small_config("np", x_dim=2))
    entry = regression("digits", config).entry
    assert (entry.page, entry.image_size, entry.has_rates) == ("images", 28, False)


def test_two_folders_of_one_name_are_both_served(tmp_path, small_config):
    from nvdp.training.run_folder import save_model

    folders = [tmp_path / "one" / "cnp", tmp_path / "two" / "cnp"]
    for folder in folders:
        folder.mkdir(parents=True)
        config = RunConfig(model=small_config("cnp"), objective="likelihood")
        (folder / "config.json").write_text(config.to_json())
        save_model(folder, build_model(config.model), 1)
    assert list(served_models(folders))[:2] == ["cnp", "cnp-2"]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"x": [[float("nan")], [0.0], [1.0]]}, r"x[0][0]: input should be a finite number; got nan"),
        ({"y": [[float("inf")], [0.0], [1.0]]}, "y[0][0]"),
        ({"x": [[1e9], [0.0], [1.0]]}, "x[0][0] is 1e+09; this model takes numbers from -1000 to 1000"),
        ({"model": "exact-gp", "y": [[0.0], [-1001.0], [1.0]]}, "y[1][0] is -1001; this model takes numbers from"),
        ({"query": [[1e300]]}, "query[0][0]: input should be less than or equal to 1000000000000"),
        ({"x": [["1"], [0.0], [1.0]]}, "x[0][0]: input should be a valid number; got '1'"),
        ({"x": [[True], [0.0], [1.0]]}, "x[0][0]"),
        ({"x": "abc"}, "x: input should be a valid list"),
        ({"x": None}, "x: input should be a valid list"),
        ({"x": ...}, "x: field required"),
        ({"x": [[0.0]]}, "x holds 1 points and y 3"),
        ({"x": [[0.0, 1.0]] * 3}, "x[0] holds 2 numbers; this model takes 1"),
        ({"query": []}, "query: list should have at least 1 item"),
        ({"samples": -1}, "samples: input should be greater than or equal to 0; got -1"),
        ({"samples": 10**6}, "samples: input should be less than or equal to 64"),
        ({"samples": 1.5}, "samples: input should be a valid integer"),
        (
            {"samples": 64, "query": [[0.0]] * 1024},
            "64 samples at 1024 points are 65536 values; expected at most 32768",
        ),
        ({"seed": -3}, "seed"),
        ({"seed": 10**30}, "seed"),
        ({"query": [[0.0]] * 1025}, "query: list should have at most 1024 items"),
        ({"model": "x" * 101}, "model: string should have at most 100 characters"),
        ({"model": "\ud800"}, "model: input should be a valid string"),
        ({"extra": 1}, "extra: extra inputs are not permitted"),
        ({"model": "exact-gp", "query": [[0.0]] * 513}, "query holds 513 points; 'exact-gp' takes at most 512"),
        ({"model": "exact-gp", "x": [[0.0]] * 129, "y": [[0.0]] * 129}, "'exact-gp' takes at most 128"),
    ],
)
def test_bad_requests_are_told_what_was_wrong(client, changes, reason):
    assert reason in refused(client, 422, **changes)


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc", "gp/../gp", "gp\0", "", "%2e%2e"])
def test_names_are_looked_up_and_never_opened(client, name):
    assert "unknown model" in refused(client, 404, model=name)


@pytest.mark.parametrize("body", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b'{"seed": ' + b"9" * 5000 + b"}", b"null"])
def test_what_is_no_question_is_refused(client, body):
    answer = client.post("/api/adapt", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert list(answer.json()) == ["detail"]


def test_a_body_that_claims_to_be_long_is_refused_unread(client):
    answer = client.post("/api/adapt", content=b"x", headers={"Content-Length": "9" * 12})
    assert answer.status_code == 413
    assert "999999999999 bytes; expected at most" in answer.json()["detail"]


def test_a_prediction_that_is_not_finite_is_a_refusal(small_config):
    config = RunConfig(model=small_config("cnp"), objective="likelihood")
    model = build_model(config.model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1e30)
    app = create_app({"wild": regression("wild", config, model=model)})
    with TestClient(app, raise_server_exceptions=False) as client:
        assert "not finite" in refused(client, 422, model="wild")


@pytest.mark.filterwarnings("ignore::nvdp.errors.FarNote")  # as nvdp serve does
def test_a_note_with_numbers_comes_with_answers_far_from_the_data_of_training(client):
    def note(**changes):
        return client.post("/api/adapt", json=QUESTION | {"samples": 0} | changes).json().get("note")

    assert note() is None
    assert "y goes from 400 to 900; the model has learned from values around 0" in note(y=[[400.0], [500.0], [900.0]])
    assert "1 of 2 points lie outside the inputs of training, [-2, 2]" in note(query=[[0.0], [5.0]])
    assert note(model="general", y=[[4e6], [5e6], [9e6]]) is None  # in any units
    assert "1 of 1 points lie more than 10 standard deviations" in note(model="general", query=[[500.0]])


@pytest.mark.parametrize(
    ("host", "status"),
    [("127.0.0.1:8765", 200), ("localhost", 200), ("[::1]:1", 200), ("lab.example", 200), ("evil.example", 421)],
)
def test_a_foreign_host_name_is_refused(host, status):
    with TestClient(create_app({}, hosts=["lab.example"])) as client:
        assert client.get("/api/models", headers={"Host": host}).status_code == status


def test_the_api_is_described_offline(client):
    assert {"/api/models", "/api/adapt"} <= set(client.get("/api/openapi.json").json()["paths"])
    assert client.get("/docs").status_code == 200
    for path in STATIC.iterdir():
        text = path.read_text()
        outside = text.replace("http://www.w3.org/2000/svg", "")  # a name, not a place
        assert "http://" not in outside, path.name
        assert "https://" not in outside, path.name


@pytest.mark.parametrize("path", ["/../server.py", "/%2e%2e/server.py", "/..%2fserver.py", "/nothing", "/api/nothing"])
def test_only_the_static_folder_is_served(client, path):
    assert client.get(path).status_code == 404


def test_pages_may_load_nothing_from_elsewhere(client):
    assert client.get("/").headers["Content-Security-Policy"].startswith("default-src 'self'")
