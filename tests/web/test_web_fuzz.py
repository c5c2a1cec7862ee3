"""Whatever is sent, the answer is a prediction or a reason; never a 500, never a number that is not finite."""

import json
import math

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_served import PIXELS, classifier, regression

from nvdp.training.config import RunConfig
from nvdp.units import Units
from nvdp.web.served import ServedModel
from nvdp.web.server import create_app

pytestmark = pytest.mark.filterwarnings("ignore::nvdp.errors.FarNote")  # numbers far from training are the point here
BOUNDED = settings(
    max_examples=60,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)
number = st.floats(-1000, 1000, width=32)
names = st.sampled_from(["tiny", "exact-gp"])


@pytest.fixture
def client(small_config):
    config = RunConfig(model=small_config("nvdp"))
    table = regression("table", config, Units((700.0,), (90.0,), (2e-5,), (1e-6,), (500.0,), (900.0,)))
    served = {"tiny": regression("tiny", config), "exact-gp": ServedModel.exact_gp(), "table": table}
    with TestClient(create_app(served | {"signs": classifier()}), raise_server_exceptions=False) as client:
        yield client


def ask(client, question, path="/api/adapt"):
    return client.post(path, content=json.dumps(question), headers={"Content-Type": "application/json"})


@BOUNDED
@given(st.fixed_dictionaries({}, optional=dict.fromkeys(["model", "x", "y", "query", "samples", "seed"], anything)))
def test_any_json_gets_a_reason(client, question):
    answer = ask(client, question)
    assert 400 <= answer.status_code < 500
    assert isinstance(answer.json()["detail"], str)
    assert len(answer.json()["detail"]) <= 300


@BOUNDED
@given(st.binary(max_size=300))
def test_any_bytes_get_a_reason(client, body):
    answer = client.post("/api/suggest", content=body, headers={"Content-Type": "application/json"})
    assert 400 <= answer.status_code < 500
    assert isinstance(answer.json()["detail"], str)


@BOUNDED
@given(
    name=names,
    points=st.lists(st.tuples(number, number), max_size=12),
    query=st.lists(number, min_size=1, max_size=12),
    samples=st.integers(0, 4),
)
def test_any_question_within_the_limits_gets_finite_numbers(client, name, points, query, samples):
    question = {"model": name, "x": [[x] for x, _ in points], "y": [[y] for _, y in points]}
    answer = ask(client, question | {"query": [[x] for x in query], "samples": samples})
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert len(body["mean"]) == len(query)
    assert len(body["samples"]) == samples
    assert all(std[0] > 0 for std in body["std"])
    assert all(math.isfinite(value[0]) for value in body["mean"])


@settings(BOUNDED, max_examples=30)
@given(x=number, y=st.floats(-1e-3, 1e-3), query=number)
def test_a_table_of_any_unit_gets_finite_numbers_or_a_reason(client, x, y, query):
    answer = ask(client, {"model": "table", "x": [[x]], "y": [[y]], "query": [[query]], "samples": 2})
    reachable = abs(y - 2e-5) <= 1000 * 1e-6
    assert answer.status_code == (200 if reachable else 422), answer.text
    assert "y[0][0] is" in answer.text if not reachable else answer.json()["std"][0][0] > 0


@BOUNDED
@given(
    st.fixed_dictionaries(
        {}, optional=dict.fromkeys(["model", "support", "labels", "query", "samples", "seed"], anything)
    ),
    st.sampled_from(["signs", "tiny", "../weights", ""]),
)
def test_any_json_to_classify_gets_a_reason(client, question, name):
    for asked in (question, {"model": name} | question):
        answer = ask(client, asked, "/api/classify")
        assert 400 <= answer.status_code < 500
        assert isinstance(answer.json()["detail"], str)
        assert len(answer.json()["detail"]) <= 300


shade = st.sampled_from([0, 0.0, 0.25, 1.0, 1, 1e-30])
pictures = st.lists(shade, min_size=PIXELS, max_size=PIXELS)


@settings(BOUNDED, max_examples=20)
@given(
    support=st.lists(pictures, min_size=2, max_size=6),
    query=st.lists(pictures, min_size=1, max_size=3),
    samples=st.integers(0, 3),
    labels=st.randoms(use_true_random=False),
)
def test_any_pictures_are_named_with_probabilities(client, support, query, samples, labels):
    numbers = [0, 1] + [labels.randrange(2) for _ in support[2:]]
    question = {"model": "signs", "support": support, "labels": numbers, "query": query, "samples": samples}
    answer = ask(client, question, "/api/classify")
    assert answer.status_code == 200, answer.text
    body = answer.json()
    assert len(body["samples"]) == samples
    for row, std in zip(body["probabilities"], body["std"], strict=True):
        assert math.isclose(sum(row), 1, abs_tol=1e-4)
        assert all(0 <= share <= 1 for share in row)
        assert all(math.isfinite(each) and each >= 0 for each in std)
