"""Predictions without sampling beside those of thousands of sampled functions."""

import pytest
import torch

from nvdp.models.registry import build_model
from nvdp.posteriors.base import FIXED_SAMPLES


def close(ours, theirs, mean, std):
    assert ((ours.mean - theirs.mean) / theirs.std).abs().max() < mean
    assert (ours.std / theirs.std - 1).abs().max() < std
    for level in (0.05, 0.95):
        assert ((ours.quantile(level) - theirs.quantile(level)) / theirs.std).abs().max() < 2 * mean


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"decoder.sees": "x,r"},
        {"y_dim": 2},
        {"likelihood.variance": "fixed"},
        {"decoder.activation": "gelu", "likelihood.min_std": 0.01},
    ],
)
def test_a_dropout_posterior_is_predicted_as_by_thousands_of_functions(small_config, make_task, changes):
    model = build_model(small_config("nvdp", {"decoder.width": 32, **changes})).eval()
    task = make_task(4, 6, y_dim=changes.get("y_dim", 1))
    posterior = model.adapt(task.x_context, task.y_context)
    ours, theirs = posterior.predict(task.x_target), posterior.predict(task.x_target, 5_000)
    assert ours.mean.shape == theirs.mean.shape
    close(ours, theirs, 0.1, 0.05)


def test_several_tasks_are_predicted_as_each_alone(small_config, ragged_batch):
    model, batch = build_model(small_config("nvdp")).eval(), ragged_batch()
    together = model.adapt(batch.context).predict(batch.x)
    task = batch.context
    alone = model.adapt(task.x[2:3], task.y[2:3], task.mask[2:3]).predict(batch.x[2:3])
    torch.testing.assert_close(together.mean[2], alone.mean[0], atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(together.std[2], alone.std[0], atol=1e-5, rtol=1e-4)


def test_other_posteriors_are_sampled_or_have_one_function(small_config, make_task):
    task = make_task(3, 4)
    for name, components in (("cnp", 1), ("np", FIXED_SAMPLES)):
        posterior = build_model(small_config(name)).eval().adapt(task.x_context, task.y_context)
        assert len(posterior.predict(task.x_target).functions) == components
