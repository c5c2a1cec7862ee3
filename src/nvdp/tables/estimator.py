"""What both estimators share: `fit` sets the context of a model that has learned from tasks, and costs one pass.

A clone keeps what `meta_fit` learned and drops the context, so that pipelines and cross-validation over contexts work;
pickled, the weights travel as safetensors bytes.
"""

from abc import abstractmethod
from typing import Any, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from nvdp.loading import FittedModel, packed, unpacked
from nvdp.training.early_stopping import FitOutcome
from nvdp.units import DataScale

_KEPT_BY_CLONE = ("_fitted", "meta_score_", "meta_steps_")


class MetaEstimator(BaseEstimator):
    """An estimator that is fitted twice: to many tasks, and to the few points of a new one."""

    model: str
    steps: int
    max_minutes: float | None
    random_state: int
    _fitted: FittedModel
    _posterior: Any
    _context: tuple[Any, Any]  # inputs and outputs of the new task, as they were given

    @abstractmethod
    def _posterior_of(self, fitted: FittedModel, points: Any, values: Any) -> Any:
        """The model's posterior given a context."""

    def _adapt(self) -> None:
        with torch.no_grad():
            self._posterior = self._posterior_of(self._meta(), *self._context)

    def _take(self, outcome: FitOutcome, scale: DataScale) -> Self:
        self._fitted = FittedModel(outcome.config, outcome.model, scale)
        self.meta_score_, self.meta_steps_ = outcome.score, outcome.steps
        self.__dict__.pop("_posterior", None)
        return self

    def _seconds(self) -> float | None:
        return None if self.max_minutes is None else 60 * self.max_minutes

    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    def _meta(self) -> FittedModel:
        fitted = getattr(self, "_fitted", None)
        if fitted is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not learned from tasks yet; call meta_fit, or take from_pretrained"
            )
        return fitted

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_posterior")

    def __sklearn_clone__(self) -> Self:
        twin = type(self)(**self.get_params(deep=False))
        twin.__dict__ |= {name: self.__dict__[name] for name in _KEPT_BY_CLONE if name in self.__dict__}
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_posterior", None)
        fitted = state.pop("_fitted", None)
        return state if fitted is None else state | {"_saved": packed(fitted)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        state = dict(state)
        saved = state.pop("_saved", None)
        super().__setstate__(state)
        if saved is not None:
            self._fitted = unpacked(saved)
            if hasattr(self, "_context"):
                self._adapt()
