"""scikit-learn's own checks of an estimator, every one of them a test.

python tests/tables/test_sklearn_checks.py   # results/trust/sklearn.json: checks and expected failures
"""

import contextlib
import json
import warnings
from pathlib import Path
from unittest import SkipTest

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator, parametrize_with_checks

from nvdp.loading import Predictor
from nvdp.models.config import ClassifierConfig, ModelConfig
from nvdp.models.registry import build_model
from nvdp.tables import NVDPClassifier, NVDPRegressor

SMALL = {"decoder.width": 8, "decoder.layers": 2, "encoder.size": 8, "encoder.layers": 2}
SMALL |= {"rates.width": 8, "rates.layers": 2, "attention.width": 8, "attention.blocks": 1, "attention.heads": 2}
RESULT = Path(__file__).resolve().parents[2] / "results" / "trust" / "sklearn.json"
# By class, the checks that cannot pass, each with its reason.
EXPECTED_FAILURES: dict[str, dict[str, str]] = {"NVDPRegressor": {}, "NVDPClassifier": {}}


def widths(X, y):
    """Features and outputs of what a check hands over; None if `fit` itself must say what is wrong with it."""
    try:
        shape, outputs = np.asarray(X).shape, np.asarray(y).shape
    except ValueError:
        return None
    return (shape[1], *outputs[1:]) if len(shape) == 2 and shape[1] and outputs else None


def untrained(config):
    """A model whose predictions can be compared to 1e-7."""
    return Predictor.of(build_model(config).double().eval().requires_grad_(False))


class UntrainedRegressor(NVDPRegressor):
    """Checks know of `fit` alone and bring data of any width: a new model stands for one that has learned."""

    # No types, as a check passes arguments of wrong ones and types are checked while testing.
    def __init__(self, model="nvdp-attentive", steps=1, max_minutes=None, samples=0, random_state=0):
        self.model, self.steps, self.max_minutes = model, steps, max_minutes
        self.samples, self.random_state = samples, random_state

    def fit(self, X, y):
        if size := widths(X, y):
            config = ModelConfig(self.model, size[0], size[1] if len(size) > 1 else 1).updated(SMALL)
            self.predictor_ = untrained(config)
        return super().fit(X, y)


class UntrainedClassifier(NVDPClassifier):
    """The same for classes."""

    def __init__(self, model="nvdp", steps=1, max_minutes=None, samples=0, random_state=0):
        self.model, self.steps, self.max_minutes = model, steps, max_minutes
        self.samples, self.random_state = samples, random_state

    def fit(self, X, y):
        if size := widths(X, y):
            config = ClassifierConfig(self.model).updated({"extractor.name": "none", "extractor.features": size[0]})
            self.predictor_ = untrained(config)
        return super().fit(X, y)


ESTIMATORS = {"NVDPRegressor": UntrainedRegressor(), "NVDPClassifier": UntrainedClassifier()}


def expected(estimator):
    """The checks that an estimator cannot pass."""
    return EXPECTED_FAILURES[type(estimator).__mro__[1].__name__]


@pytest.mark.filterwarnings("ignore")
@parametrize_with_checks(list(ESTIMATORS.values()), expected_failed_checks=expected)
def test_a_check_of_scikit_learn(estimator, check):
    with contextlib.suppress(SkipTest):  # checks of array-API input, which the page lists
        check(estimator)


def test_the_page_lists_the_checks_that_are_expected_to_fail():
    assert {name: row["expected_failures"] for name, row in json.loads(RESULT.read_text()).items()} == EXPECTED_FAILURES


def main():
    """Count and write."""
    rows = {}
    for name, estimator in ESTIMATORS.items():
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            results = check_estimator(
                estimator, on_fail=None, on_skip=None, expected_failed_checks=EXPECTED_FAILURES[name]
            )
        counts = {status: sum(r["status"] == status for r in results) for status in ("passed", "skipped", "failed")}
        skipped = {r["check_name"]: str(r["exception"]) for r in results if r["status"] == "skipped"}
        rows[name] = {**counts, "skips": skipped, "expected_failures": EXPECTED_FAILURES[name]}
        for row in results:
            if row["status"] == "failed":
                print(name, row["check_name"], repr(row["exception"])[:300])
    RESULT.write_text(json.dumps(rows, indent=1) + "\n")
    print(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
