"""scikit-learn's habits: parameters, clones, pipelines, pickles, and what a meta-learner adds to them."""

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.loading import load
from nvdp.tables import NVDPRegressor

X = np.array([[-1.0], [0.0], [1.0]])
Y = np.array([0.3, 0.9, 0.1])
AT = np.array([[-0.5], [0.5], [0.7]])


def lines(count, seed=0, outputs=1):
    """Tasks that are lines through about (5, 100), each with its own slope."""
    random = np.random.default_rng(seed)
    tasks = []
    for _ in range(count):
        x = random.uniform(0, 10, (8, 1))
        y = 100 + random.normal() * 3 * (x - 5) + 0.1 * random.normal(size=x.shape)
        tasks.append((x, y[:, 0] if outputs == 1 else np.hstack([y] * outputs)))
    return tasks


@pytest.fixture(scope="module")
def learned():
    return NVDPRegressor("cnp", steps=400).meta_fit(lines(300))


@pytest.fixture
def pretrained():
    return NVDPRegressor.from_pretrained("gp").fit(X, Y)


def test_two_points_tell_the_slope_of_a_line(learned):
    up, down = (learned.fit([[9.0], [8.0]], [100 + s * 12, 100 + s * 9]).predict([[2.0]])[0] for s in (1, -1))
    assert up < 95 < 105 < down


def test_the_predictor_of_a_regressor_that_learned_nothing_is_the_pretrained_one_from_then_on():
    regressor = NVDPRegressor()
    assert not hasattr(regressor, "predictor_")
    assert regressor.predictor is regressor.predictor_
    assert regressor.predictor.model.config == load("general").model.config


def test_predictions_come_in_every_form(pretrained):
    mean, std = pretrained.predict(AT, return_std=True)
    assert (mean.shape, std.shape) == ((3,), (3,))
    low, middle, high = pretrained.predict(AT, quantiles=[0.05, 0.5, 0.95]).T
    assert (low < middle).all()
    assert (middle < high).all()
    _, covariance = pretrained.predict(AT, return_cov=True)
    np.testing.assert_allclose(covariance, covariance.T)
    np.testing.assert_allclose(np.sqrt(np.diag(covariance)), std, rtol=0.2)
    samples = pretrained.sample_y(AT, 300)
    np.testing.assert_allclose(samples.mean(1), mean, atol=0.05)
    assert pretrained.sample_y(AT, 300, noise=True).std(1).min() > samples.std(1).min()
    assert ((pretrained.dropout_rates_ > 0) & (pretrained.dropout_rates_ < 1)).all()
    with pytest.raises(InputError, match="one of return_std"):
        pretrained.predict(AT, return_std=True, return_cov=True)


def test_the_default_is_nearer_to_a_thousand_functions_than_64_of_them_are(pretrained):
    x = np.linspace(-2, 2, 50)[:, None]
    context = np.linspace(-1.8, 1.7, 12)[:, None]
    pretrained.fit(context, np.sin(2 * context[:, 0]))
    levels = [0.05, 0.5, 0.95]

    def answers(samples):
        pretrained.set_params(samples=samples)
        mean, std = pretrained.predict(x, return_std=True)
        return np.column_stack([mean, pretrained.predict(x, quantiles=levels)]), std

    (many, many_std), (ours, our_std), (few, few_std) = (answers(samples) for samples in (1_000, 0, 64))
    scale = many_std[:, None]
    assert (
        np.abs((ours - many) / scale).max() < 0.15
    )  # the 5 % quantile of 1,000 functions has a standard error of 0.07
    assert np.abs(our_std / many_std - 1).max() < 0.05
    assert np.square((ours - many) / scale).mean() < np.square((few - many) / scale).mean()
    assert np.square(our_std / many_std - 1).mean() < np.square(few_std / many_std - 1).mean()


def test_a_clone_keeps_what_was_learned_and_drops_the_context(pretrained):
    twin = clone(pretrained)
    with pytest.raises(NotFittedError):
        twin.predict(AT)
    np.testing.assert_array_equal(twin.fit(X, Y).predict(AT), pretrained.predict(AT))
    assert twin.get_params() == pretrained.get_params()


