"""Likelihoods of all targets together, and the GP that must infer its kernel."""

import math

import pytest
import torch
from torch.distributions import MultivariateNormal

from nvdp.data.gp import NOISE, GPTasks, MaternTNPTasks, TNPTasks
from nvdp.evaluation.inferred import InferredGP
from nvdp.evaluation.joint import (
    fed_back,
    gaussian_joint,
    joint_scores,
    own_contexts,
    own_targets_fed_back,
    regrouped,
)
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.posteriors.prediction import Prediction
from nvdp.tasks import PointSet, TaskBatch


@pytest.fixture(scope="module")
def tasks():
    return regrouped(GPTasks().validation_chunk(seed=3, chunk=0).first(3), 5, 12, torch.Generator().manual_seed(0))


def one_kernel(tasks, task):
    """The dense joint covariance of a task's points under its own kernel, with noise."""
    batch = type(tasks)(*(getattr(tasks, part)[[task]] for part in (
        "x", "y", "is_context", "mask", "length_scale", "signal_scale"
    )))  # fmt: skip
    x = batch.x.double()
    return batch.kernel(x, x)[0] + NOISE**2 * torch.eye(x.shape[1])


def test_other_contexts_are_of_the_same_functions_and_never_share_a_point(tasks):
    whole = GPTasks().validation_chunk(seed=3, chunk=0).first(3)
    for task in range(3):
        pairs = {(x, y) for x, y in zip(whole.x[task, :, 0].tolist(), whole.y[task, :, 0].tolist(), strict=True)}
        ours = list(zip(tasks.x[task, :, 0].tolist(), tasks.y[task, :, 0].tolist(), strict=True))
        assert len(set(ours)) == 17
        assert set(ours) <= pairs
    assert regrouped(whole, 400, 1, torch.Generator()) is None


@pytest.mark.parametrize("source", [GPTasks, TNPTasks, MaternTNPTasks])
def test_a_grid_of_the_true_kernel_alone_is_the_exact_gp(source, monkeypatch):
    batch = source().validation_chunk(seed=1, chunk=0).first(1)
    for name in ("length", "signal"):
        value = float(getattr(batch, f"{name}_scale")[0])
        monkeypatch.setattr(f"nvdp.evaluation.inferred.{name.upper()}_SCALES", (value, value))
    ours = InferredGP(cells=(1, 1)).log_prob(batch)[0]
    exact = batch.oracle().log_prob(batch.y.double())[0, :, 0]
    assert torch.allclose(ours[batch.mask[0]], exact[batch.mask[0]], atol=1e-4)


def test_targets_together_and_one_after_another_are_the_same_density_without_a_floor(tasks):
    gp = InferredGP()
    assert torch.allclose(gp.joint_log_prob(tasks), gp.chain_log_prob(tasks), atol=1e-6)


def test_the_joint_density_is_that_of_the_dense_covariance(tasks, monkeypatch):
    for name in ("length", "signal"):
        value = float(getattr(tasks, f"{name}_scale")[1])
        monkeypatch.setattr(f"nvdp.evaluation.inferred.{name.upper()}_SCALES", (value, value))
    covariance, y = one_kernel(tasks, 1), tasks.y.double()[1, :, 0]
    both, known = (
        MultivariateNormal(torch.zeros(n, dtype=torch.float64), covariance[:n, :n]).log_prob(y[:n]) for n in (17, 5)
    )
    assert InferredGP(cells=(1, 1)).joint_log_prob(tasks)[1].item() == pytest.approx((both - known).item(), abs=1e-3)


def test_inferring_the_kernel_costs_and_a_floor_costs_more():
    tasks = regrouped(GPTasks().validation_chunk(seed=3, chunk=1), 5, 12, torch.Generator().manual_seed(0))
    knows = tasks.oracle().log_prob(tasks.y.double())[:, 5:].mean()
    infers, floored = (InferredGP(smallest).log_prob(tasks)[:, 5:].mean() for smallest in (0.0, 0.1))
    assert knows > infers > floored


def test_a_cnp_has_independent_targets_and_gains_by_feeding_them_back(small_config, tasks):
    model = build_model(small_config("cnp")).eval()
    target = PointSet(tasks.x[:, 5:], tasks.y[:, 5:], tasks.mask[:, 5:])
    posterior = model.adapt(tasks.context)
    single = posterior.predict(target.x).log_prob(target.y).sum((-2, -1))
    for together in (
        posterior.joint_closed_form(target),
        posterior.joint_log_prob(target, 3),
        fed_back(model, tasks, 12),
    ):
        assert torch.allclose(together.float(), single, rtol=1e-4)
    by_hand = torch.zeros(3)
    for point in range(5, 17):
        known = model.adapt(PointSet(tasks.x[:, :point], tasks.y[:, :point], tasks.mask[:, :point]))
        by_hand += known.predict(tasks.x[:, [point]]).log_prob(tasks.y[:, [point]])[:, 0, 0]
    assert torch.allclose(fed_back(model, tasks).float(), by_hand, rtol=1e-4)


