"""The loop of active learning: what is asked, what is scored, and that good choices are worth something."""

from dataclasses import replace

import pytest
import torch

from nvdp.active import Belief, exact_learner, follow, learn, model_learner, random_order
from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.models.registry import build_model
from nvdp.nn.likelihoods import HALF_LOG_TWO_PI
from nvdp.posteriors.prediction import Prediction

NAMES = ("nvdp", "cnp", "np", "np+vp", "np+cnp", "np+cnp+vp", "nvdp-attentive")


@pytest.fixture(scope="module")
def tasks():
    batch = GPTasks().validation_chunk(seed=5, chunk=0).first(24)
    return replace(batch, **{part: getattr(batch, part)[:, ::8] for part in ("x", "y", "is_context", "mask")})


@pytest.fixture(scope="module")
def order(tasks):
    return random_order(tasks, 11, seed=0)


def test_the_exact_gp_gains_by_choosing(tasks, order):
    own, given = learn(exact_learner(), tasks, order[:, :1], 10), follow(exact_learner(), tasks, order)
    assert own.sizes == given.sizes == tuple(range(1, 12))
    torch.testing.assert_close(own.scores["LL"][:, 0], given.scores["LL"][:, 0])
    gain = own.scores["LL"][:, -1] - given.scores["LL"][:, -1]
    assert gain.mean() > 3 * gain.std() / len(gain) ** 0.5
    assert own.curve("RMSE")[0][-1] < given.curve("RMSE")[0][-1]


def test_the_exact_gp_chooses_without_regard_to_what_it_sees(tasks, order):
    """A Gaussian's posterior variance does not depend on y."""
    flipped = replace(tasks, y=-tasks.y.flip(1))
    mine, other = (learn(exact_learner(), each, order[:, :1], 5).order for each in (tasks, flipped))
    assert torch.equal(mine, other)


def test_scores_along_ones_own_order_are_those_of_the_loop(tasks, order):
    own = learn(exact_learner(0.1), tasks, order[:, :2], 4)
    again = follow(exact_learner(0.1), tasks, own.order, own.sizes)
    for name, values in own.scores.items():
        torch.testing.assert_close(again.scores[name], values)


def test_scores_by_hand(tasks, order):
    """Two equally likely standard normals at 0 and 2, at every point."""

    def believe(batch):
        means = torch.stack([torch.zeros_like(batch.y), torch.full_like(batch.y, 2.0)])
        prediction = Prediction(means, torch.ones_like(means))
        return Belief(prediction, prediction)

    run = follow(believe, tasks, order, sizes=[1])
    y = tasks.y[..., 0].double()
    parts = torch.stack([-0.5 * y.square(), -0.5 * (y - 2).square()]) - HALF_LOG_TWO_PI
    torch.testing.assert_close(run.scores["expected_log"][:, 0], parts.mean(0).mean(-1), atol=1e-5, rtol=0)
    mixture = parts.exp().mean(0).log()
    torch.testing.assert_close(run.scores["LL"][:, 0], mixture.mean(-1), atol=1e-5, rtol=0)
    torch.testing.assert_close(run.scores["RMSE"][:, 0], (y - 1).square().mean(-1).sqrt(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("name", NAMES)
def test_every_model_asks_for_different_points(name, small_config, tasks, order):
    learner = model_learner(build_model(small_config(name)).eval(), samples=3)
    run = learn(learner, tasks, order[:, :1], 6)
    assert all(len(set(row)) == 7 for row in run.order.tolist())
    assert run.order[:, 0].tolist() == order[:, 0].tolist()
    assert all(values.isfinite().all() for values in run.scores.values())


def test_points_that_are_not_there_are_not_asked_for(tasks):
    partial = replace(tasks, mask=torch.arange(50).expand(len(tasks), -1) < 6)
    order = random_order(partial, 6, seed=1)
    assert sorted(order[0].tolist()) == list(range(6))
    run = learn(exact_learner(), partial, order[:, :1], 5)
    assert all(sorted(row) == list(range(6)) for row in run.order.tolist())
    with pytest.raises(InputError, match="queries is 6; expected 0 to 5"):
        learn(exact_learner(), partial, order[:, :1], 6)


def test_orders_follow_the_seed_and_purpose(tasks):
    assert torch.equal(random_order(tasks, 5, 1, 2), random_order(tasks, 5, 1, 2))
    assert not torch.equal(random_order(tasks, 5, 1, 2), random_order(tasks, 5, 1, 3))
