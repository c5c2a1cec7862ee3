"""What every few-shot classifier of the registry promises, for any number of classes, shots and queries."""

from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import kl_divergence

from nvdp.models.config import ClassifierConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.tasks import PointSet

NAMES = [name for name, spec in MODELS.items() if "classification" in spec.tasks]
PLACELESS = [name for name in NAMES if name != "meta-dropout"]  # whose noise belongs to a place in the support
FEATURES = 6
CLOSE = {"atol": 2e-4, "rtol": 2e-4}
SETTINGS = settings.get_profile("trust")


@dataclass(frozen=True)
class Case:
    """An episode: classes, support and query points of each, and where they lie."""

    way: int
    shot: int
    queries: int
    seed: int

    def model(self, name):
        return _model(name, self.way)

    def episode(self, part=0):
        generator = torch.Generator().manual_seed(self.seed + part)
        labels = torch.arange(self.way).repeat(self.shot)
        points = torch.randn(len(labels) + self.queries, FEATURES, generator=generator)
        return points[: len(labels)], labels, points[len(labels) :]


@lru_cache(maxsize=64)
def _model(name, way):
    config = ClassifierConfig(name, way).updated(
        {"extractor.name": "none", "extractor.features": FEATURES, "decoder.width": 8, "meta.width": 8}
    )
    return build_model(config).eval().requires_grad_(False)


cases = st.builds(Case, st.integers(2, 5), st.integers(1, 4), st.integers(1, 6), st.integers(0, 2**31))


@pytest.mark.parametrize("name", PLACELESS)
@SETTINGS
@given(case=cases)
def test_the_order_of_support_and_queries_does_not_matter(name, case):
    model, (x, y, query) = case.model(name), case.episode()
    order, turned = (torch.randperm(len(part)) for part in (x, query))
    before = model.adapt(x, y).predict(query).probabilities
    after = model.adapt(x[order], y[order]).predict(query[turned]).probabilities
    torch.testing.assert_close(after, before[turned], **CLOSE)


@pytest.mark.parametrize("name", PLACELESS)
@SETTINGS
@given(case=cases)
def test_a_batch_equals_its_episodes_one_by_one(name, case):
    model, episodes = case.model(name), [case.episode(part) for part in range(3)]
    x, y, query = (torch.stack(parts) for parts in zip(*episodes, strict=True))
    points = PointSet(x, torch.eye(case.way)[y], torch.ones(y.shape, dtype=torch.bool))
    together = model.adapt(points).predict(query).probabilities
    for index, (own_x, own_y, own_query) in enumerate(episodes):
        alone = model.adapt(own_x, own_y).predict(own_query).probabilities
        torch.testing.assert_close(together[index], alone, **CLOSE)


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(case=cases, seed=st.integers(0, 2**31))
def test_an_answer_is_reproducible_sums_to_one_and_changes_nothing(name, case, seed):
    model, (x, y, query) = case.model(name), case.episode()
    before, state = {k: t.clone() for k, t in model.state_dict().items()}, torch.get_rng_state()
    for samples in (0, 3):
        one, two = (model.adapt(x, y).predict(query, samples, seed).probabilities for _ in range(2))
        assert torch.equal(one, two)
        torch.testing.assert_close(one.sum(-1), torch.ones(len(query)), **CLOSE)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@pytest.mark.parametrize("name", NAMES)
@SETTINGS
@given(case=cases)
def test_the_kl_is_zero_between_equal_sets_and_never_negative(name, case):
    model, (x, y, _) = case.model(name), case.episode()
    q, again, other = model.adapt(x, y), model.adapt(x, y), model.adapt(x + 1, y)
    assert kl_divergence(q, again).item() == pytest.approx(0.0, abs=1e-3)
    assert kl_divergence(q, other).item() >= 0
