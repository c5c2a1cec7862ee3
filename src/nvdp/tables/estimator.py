"""What both estimators share: `fit` sets the context of a model that has learned from tasks, and costs one pass.

A clone keeps what `meta_fit` learned and drops the context, so that pipelines and cross-validation over contexts work.
"""

from typing import Any, ClassVar, Self

import torch
from sklearn.base import BaseEstimator
from sklearn.exceptions import NotFittedError

from nvdp.errors import InputError
from nvdp.loading import Predictor, load
from nvdp.training.early_stopping import FitOutcome, Shown

_KEPT_BY_CLONE = ("predictor_", "meta_score_", "meta_steps_")


class MetaEstimator(BaseEstimator):
    """An estimator that is fitted twice: to many tasks, and to the few points of a new one.

    Attributes:
        predictor_: The model that `meta_fit` has trained or `from_pretrained` has loaded; there is none before.
        predictor: The same model. If there is none yet, the pretrained one is loaded and kept as ``predictor_``; an
            estimator without a pretrained model raises `NotFittedError`.
    """

    kind: ClassVar[str]
    pretrained: ClassVar[str | None] = None  # what `fit` adapts if nothing was learned from tasks
    model: str
    steps: int
    max_minutes: float | None
    random_state: int
    verbose: int
    device: str
    predictor_: Predictor
    _posterior: Any
    _context: tuple[Any, Any]  # inputs and outputs of the new task, as they were given

    @classmethod
    def from_pretrained(cls, name_or_folder: Any, **parameters: Any) -> Self:
        """An estimator that needs no `meta_fit`.

        Args:
            name_or_folder: A pretrained model by name, the folder of a run, or one of ``nvdp fit``.
            parameters: Those of the estimator.

        Returns:
            The estimator, ready for `fit`.
        """
        predictor = load(name_or_folder)
        if predictor.kind != cls.kind:
            raise InputError(f"{name_or_folder} is a model of {predictor.kind}; {cls.__name__} is for {cls.kind}")
        estimator = cls(model=predictor.model.config.name, **parameters)
        estimator.predictor_ = predictor
        return estimator

    def _adapt(self) -> None:
        with torch.no_grad():
            self._posterior = self.predictor.adapt(*self._context)

    def _take(self, outcome: FitOutcome, predictor: Predictor) -> Self:
        self.predictor_ = predictor
        self.meta_score_, self.meta_steps_ = outcome.score, outcome.steps
        self.__dict__.pop("_posterior", None)
        return self

    def _seconds(self) -> float | None:
        return None if self.max_minutes is None else 60 * self.max_minutes

    def _shown(self) -> Shown:
        return Shown(bool(self.verbose), self.device)

    def _seed(self) -> int:
        return 0 if self.random_state is None else int(self.random_state)

    @property
    def predictor(self) -> Predictor:
        """The trained model; if nothing was learned from tasks, the pretrained one, which is then loaded."""
        predictor = getattr(self, "predictor_", None)
        if predictor is None and self.pretrained is not None:
            predictor = self.predictor_ = load(self.pretrained)
        if predictor is None:
            raise NotFittedError(
                f"this {type(self).__name__} has not learned from tasks yet; call meta_fit, or take from_pretrained"
            )
        return predictor

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, "_posterior")

    def __sklearn_clone__(self) -> Self:
        twin = type(self)(**self.get_params(deep=False))
        twin.__dict__ |= {name: self.__dict__[name] for name in _KEPT_BY_CLONE if name in self.__dict__}
        return twin

    def __getstate__(self) -> dict[str, Any]:
        state = dict(super().__getstate__())
        state.pop("_posterior", None)  # made again from the context
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        if hasattr(self, "_context") and hasattr(self, "predictor_"):
            self._adapt()
