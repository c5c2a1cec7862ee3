"""`NVDPClassifier`: classes of vectors from a few labelled ones, by a model that has learned from many tasks."""

from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np
from sklearn.base import ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from nvdp.errors import InputError
from nvdp.loading import Predictor
from nvdp.models.registry import model_spec
from nvdp.tables.estimator import MetaEstimator
from nvdp.tables.tasks import as_tasks, split_held_out, standardised_classes
from nvdp.training.early_stopping import Candidate, fit_best, held_out_score
from nvdp.training.presets import class_config
from nvdp.units import Units


class NVDPClassifier(ClassifierMixin, MetaEstimator):
    """Classification from a few labelled vectors of each class.

    ``model`` is nvdp, cnp, versa, protonet or matching. Tasks may differ in their classes, in how many there are and
    in their sizes; so may the new task.
    A prediction is that of the posterior itself, which needs no sampling (`samples` is 0), or an average over that many
    sampled classifiers. With `verbose` `meta_fit` shows a progress bar; `device` is where it trains.

    >>> random = np.random.default_rng(0)
    >>> def task(label):
    ...     centres = random.normal(size=(3, 4))
    ...     return np.repeat(centres, 6, 0) + 0.1 * random.normal(size=(18, 4)), np.repeat(label, 6)
    >>> classifier = NVDPClassifier(steps=20).meta_fit(task([0, 1, 2]) for _ in range(10))
    >>> X, y = task(["ash", "elm", "oak"])
    >>> classifier.fit(X[::3], y[::3]).predict_proba(X).shape, classifier.classes_.tolist()
    ((18, 3), ['ash', 'elm', 'oak'])
    """

    kind: ClassVar[str] = "classification"

    def __init__(
        self,
        model: str = "nvdp",
        steps: int = 1_500,
        max_minutes: float | None = None,
        samples: int = 0,
        random_state: int = 0,
        verbose: int = 0,
        device: str = "cpu",
    ) -> None:
        self.model = model
        self.steps = steps
        self.max_minutes = max_minutes
        self.samples = samples
        self.random_state = random_state
        self.verbose = verbose
        self.device = device

    def meta_fit(
        self, tasks: Any, task: str | None = None, x: str | Iterable[str] | None = None, y: str | None = None
    ) -> Self:
        """Learn from tasks: a list or generator of (X, labels), or a long DataFrame with its columns' names.

        A part of the tasks is held out to end training by; ``meta_score_`` is the log-likelihood of their labels.
        """
        if model_spec(self.model).fixed_classes:
            raise InputError(f"{self.model} has a last layer for one number of classes; here tasks may differ")
        pairs, seed = as_tasks(tasks, task, x, y, labels=True), self._seed()
        units = Units.of([a for a, _ in pairs])
        training, held_out = (standardised_classes(part, units) for part in split_held_out(pairs, seed))
        config = class_config(self.model, training.x_dim, training.y_dim, self.steps, seed)
        way = Candidate("as they are", config, training)
        score = held_out_score(held_out.scored_batches(seed))
        outcome = fit_best([way], score, self._seconds(), self._shown())
        return self._take(outcome, Predictor(outcome.model, units, outcome.config))

    def fit(self, X: Any, y: Any) -> Self:
        """Set the support: a few labelled rows of each class of a new task."""
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        X, y = validate_data(self, X, y, dtype=np.float64)
        check_classification_targets(y)
        features = self.predictor.model.config.x_dim
        if X.shape[1] != features:
            raise InputError(f"X has {X.shape[1]} features; the model was meta-trained on {features}")
        self.classes_, numbers = np.unique(y, return_inverse=True)
        self._context = (X, np.eye(len(self.classes_), dtype=np.float32)[numbers])
        self._adapt()
        return self

    def predict_proba(self, X: Any) -> Any:
        """The probability of every class, in the order of ``classes_``."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        prediction = self._posterior.predict(X, self.samples, self._seed())
        probabilities = prediction.probabilities.double().numpy()
        return probabilities / probabilities.sum(1, keepdims=True)

    def predict(self, X: Any) -> Any:
        """The most probable class of every row."""
        return self.classes_[self.predict_proba(X).argmax(1)] if hasattr(self, "classes_") else self.predict_proba(X)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True  # on data unlike the tasks of meta-training
        return tags