def test_feeding_back_encodes_every_target_once_where_sums_are_enough(small_config, tasks, monkeypatch):
    model = build_model(small_config("nvdp")).eval()
    encode, encoded = model.encoder.encode, []

    def counted(points):
        encoded.append(points.x.shape[1])
        return encode(points)

    again = sum(
        model.adapt(PointSet(tasks.x[:, :point], tasks.y[:, :point], tasks.mask[:, :point]))
        .predict(tasks.x[:, [point]])
        .log_prob(tasks.y[:, [point]])[:, 0, 0]
        for point in range(5, 17)
    )
    monkeypatch.setattr(model.encoder, "encode", counted)
    assert torch.allclose(fed_back(model, tasks).float(), again, rtol=1e-4)
    assert encoded == [5, 5] + 11 * [1]  # the context for its posterior and for its sums, then each target


def test_tasks_of_different_sizes_are_fed_back_as_each_by_itself(small_config):
    model = build_model(small_config("cnp")).eval()
    batch = TNPTasks().validation_chunk(seed=2, chunk=0).first(3)
    together = own_targets_fed_back(model, batch)
    for task in range(3):
        real, parts = batch.mask[task], (batch.x, batch.y, batch.is_context, batch.mask)
        alone = TaskBatch(*(part[task, real][None] for part in parts))
        assert together[task].item() == pytest.approx(fed_back(model, alone).item(), rel=1e-4)


def test_a_gaussian_is_fitted_to_functions_and_noise(generator):
    root = torch.tensor([[1.0, 0.0], [0.8, 0.3]])
    functions = (torch.randn(50_000, 2, generator=generator) @ root.T)[:, None, :, None]
    y = torch.tensor([[[0.3], [0.5]]])
    expected = MultivariateNormal(torch.zeros(2), root @ root.T + 0.04 * torch.eye(2)).log_prob(y[0, :, 0])
    ours = gaussian_joint(Prediction(functions, torch.full_like(functions, 0.2)), y)
    assert ours.item() == pytest.approx(expected.item(), abs=0.02)


@pytest.mark.parametrize(("name", "ways"), [("nvdp", 3), ("nvdp-attentive", 4), ("cnp", 4), ("np", 3)])
def test_scores_have_every_way_by_the_size_of_the_context(name, ways, small_config):
    batches = [GPTasks().validation_chunk(seed=0, chunk=0).first(2)]
    scores = joint_scores(build_model(small_config(name)), batches, sizes=(3, 20), targets=10, samples=16)
    assert (scores["tasks"], scores["targets"], list(scores["by_context"])) == (2, 10, ["3", "20"])
    for row in scores["by_context"].values():
        assert len(row.keys() & {"gaussian", "mixture", "closed_form", "fed_back"}) == ways
        assert all(math.isfinite(row["ceiling"][key]) for key in ("single", "joint", "fed_back"))
        assert row["ceiling"]["joint"] > row["gaussian"]
    assert (scores["spread_follows_oracle"] is None) == (name == "cnp")  # its functions never differ


def test_the_standard_errors_of_one_task_are_not_known(small_config):
    model = build_model(small_config("cnp"))
    own = own_contexts(model, [TNPTasks().validation_chunk(seed=2, chunk=0).first(1)], samples=2)
    assert (own["stderr"], own["fed_back_stderr"]) == (None, None)


def test_given_its_own_context_a_deterministic_model_scores_its_targets_one_by_one():
    batch = TNPTasks().validation_chunk(seed=2, chunk=0).first(3)
    model = build_model(ModelConfig("cnp").updated({"encoder.size": 8, "decoder.width": 8}))
    row = own_contexts(model, [batch], samples=2)
    log_prob, mask = model.adapt(batch.context).predict(batch.x).log_prob(batch.y)[..., 0], batch.target.mask
    one_by_one = ((log_prob * mask).sum(-1) / mask.sum(-1)).mean()
    assert row["together"] == pytest.approx(float(one_by_one), abs=1e-5)
    assert row["ceiling"] > row["together"]
    assert own_contexts(model, [GPTasks().validation_chunk(0, 0).first(1)]) is None  # 400 points
