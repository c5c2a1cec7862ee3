"""What every regression model of the registry promises, for tasks of any size, width, precision and padding."""

from dataclasses import dataclass
from functools import lru_cache

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.distributions import kl_divergence

from faults.runs import SMALL
from nvdp.models.config import ModelConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.tasks import PointSet, Task, TaskBatch

NAMES = [name for name, spec in MODELS.items() if "regression" in spec.tasks]
TOLERANCE = {torch.float32: 2e-4, torch.float64: 1e-9}
for_every_model = pytest.mark.parametrize("name", NAMES)
SETTINGS = settings.get_profile("trust")


@dataclass(frozen=True)
class Case:
    """A model's shape and precision, and some tasks for it."""

    x_dim: int
    y_dim: int
    variance: str
    dtype: torch.dtype
    sizes: tuple[tuple[int, int], ...]  # context and target points of every task
    seed: int

    def model(self, name):
        return _model(name, self.x_dim, self.y_dim, self.variance, self.dtype)

    @property
    def generator(self):
        return torch.Generator().manual_seed(self.seed)

    def tasks(self):
        generator = self.generator

        def draw(points, width):
            return torch.randn(points, width, generator=generator, dtype=self.dtype)

        return [Task(draw(c, self.x_dim), draw(c, self.y_dim), draw(t, self.x_dim), draw(t, self.y_dim))
                for c, t in self.sizes]  # fmt: skip

    def close(self, actual, expected):
        tolerance = TOLERANCE[self.dtype]
        torch.testing.assert_close(actual, expected, atol=tolerance, rtol=tolerance)


@lru_cache(maxsize=64)
def _model(name, x_dim, y_dim, variance, dtype):
    config = ModelConfig(name, x_dim=x_dim, y_dim=y_dim).updated({"likelihood.variance": variance, **SMALL})
    return build_model(config).to(dtype).eval().requires_grad_(False)


def cases(least_context=0):
    size = st.tuples(st.integers(least_context, 9), st.integers(1, 6))
    return st.builds(
        Case,
        st.integers(1, 2),
        st.integers(1, 2),
        st.sampled_from(["learned", "fixed"]),
        st.sampled_from([torch.float32, torch.float64]),
        st.lists(size, min_size=1, max_size=4).map(tuple),
        st.integers(0, 2**31),
    )


def adapted(model, task):
    return model.adapt(task.x_context, task.y_context)


@for_every_model
@SETTINGS
@given(case=cases(1))
def test_the_order_of_the_context_does_not_matter(name, case):
    model = case.model(name)
    for task in case.tasks():
        order = torch.randperm(len(task.x_context), generator=case.generator)
        shuffled = model.adapt(task.x_context[order], task.y_context[order])
        for samples in (0, 2):
            a, b = (q.predict(task.x_target, samples, 1) for q in (shuffled, adapted(model, task)))
            case.close(a.functions, b.functions)
            case.close(a.stds, b.stds)


@for_every_model
@SETTINGS
@given(case=cases())
def test_predictions_follow_the_order_of_the_targets(name, case):
    model = case.model(name)
    for task in case.tasks():
        order = torch.randperm(len(task.x_target), generator=case.generator)
        posterior = adapted(model, task)
        for samples in (0, 2):
            before, after = (posterior.predict(x, samples, 1) for x in (task.x_target, task.x_target[order]))
            case.close(after.functions, before.functions[:, order])
            case.close(after.stds, before.stds[:, order])


@for_every_model
@SETTINGS
@given(case=cases())
def test_a_padded_batch_equals_its_tasks_one_by_one_whatever_the_padding_holds(name, case):
    model, tasks = case.model(name), case.tasks()
    batch = TaskBatch.collate(tasks)
    outside = ~batch.is_context[..., None]
    spoiled = PointSet(batch.x + 7 * outside, batch.y - 7 * outside, batch.is_context)
    for context in (batch.context, spoiled):
        together = model.adapt(context).predict(batch.x)
        for index, task in enumerate(tasks):
            alone, target = adapted(model, task).predict(task.x_target), batch.target.mask[index]
            case.close(together.mean[index, target], alone.mean)
            case.close(together.std[index, target], alone.std)


@for_every_model
@SETTINGS
@given(case=cases(), given_dtype=st.sampled_from([torch.float32, torch.float64]))
def test_precision_is_the_model_s_whatever_is_given(name, case, given_dtype):
    model = case.model(name)
    for task in case.tasks():
        posterior = model.adapt(task.x_context.to(given_dtype), task.y_context.to(given_dtype))
        prediction = posterior.predict(task.x_target.to(given_dtype), 2)
        assert prediction.functions.dtype == prediction.stds.dtype == prediction.mean.dtype == case.dtype


@for_every_model
@SETTINGS
@given(case=cases())
def test_adapting_and_predicting_change_nothing_but_the_answer(name, case):
    model, state = case.model(name), torch.get_rng_state()
    before = {key: tensor.clone() for key, tensor in model.state_dict().items()}
    for task in case.tasks():
        given_points = task.x_context.clone(), task.y_context.clone(), task.x_target.clone()
        adapted(model, task).predict(task.x_target, 3)
        kept = (task.x_context, task.y_context, task.x_target)
        assert all(torch.equal(a, b) for a, b in zip(given_points, kept, strict=True))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[key]) for key, tensor in model.state_dict().items())


@for_every_model
@SETTINGS
@given(case=cases(), seed=st.integers(0, 2**31))
def test_the_same_question_has_the_same_answer_to_the_last_bit(name, case, seed):
    model = case.model(name)
    for task in case.tasks():
        for samples in (0, 3):
            answers = [adapted(model, task).predict(task.x_target, samples, seed) for _ in range(2)]
            assert torch.equal(answers[0].functions, answers[1].functions)
            assert torch.equal(answers[0].stds, answers[1].stds)


@for_every_model
@SETTINGS
@given(case=cases())
def test_the_kl_is_zero_between_equal_sets_and_never_negative(name, case):
    model, batch = case.model(name), TaskBatch.collate(case.tasks())
    q_context, q_task = model.adapt_both(batch)
    again = model.adapt_both(batch)[0]
    assert kl_divergence(q_context, again).abs().max() <= TOLERANCE[case.dtype] * max(1, q_context.size)
    for divergence in (kl_divergence(q_context, q_task), kl_divergence(q_task, q_context)):
        assert torch.isfinite(divergence).all()
        assert (divergence >= 0).all()
