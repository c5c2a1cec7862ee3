"""A classifier that has learned from tasks: which features matter, any number of classes, labels of any type."""

import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.neighbors import NearestCentroid
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from nvdp.errors import InputError
from nvdp.tables import NVDPClassifier

FEATURES, TELLING = 6, 2


def blobs(random, way, each=8):
    """Classes that differ in the first two features; the others are noise, and larger."""
    centres = np.zeros((way, FEATURES))
    centres[:, :TELLING] = random.normal(size=(way, TELLING))
    labels = np.repeat(np.arange(way), each)
    noise = np.where(np.arange(FEATURES) < TELLING, 0.2, 2.0) * random.normal(size=(len(labels), FEATURES))
    return centres[labels] + noise, labels


def tasks(count=60, seed=0):
    random = np.random.default_rng(seed)
    return [blobs(random, random.integers(2, 5)) for _ in range(count)]


@pytest.fixture(scope="module")
def learned():
    return NVDPClassifier(steps=120).meta_fit(tasks())


@pytest.fixture
def new():
    """Support and queries of a task with more classes than any of meta-training had."""
    x, y = blobs(np.random.default_rng(5), 6, each=20)
    support = np.arange(len(y)) % 20 < 3
    return x[support], y[support], x[~support], y[~support]


def test_it_knows_which_features_matter_where_a_nearest_centroid_cannot(learned):
    ours, theirs = [], []
    random = np.random.default_rng(1)
    for _ in range(20):
        x, y = blobs(random, 4, each=10)
        support = np.arange(len(y)) % 10 < 2
        for scores, classifier in ((ours, learned), (theirs, NearestCentroid())):
            scores.append(classifier.fit(x[support], y[support]).score(x[~support], y[~support]))
    assert np.mean(ours) > np.mean(theirs) + 0.2


def test_probabilities_of_any_number_of_classes_add_up(learned, new):
    x, y, queries, labels = new
    probabilities = learned.fit(x, y).predict_proba(queries)
    assert probabilities.shape == (len(queries), 6)
    np.testing.assert_allclose(probabilities.sum(1), 1)
    assert learned.score(queries, labels) > 2 / 6
    np.testing.assert_array_equal(learned.predict(queries), learned.classes_[probabilities.argmax(1)])


@pytest.mark.parametrize(
    "names", [list("abcdef"), [True, False] * 3, [3, -1, 7, 10, 0, 5], [0.5, 1.0, 2.0, 3.0, 4.0, 5.0]]
)
def test_labels_may_be_of_any_type(learned, new, names):
    x, y, queries, _ = new
    names = np.asarray(names)
    if names.dtype.kind == "f":
        with pytest.raises(ValueError, match="continuous"):
            learned.fit(x, names[y])
        return
    said = learned.fit(x, names[y]).predict(queries)
    assert said.dtype == names.dtype
    assert set(said) <= set(names)


def test_one_class_is_the_answer_to_everything(learned, new):
    x, y, queries, _ = new
    assert (learned.fit(x[y == 2], y[y == 2]).predict(queries) == 2).all()


def test_clones_pickles_and_pipelines_keep_what_was_learned(learned, new):
    x, y, queries, _ = new
    expected = learned.fit(x, y).predict_proba(queries)
    with pytest.raises(NotFittedError):
        clone(learned).predict(queries)
    np.testing.assert_array_equal(clone(learned).fit(x, y).predict_proba(queries), expected)
    np.testing.assert_allclose(pickle.loads(pickle.dumps(learned)).predict_proba(queries), expected, rtol=1e-5)
    pipeline = make_pipeline(FunctionTransformer(lambda v: v / 10), clone(learned)).fit(10 * x, y)
    np.testing.assert_allclose(pipeline.predict_proba(10 * queries), expected, rtol=1e-4)


@pytest.mark.parametrize("model", ["protonet", "versa", "cnp", "matching"])
def test_any_model_for_classification_may_be_named(model, new):
    classifier = NVDPClassifier(model, steps=3).meta_fit(tasks(6))
    x, y, queries, _ = new
    assert classifier.fit(x, y).predict(queries).shape == (len(queries),)


def test_tasks_may_be_a_frame_with_words_as_labels():
    parts = []
    for number, (x, y) in enumerate(tasks(4)):
        part = pd.DataFrame(x, columns=list("abcdef"))
        parts.append(part.assign(patient=number, illness=[f"kind {label}" for label in y]))
    frame = pd.concat(parts)
    told = NVDPClassifier(steps=3).meta_fit(frame, task="patient", y="illness")
    assert told.meta_score_ == pytest.approx(NVDPClassifier(steps=3).meta_fit(tasks(4)).meta_score_, abs=1e-4)
    frame.iloc[0, 0] = np.nan
    with pytest.warns(UserWarning, match="left out 1 of"):
        NVDPClassifier(steps=1).meta_fit(frame, task="patient", y="illness")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ([], "at least 2 tasks with 2 classes of 2 points; got 0"),
        (tasks(1), "2 tasks with 2 classes of 2 points; got 1"),
        ([(np.zeros((4, 2)), [0, 1])], r"X has 4 rows and y has shape \(2,\)"),
        ([(np.zeros((4, 2)), [0, 0, 1, 1]), (np.zeros((4, 3)), [0, 0, 1, 1])], r"got \[2, 3\]"),
        ([5], "task 0 is a int"),
        (pd.DataFrame({"a": [1]}), "names of its columns"),
    ],
)
def test_tasks_that_cannot_be_learned_from_are_one_line(given, words):
    with pytest.raises(InputError, match=words):
        NVDPClassifier(steps=1).meta_fit(given)


def test_a_model_for_one_number_of_classes_is_refused():
    with pytest.raises(InputError, match="maml has a last layer for one number of classes"):
        NVDPClassifier("maml").meta_fit(tasks(4))


def test_tasks_without_two_classes_are_left_out_with_a_warning():
    with pytest.warns(UserWarning, match="left out 1 of 3 tasks"):
        NVDPClassifier(steps=1).meta_fit([*tasks(2), (np.zeros((3, FEATURES)), [0, 1, 2])])


def test_without_tasks_or_with_other_features_there_is_nothing_to_fit_with(learned):
    with pytest.raises(NotFittedError, match="meta_fit"):
        NVDPClassifier().fit([[0.0], [1.0]], [0, 1])
    with pytest.raises(InputError, match="X has 1 features; the model was meta-trained on 6"):
        learned.fit([[0.0], [1.0]], [0, 1])
