"""Whatever is sent, the answer is a prediction or a reason; never a 500, never a number that is not finite."""

import json
import math

import pytest
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nvdp.models.registry import build_model
from nvdp.training.config import RunConfig
from nvdp.web.exact_gp import ExactGP
from nvdp.web.served import ServedModel
from nvdp.web.server import create_app

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
    served = {"tiny": ServedModel("tiny", config, build_model(config.model)), "exact-gp": ExactGP()}
    with TestClient(create_app(served), raise_server_exceptions=False) as client:
        yield client


def ask(client, question):
    return client.post("/api/adapt", content=json.dumps(question), headers={"Content-Type": "application/json"})


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
