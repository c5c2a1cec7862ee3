"""`NVDPRegressor`: ``GaussianProcessRegressor``'s habits for a model that has learned from many related tasks."""

import warnings
from collections.abc import Iterable
from typing import Any, ClassVar, Self

import numpy as np
import torch
from sklearn.base import MultiOutputMixin, RegressorMixin
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from nvdp.errors import InputError
from nvdp.evaluation.in_turn import sample_in_turn
from nvdp.posteriors.prediction import Prediction
from nvdp.tables.estimator import MetaEstimator
from nvdp.tables.fitted import HowToFit, fit_tasks
from nvdp.tables.tasks import as_tasks, split_held_out, whole_rows

COVARIANCE_SAMPLES = 512


class NVDPRegressor(MultiOutputMixin, RegressorMixin, MetaEstimator):
    """Regression from a handful of points, by a model that has learned from many related tasks.

    Without `meta_fit`, `fit` adapts the pretrained model `general`, which takes one to three inputs in any units.
    ``model`` is what `meta_fit` trains, any regression model: nvdp-attentive; nvdp, the paper's; cnp, np and the others
    of `nvdp models`; or auto, the best of a few. Inputs and outputs are standardised inside. A
    prediction is that of the posterior itself, which needs no sampling (`samples` is 0), or a mixture over that many
    sampled functions. With `verbose` `meta_fit` shows a progress bar; `device` is where it trains.

    >>> regressor = NVDPRegressor()
    >>> regressor.fit([[-1.0], [0.0], [1.0]], [0.3, 0.9, 0.1]).predict([[0.5], [0.7]]).shape
    (2,)
    >>> mean, std = regressor.predict([[0.5]], return_std=True)
    >>> regressor.sample_y([[0.5], [0.7]], n_samples=3).shape, len(regressor.dropout_rates_)
    ((2, 3), 3)
    """

    kind: ClassVar[str] = "regression"
    pretrained: ClassVar[str | None] = "general"

    def __init__(
        self,
        model: str = "nvdp-attentive",
        steps: int = 4_000,
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
        self,
        tasks: Any,
        task: str | None = None,
        x: str | Iterable[str] | None = None,
        y: str | Iterable[str] | None = None,
    ) -> Self:
        """Learn from tasks: a list or generator of (X, y), or a long DataFrame with its `task`, `x` and `y` columns.

        The fit is that of ``nvdp fit``: with six training tasks or more the prediction is a mixture of the network's
        and the hierarchical GP's, and it is calibrated. With the model auto the network is chosen too. A part of the
        tasks is held out to end training by; their score is ``meta_score_``, the log-likelihood of a standardised
        output.
        """
        pairs, seed = as_tasks(tasks, task, x, y), self._seed()
        parts = split_held_out(pairs, seed)
        progress = bool(self.verbose)
        how = HowToFit(self.model, self.steps, self.max_minutes, seed, progress, self.device, process=True)
        fitted = fit_tasks(*parts, how)
        return self._take(fitted.outcome, fitted.predictor())

    def fit(self, X: Any, y: Any) -> Self:
        """Set the context; rows with a missing value are left out with a warning."""
        if y is None:
            raise InputError("fit requires y to be passed, but the target y is None")
        X, y = _with_outputs(X, y)
        X, y = validate_data(
            self, X, y, dtype=np.float64, multi_output=True, y_numeric=True, ensure_all_finite="allow-nan"
        )
        points, values = whole_rows(X, y)
        widths = self.predictor.widths
        if points.shape[1] not in widths.x or values.shape[1] != widths.y:
            expected = f"{widths.x[0]}" if len(widths.x) == 1 else f"{widths.x[0]} to {widths.x[-1]}"
            raise InputError(
                f"X has {points.shape[1]} features and y {values.shape[1]} outputs; the model was meta-trained on "
                f"{expected} and {widths.y}"
            )
        self._flat = np.asarray(y).ndim == 1
        self._context = (points, values)
        self._adapt()
        return self

    def predict(
        self,
        X: Any,
        return_std: bool = False,
        return_cov: bool = False,
        quantiles: Iterable[float] | None = None,
    ) -> Any:
        """Predictive means; with `return_std` also standard deviations, with `return_cov` also the covariance.

        The covariance is (points, points), with several outputs (points, points, outputs), estimated from sampled
        functions plus the noise of each point. `quantiles` gives instead an array whose last axis are the levels. Rows
        with a missing input have missing predictions; a covariance needs whole rows.
        """
        if return_std + return_cov + (quantiles is not None) > 1:
            raise InputError("ask for one of return_std, return_cov and quantiles at a time")
        x = self._queries(X, missing=not return_cov)
        if return_cov:
            functions = self._posterior.predict(x, COVARIANCE_SAMPLES, self._seed())
            return self._shaped(functions.mean), self._covariance(functions)
        unknown = np.isnan(x).any(1)
        prediction = self._posterior.predict(x[~unknown], self.samples, self._seed())
        if quantiles is not None:
            return self._shaped(torch.stack([prediction.quantile(level) for level in quantiles], -1), unknown)
        mean = self._shaped(prediction.mean, unknown)
        return (mean, self._shaped(prediction.std, unknown)) if return_std else mean

    def sample_y(
        self,
        X: Any,
        n_samples: int = 1,
        random_state: int | None = 0,
        noise: bool = False,
        in_turn: int | None = None,
    ) -> Any:
        """Functions drawn from the posterior, each coherent over X: (points, samples) or (points, outputs, samples).

        With `noise` each value is an observation, not the function's own. With `in_turn` observations are drawn in
        blocks of so many points, each given those before it: see `nvdp.evaluation.in_turn.sample_in_turn`.
        """
        seed = 0 if random_state is None else int(random_state)
        if in_turn is not None:
            drawn = sample_in_turn(self.predictor, *self._context, self._queries(X), n_samples, seed, in_turn)
            return self._shaped(drawn.permute(1, 2, 0))
        prediction = self._posterior.predict(self._queries(X), n_samples, seed)
        drawn = prediction.sample(seed + 1) if noise else prediction.functions
        return self._shaped(drawn.permute(1, 2, 0))

    def suggest(self, X: Any, k: int = 1, by: str = "spread") -> Any:
        """Indices of the k rows of X to observe next, most wanted first: see `nvdp.Posterior.suggest`."""
        return self._posterior.suggest(self._queries(X), k, by=by, seed=self._seed()).numpy()

    @property
    def dropout_rates_(self) -> Any:
        """The mean dropout rate of every layer, given the context."""
        rates = self._posterior.mean_rates() if hasattr(self, "_posterior") else None
        if rates is None:
            raise AttributeError("dropout rates are there after `fit`, and only of an nvdp model")
        return rates[0].detach().numpy()

    def _queries(self, X: Any, missing: bool = False) -> Any:
        check_is_fitted(self)
        finite = "allow-nan" if missing else True
        return validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite=finite)

    def _covariance(self, prediction: Prediction) -> Any:
        centred = prediction.functions - prediction.mean  # (sample, point, y)
        covariance = torch.einsum("spy,sqy->pqy", centred, centred) / len(centred)
        noise = prediction.stds.square().mean(0)
        covariance += torch.eye(len(noise), dtype=noise.dtype)[..., None] * noise[:, None]
        return (covariance[..., 0] if self._flat else covariance).double().numpy()

    def _shaped(self, values: Tensor, unknown: Any = None) -> Any:
        """Predictions of the known rows as an array of all rows, those of unknown ones missing."""
        shaped = (values[:, 0] if self._flat else values).double().numpy()
        if unknown is None or not unknown.any():
            return shaped
        every = np.full((len(unknown), *shaped.shape[1:]), np.nan)
        every[~unknown] = shaped
        return every

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.regressor_tags.poor_score = True  # on data unlike the tasks of meta-training
        return tags


def _with_outputs(X: Any, y: Any) -> tuple[Any, Any]:
    """The rows whose output is known: scikit-learn lets inputs be missing, outputs not."""
    values, rows = np.asarray(y), np.asarray(X) if not hasattr(X, "toarray") else X
    if values.dtype.kind != "f" or values.ndim not in (1, 2) or len(values) != rows.shape[0]:
        return X, y  # whatever is wrong is told by scikit-learn's own checks
    missing = np.isnan(values) if values.ndim == 1 else np.isnan(values).any(1)
    if not missing.any() or missing.all():
        return X, y
    warnings.warn(f"the context: left out {int(missing.sum())} of {len(y)} rows without an output", stacklevel=3)
    return (X.loc[~missing] if hasattr(X, "loc") else rows[~missing]), values[~missing]