def test_a_pickle_predicts_the_same(pretrained):
    again = pickle.loads(pickle.dumps(pretrained))
    np.testing.assert_allclose(again.predict(AT), pretrained.predict(AT), rtol=1e-6)
    assert pickle.loads(pickle.dumps(NVDPRegressor(steps=3))).steps == 3


def test_it_works_at_the_end_of_a_pipeline(pretrained):
    pipeline = make_pipeline(FunctionTransformer(lambda x: x / 10), clone(pretrained)).fit(10 * X, Y)
    np.testing.assert_allclose(pipeline.predict(10 * AT), pretrained.predict(AT), rtol=1e-5)


def test_missing_rows_are_left_out_and_far_queries_are_warned_of(pretrained):
    expected = pretrained.predict(AT)
    with pytest.warns(UserWarning, match="left out 1 of 4 rows without an output"):
        pretrained.fit(np.vstack([X, [[0.5]]]), [*Y, np.nan])
    np.testing.assert_allclose(pretrained.predict(AT), expected, rtol=1e-5)
    with pytest.warns(UserWarning, match=r"1 of 1 points lie outside .* \[-2, 2\]"):
        pretrained.predict([[3.0]])


@pytest.mark.parametrize("model", ["cnp", "np+cnp"])
def test_any_regression_model_and_several_outputs(model):
    regressor = NVDPRegressor(model, steps=6).meta_fit(lines(4, outputs=2))
    x, y = lines(1, outputs=2)[0]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        mean, std = regressor.fit(x, y).predict(x, return_std=True)
        assert mean.shape == std.shape == y.shape
        assert regressor.predict(x, return_cov=True)[1].shape == (8, 8, 2)
        assert regressor.sample_y(x, 5).shape == (8, 2, 5)
    assert not hasattr(regressor, "dropout_rates_")


def test_tasks_may_be_a_frame_or_a_generator():
    parts = [pd.DataFrame({"tree": k, "day": x[:, 0], "size": y}) for k, (x, y) in enumerate(lines(4))]
    frame = NVDPRegressor(steps=4).meta_fit(pd.concat(parts), task="tree", x="day", y="size")
    same = NVDPRegressor(steps=4).meta_fit(lines(4))
    assert frame.meta_score_ == pytest.approx(same.meta_score_, abs=1e-4)
    batch = GPTasks().training_batch(0, 0, 4)
    assert np.isfinite(NVDPRegressor(steps=4).meta_fit(iter(batch)).meta_score_)


@pytest.mark.parametrize(
    ("tasks", "words"),
    [
        ([], "2 tasks with at least 2 points; got 0"),
        (lines(1), "2 tasks with at least 2 points; got 1"),
        ([([0, 1], [0, 1]), ([[0, 1], [1, 2]], [0, 1])], r"got \[\(1, 1\), \(2, 1\)\]"),
        ([([0, 1], [0, np.inf])], "infinite value in row 1"),
        ([([0, 1], [0])], "X has 2 rows and y 1"),
        ([5, 6], "task 0 is a int"),
        (pd.DataFrame({"a": [1]}), "names of its columns"),
    ],
)
def test_tasks_that_cannot_be_learned_from_are_one_line(tasks, words):
    with pytest.raises(InputError, match=words):
        NVDPRegressor(steps=2).meta_fit(tasks)


def test_a_query_with_a_missing_input_has_a_missing_prediction():
    regressor = NVDPRegressor.from_pretrained("gp").fit(X, Y)
    mean, std = regressor.predict([[0.5], [np.nan], [0.7]], return_std=True)
    whole, spread = regressor.predict([[0.5], [0.7]], return_std=True)
    assert np.isnan(mean[1])
    assert np.isnan(std[1])
    np.testing.assert_allclose(mean[[0, 2]], whole, rtol=1e-6)
    np.testing.assert_allclose(std[[0, 2]], spread, rtol=1e-6)
    with pytest.raises(ValueError, match="contains NaN"):
        regressor.predict([[np.nan]], return_cov=True)
