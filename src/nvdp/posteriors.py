"""Posteriors q(φ | D_C) that a model gives for a task, their closed-form KL divergences, and their predictions.

Each is a PyTorch distribution over the task's variable φ (dropped-out weights, a latent vector, or a single point),
joined to the network that φ configures. ``torch.distributions.kl_divergence`` compares two of the same kind and
returns one number per task.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution, Normal, kl_divergence, register_kl

from nvdp.errors import InputError
from nvdp.nn.dropout_linear import DropoutNetwork, LocalNoise, MeanWeights, SampledWeights
from nvdp.nn.engines import FUSED, Engine
from nvdp.nn.likelihoods import GaussianLikelihood, Likelihood
from nvdp.nn.rates import LayerRates
from nvdp.predictions import Prediction
from nvdp.randomness import standard_normal
from nvdp.suggestions import SAMPLES, suggest
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
    """What a posterior was made from, if that can take in more points: see `nvdp.states.TaskState`."""

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


class DropoutPosterior(Posterior):
    """Weights of a shared network under task-specific dropout, eq. 2."""

    def __init__(
        self,
        rates: Sequence[LayerRates],
        network: DropoutNetwork,
        likelihood: GaussianLikelihood,
        x_dim: int,
        representation: Float[Tensor, "task r"] | Features | None = None,
        engine: Engine = FUSED,
        local_noise: bool = True,
    ) -> None:
        super().__init__(rates[0].rows, x_dim, likelihood)
        self.rates, self.network, self.representation = rates, network, representation
        self.engine, self.local_noise = engine, local_noise

    def seen(self, x: Float[Tensor, "task point x"]) -> Float[Tensor, "task *point r"] | None:
        """What the network is shown beside x: r, features of each point, or nothing."""
        return self.representation(x) if callable(self.representation) else self.representation

    @property
    def size(self) -> int:
        """Weights and biases of the network."""
        return sum(k * d + d for k, d in self.network.layer_shapes)

    def mean_rates(self) -> Float[Tensor, "task layer"]:
        """The mean dropout rate of every layer's weights."""
        return torch.stack([layer.mean() for layer in self.rates], dim=-1)

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with the mean weights (1−P)θ."""
        return self.network(x, self.rates, MeanWeights(), self.seen(x))

    def training_outputs(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Outputs by local reparameterisation, or of one draw of the weights where the model asks for that."""
        if not self.local_noise:
            return self.sampled_outputs(x, 1, generator)[0]
        return self.network(x, self.rates, LocalNoise(generator, self.engine.local_noise), self.seen(x))

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs of sampled weights, a bounded number of samples at a time."""
        seen, groups = self.seen(x), sample_groups(samples, self._largest(x))
        ways = [SampledWeights(group, generator) for group in groups]
        return torch.cat([self.network(x, self.rates, way, seen) for way in ways])

    def _largest(self, x: Tensor) -> int:
        """Numbers of the largest array that one sample needs."""
        return max(max(k, x.shape[1]) * d for k, d in self.network.layer_shapes) * len(x)


class Decoder(Protocol):
    """A network of (x, condition), the condition one vector for each task."""

    @property
    def width(self) -> int:
        """Hidden units."""
        ...

    def __call__(self, x: Tensor, condition: Tensor) -> Tensor:
        """Outputs at x under every condition."""
        ...

    def at(self, x: Tensor) -> Callable[[Tensor], Tensor]:
        """The same as a function of the condition, for several in turn; what depends on x alone is done once."""
        ...


class LatentPosterior(Posterior):
    """A Gaussian latent vector z beside a deterministic representation, which may have no entries (the NP family)."""

    def __init__(
        self,
        latent: Normal,
        representation: Float[Tensor, "task r"],
        network: Decoder,
        likelihood: GaussianLikelihood,
        x_dim: int,
    ) -> None:
        super().__init__(latent.loc, x_dim, likelihood)
        self.latent, self.representation, self.network = latent, representation, network

    @property
    def size(self) -> int:
        """Dimension of z."""
        return self.latent.loc.shape[-1]

    def with_known_part_of(self, context: Self) -> Self:
        """z as it is, beside the context's deterministic representation: only z may know of the targets."""
        return type(self)(self.latent, context.representation, self.network, self.likelihood, self.x_dim)

    def mean_outputs(self, x: Tensor) -> Tensor:
        """Outputs with z at its mean."""
        return self.network(x, self._condition(self.latent.loc))

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Outputs for sampled z."""
        loc, scale = self.latent.loc, self.latent.scale
        noise = standard_normal((samples, *loc.shape), loc, generator)
        z = torch.addcmul(loc, scale, noise)
        groups = sample_groups(samples, x.shape[0] * x.shape[1] * self.network.width)
        decode = self.network.at(x)
        return torch.cat([decode(self._condition(group)) for group in z.split(groups)])

    def _condition(self, z: Float[Tensor, "*sample task z"]) -> Float[Tensor, "*sample task condition"]:
        return torch.cat([z, self.representation.expand(*z.shape[:-1], -1)], dim=-1)


class PointPosterior(Posterior):
    """A single function: a deterministic representation, no distribution over φ (the CNP)."""

    def __init__(
        self,
        representation: Float[Tensor, "task r"],
        network: Callable[[Tensor, Tensor], Tensor],
        likelihood: GaussianLikelihood,
        x_dim: int,
    ) -> None:
        super().__init__(representation, x_dim, likelihood)
        self.representation, self.network = representation, network

    @property
    def size(self) -> int:
        """Nothing is random."""
        return 0

    def mean_outputs(self, x: Tensor) -> Tensor:
        """The one function's outputs."""
        return self.network(x, self.representation)

    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """The same outputs for every sample."""
        outputs = self.mean_outputs(x)
        return outputs.expand(samples, *outputs.shape)


@register_kl(DropoutPosterior, DropoutPosterior)
def _kl_dropout(q: DropoutPosterior, p: DropoutPosterior) -> Float[Tensor, " task"]:
    return q.engine.kl(q.rates, p.rates)


@register_kl(LatentPosterior, LatentPosterior)
def _kl_latent(q: LatentPosterior, p: LatentPosterior) -> Float[Tensor, " task"]:
    return kl_divergence(q.latent, p.latent).sum(-1)


@register_kl(PointPosterior, PointPosterior)
def _kl_point(q: PointPosterior, p: PointPosterior) -> Float[Tensor, " task"]:
    return q.representation.new_zeros(q.batch_shape)
