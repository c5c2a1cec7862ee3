"""Gates: the shipped models are what their cards say, and the verdict follows from the numbers."""

import json
from pathlib import Path

import pytest
import torch

import nvdp
from nvdp.data.gp import GPTasks
from nvdp.evaluation.gates import Gate, gates, mean_over_tasks, next_task, rate_gates, verdict
from nvdp.evaluation.run import evaluate_run
from nvdp.models.registry import build_model

WEIGHTS = Path(nvdp.__file__).parent / "weights"


@pytest.fixture(scope="module")
def tasks():
    return GPTasks().validation_chunk(seed=20_220, chunk=0).first(8)


@pytest.mark.parametrize("name", ["gp-nvdp", "gp"])
def test_wrong_rates_cost_the_shipped_models(name, tasks):
    assert all(gate.passed for gate in rate_gates(nvdp.load(name).model, [tasks]))


def test_rates_that_nothing_depends_on_cost_nothing(small_config, tasks):
    model = build_model(small_config("nvdp-attentive")).eval()
    with torch.no_grad():
        for head in model.rates.heads:
            head.weight.zero_()
    constant, other = rate_gates(model, [tasks])
    assert constant.value == pytest.approx(0, abs=1e-6)
    assert not constant.passed
    assert not other.passed


def test_the_shipped_plain_model_has_functions_that_differ_where_the_exact_posterior_is_wide():
    measured = json.loads((WEIGHTS / "gp-nvdp" / "scores.json").read_text())["evaluation"]
    assert measured["gates"]["spread follows"]["value"] > 0.8
    assert measured["joint"]["by_context"]["3"]["gaussian"] > 0.65
    posterior = nvdp.load("gp-nvdp").adapt([-1.5, -1.4, -1.3], [0.5, 0.5, 0.5])
    near, far = posterior.predict([-1.4, 1.5], samples=200, generator=0).spread.flatten()
    assert far > 2 * near


def test_changed_rates_are_those_of_all_tasks_or_of_another_one(small_config, tasks):
    posterior = build_model(small_config("nvdp")).adapt(tasks.context)
    same, other = (posterior.changed(change).rates[0].rows for change in (mean_over_tasks, next_task))
    assert torch.equal(same[0], same[5])
    assert torch.equal(other[1], posterior.rates[0].rows[0])


def test_a_model_without_rates_has_no_gates(small_config, tasks):
    with pytest.raises(nvdp.InputError, match="cnp has none"):
        gates(build_model(small_config("cnp")), [tasks], None)


def test_a_spread_that_never_varies_fails_its_gate(small_config, tasks):
    model = build_model(small_config("nvdp"))
    answers = gates(model, [tasks], {"spread_follows_oracle": None})["gates"]
    assert (answers["spread follows"]["value"], answers["spread follows"]["passed"]) == (0.0, False)
    assert "spread follows" not in gates(model, [tasks], None)["gates"]


def test_the_verdict_names_what_the_numbers_show():
    def said(cost, follows, rates):
        return verdict(
            "m", [Gate("constant rates", cost, 0, 0.1), Gate("spread follows", follows, 0, 0.8)], rates, 0.01
        )

    assert "Passes all gates" in said(1.0, 0.9, [0.3, 0.3])
    assert "but not the doubt" in said(1.0, 0.1, [0.3, 0.3])
    assert "m is deterministic" in said(0.0, 0.1, [0.01, 0.01])
    assert "m is a Bayesian last layer" in said(0.0, 0.9, [0.01, 0.3])


def test_gates_of_a_few_tasks_are_refused():
    with pytest.raises(nvdp.InputError, match="at least 16 tasks"):
        evaluate_run(WEIGHTS / "gp", tasks=64, joint=4, ask_gates=True)
