"""Posteriors q(φ | D_C) that a model gives for a task, their closed-form KL divergences, and their predictions.

Each is a PyTorch distribution over the task's variable φ (dropped-out weights, a latent vector, or a single point),
joined to the network that φ configures. ``torch.distributions.kl_divergence`` compares two of the same kind and
returns one number per task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution

from nvdp.errors import InputError
from nvdp.nn.likelihoods import GaussianLikelihood, Likelihood
from nvdp.posteriors.prediction import Prediction
from nvdp.posteriors.suggestions import SAMPLES, suggest
from nvdp.tasks import PointSet, as_tensor, check_finite

Features = Callable[[Tensor], Tensor]  # of points, each seen from a context
NUMBERS_AT_ONCE = 2**22  # in the largest array while many functions are sampled: bounds memory, stays near the cache


def sample_groups(samples: int, numbers: int) -> list[int]:
    """Sizes of groups of samples whose largest array, `numbers` a sample, stays within `NUMBERS_AT_ONCE`.

    >>> sample_groups(5, NUMBERS_AT_ONCE // 2)
    [2, 2, 1]
    """
    at_once = max(1, NUMBERS_AT_ONCE // max(1, numbers))
    return [min(at_once, samples - start) for start in range(0, samples, at_once)]


class TaskPosterior(Distribution, ABC):
    """What is known about a task after its context: samples outputs, scores data.

    ``single`` marks a posterior of one task given without a task axis; its predictions have none either. ``like`` is a
    tensor whose precision and device inputs are taken to.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (the base class declares it this way)

    def __init__(self, like: Float[Tensor, "task _"], x_dim: int, likelihood: Likelihood) -> None:
        super().__init__(torch.Size([len(like)]), validate_args=False)
        self.like, self.x_dim, self.likelihood, self.single = like, x_dim, likelihood, False

    @property
    @abstractmethod
    def size(self) -> int:
        """How many random numbers φ holds for one task."""

    def mean_rates(self) -> Float[Tensor, "task layer"] | None:
        """The mean dropout rate of every layer's weights, if there are any."""
        return None

    def with_known_part_of(self, context: Self) -> Self:
        """This posterior over φ, with whatever is not random taken from the context's posterior."""
        return self

    @abstractmethod
    def mean_outputs(self, x: Tensor) -> Tensor:
        """Network outputs (task, point, output) with φ at its mean."""

    @abstractmethod
    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Network outputs (sample, task, point, output), one φ per sample and task shared by all points."""

    def predictive_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Samples to predict with; a posterior whose predictions are of single points may draw each point by itself."""
        return self.sampled_outputs(x, samples, generator)

    def training_outputs(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Outputs (task, point, output) under noise, differentiable in the model's parameters."""
        return self.sampled_outputs(x, 1, generator).squeeze(0)

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """A one-sample estimate of E_q[Σ_i log p(y_i | x_i, φ)] for each task."""
        log_prob = self.likelihood.log_prob(self.training_outputs(points.x, generator), points.y)
        return (log_prob * points.mask).sum(-1)

    def _outputs_at(self, x: Tensor, samples: int, generator: torch.Generator | int | None) -> Tensor:
        """Outputs (sample, task, point, output) without gradients; one sample with φ at its mean if `samples` is 0."""
        with torch.no_grad():
            if samples == 0:
                return self.mean_outputs(x)[None]
            return self.predictive_outputs(x, samples, self._checked(x, samples, generator))

    @staticmethod
    def _checked(x: Tensor, samples: int, generator: torch.Generator | int | None) -> torch.Generator:
        if samples < 0:
            raise InputError(f"samples is {samples}; expected at least 0")
        if isinstance(generator, torch.Generator):
            return generator
        return torch.Generator(device=x.device).manual_seed(generator or 0)

    def _inputs(self, x: Any) -> Float[Tensor, "task point x"]:
        x, tasks = as_tensor(x, "x").to(self.like), self.batch_shape[0]
        if x.dim() == 1 and self.x_dim == 1:
            x = x[:, None]
        if x.dim() not in (2, 3) or x.shape[-1] != self.x_dim or (x.dim() == 3 and len(x) != tasks):
            raise InputError(
                f"x has shape {tuple(x.shape)}; expected (points, {self.x_dim}) or ({tasks}, points, {self.x_dim})"
            )
        check_finite(x, "x")
        return x.expand(tasks, -1, -1) if x.dim() == 2 else x


@runtime_checkable
class Memory(Protocol):
    """What a posterior was made from, if that can take in more points: see `nvdp.models.state.TaskState`."""

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Memory":
        """With more points."""
        ...

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Memory":
        """Without some of its points."""
        ...

    def posterior(self) -> "Posterior":
        """The posterior that it stands for."""
        ...

    def to_bytes(self) -> bytes:
        """All of it."""
        ...


class Posterior(TaskPosterior):
    """A posterior over functions of a regression task: predicts a mixture of Gaussians.

    One with a ``memory`` goes on learning: `update`, `forget` and `to_bytes` need no point that it has seen before.
    """

    likelihood: GaussianLikelihood
    integrates = False  # whether `marginals` differ from a mixture over sampled functions
    _memory: Memory | Callable[[], Memory] | None = None

    @property
    def memory(self) -> Memory | None:
        """What this posterior goes on learning from; if it was made from points, they are summed up when first asked.

        Set it to a memory, or to a function without arguments that makes one.
        """
        if callable(self._memory):
            self._memory = self._memory()
        return self._memory

    @memory.setter
    def memory(self, memory: Memory | Callable[[], Memory] | None) -> None:
        self._memory = memory

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Posterior":
        """The posterior given these points too; costs only them and equals adapting to all points at once."""
        return self._remembered().update(x, y, mask).posterior()

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Posterior":
        """The posterior as if some of its points had never been seen."""
        return self._remembered().forget(x, y, mask).posterior()

    def to_bytes(self) -> bytes:
        """What it takes to have this posterior again: one to four kilobytes a task, whatever the number of points."""
        return self._remembered().to_bytes()

    def _remembered(self) -> Memory:
        memory = self.memory
        if memory is None:
            raise InputError("this posterior keeps no memory of its context; adapt its model to all points together")
        return memory

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Prediction:
        """The prediction at x: (points, features), or (tasks, points, features) for several tasks.

        ``samples=0`` uses the mean parameters. Otherwise the prediction is a mixture over that many sampled functions,
        drawn from `generator` (a generator or a seed; 0 if absent, so that the same call gives the same answer).
        """
        outputs = self._outputs_at(self._inputs(x), samples, generator).to(self.like)
        with torch.no_grad():
            return self._prediction(*self.likelihood(outputs))

    def marginals(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Prediction:
        """The prediction of single points by the best means there are; its components need not be functions."""
        return self.predict(x, samples, generator)

    def suggest(
        self, candidates: Any, k: int = 1, by: str = "spread", samples: int = SAMPLES, seed: int = 0
    ) -> Int[Tensor, "*task k"]:
        """Indices of the k candidates to ask about next, most wanted first; for several tasks a row for each.

        The first is where sampled functions differ most, or with ``by="std"`` where the whole predictive deviation is
        largest. Each further one is chosen as if the ones before had been observed: a posterior with a memory takes
        them in with the values that it expects there; one without is conditioned as if its functions were Gaussian.

        >>> import nvdp
        >>> posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
        >>> posterior.suggest([-2.0, -0.9, 0.1, 2.0], k=2).shape
        torch.Size([2])
        """
        chosen = suggest(self, self._inputs(candidates), k, by, samples, seed)
        return chosen[0] if self.single else chosen

    def _prediction(self, mean: Tensor, std: Tensor) -> Prediction:
        return Prediction(mean[:, 0], std[:, 0]) if self.single else Prediction(mean, std)
