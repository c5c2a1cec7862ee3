"""Posteriors q(φ | D_C): what a model knows of a task after its context, and how it answers questions.

Each is a PyTorch distribution over the task's variable φ (dropped-out weights, a latent vector, or a single point),
joined to the network that φ configures and to the likelihood p(y | x, φ). Regression and classification differ in the
likelihood alone. ``torch.distributions.kl_divergence`` compares two of the same kind: one number per task.
"""

import copy
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, Self, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.distributions import Distribution
from typing_extensions import TypeVar

from nvdp.errors import FarNote, InputError
from nvdp.nn.likelihoods import Likelihood
from nvdp.nn.rates import LayerRates
from nvdp.posteriors.prediction import ClassPrediction, Prediction, mixture_log_prob, prediction_of
from nvdp.posteriors.suggestions import SAMPLES, suggest
from nvdp.tasks import PointSet, as_tensor, check_finite

Features = Callable[[Tensor], Tensor]  # of points, each seen from a context
NUMBERS_AT_ONCE = 2**22  # in the largest array while many functions are sampled: bounds memory, stays near the cache
FIXED_SAMPLES = 64  # functions behind a prediction where there is no closed form
_RENAMED = {"_without_sampling": "closed_form", "with_known_part_of": "with_deterministic_path_of"}

Answer = TypeVar("Answer", bound=Prediction | ClassPrediction, default=Prediction)


def groups_of(count: int, numbers: int) -> list[int]:
    """Sizes of groups of samples or tasks whose largest array, `numbers` for each, stays within `NUMBERS_AT_ONCE`.

    >>> groups_of(5, NUMBERS_AT_ONCE // 2)
    [2, 2, 1]
    """
    if torch.compiler.is_exporting():
        return [count]  # the size of a graph's arrays is not known
    at_once = max(1, NUMBERS_AT_ONCE // max(1, numbers))
    return [min(at_once, count - start) for start in range(0, count, at_once)]


def _unchanged(x: Tensor) -> Tensor:
    return x


class TrainingRange(Protocol):
    """The range of inputs that a model was trained on: `nvdp.units.Units`."""

    def far(self, x: Any) -> str | None:
        """A note if x is far outside the training range, else None."""
        ...


@runtime_checkable
class Memory(Protocol):
    """Sufficient statistics of a context (sums over its points), to which points can be added: `TaskState`."""

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Memory":
        """With more points."""
        ...

    def forget(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Memory":
        """Without some of its points."""
        ...

    def posterior(self) -> "Posterior":
        """The posterior that these sums give."""
        ...

    def to_bytes(self) -> bytes:
        """The sums as bytes."""
        ...


class Posterior(Distribution, ABC, Generic[Answer]):
    """What is known about a task after its context: predicts, is sampled, scores data.

    Attributes:
        likelihood: p(y | x, φ); it decides whether predictions are Gaussian mixtures or class probabilities.
        rates: The dropout rates of every layer, if φ is dropped-out weights.
        single: Whether this is one task given without a task axis; its predictions have none either.
        embed: Applied to inputs before the network: a feature extractor, or nothing.
        like: A tensor whose precision and device inputs are taken to.
    """

    arg_constraints: dict[str, Any] = {}  # noqa: RUF012  (the base class declares it this way)
    embed: Callable[[Tensor], Tensor] = staticmethod(_unchanged)
    rates: Sequence[LayerRates] | None = None
    known: TrainingRange | None = None  # a query outside gives a note
    _memory: Memory | Callable[[], Memory] | None = None

    def __init__(self, like: Float[Tensor, "task _"], x_dim: int, likelihood: Likelihood) -> None:
        super().__init__(torch.Size([len(like)]), validate_args=False)
        self.like, self.x_dim, self.likelihood, self.single = like, x_dim, likelihood, False

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        for old, new in _RENAMED.items():
            if old in vars(cls):  # it would not be called
                raise TypeError(f"{cls.__name__} has a method {old}; the name is {new} now")

    if not TYPE_CHECKING:  # which would take any name for an attribute

        def __getattr__(self, name: str) -> object:
            if name in _RENAMED:
                raise AttributeError(f"{type(self).__name__} has no {name}; the name is {_RENAMED[name]} now")
            return super().__getattribute__(name)  # raises again, with the cause if a property has failed

    @property
    @abstractmethod
    def size(self) -> int:
        """How many random numbers φ holds for one task."""

    def mean_rates(self) -> Float[Tensor, "task layer"] | None:
        """The mean dropout rate of every layer's weights, if there are any."""
        return None

    def with_deterministic_path_of(self, context: Self) -> Self:
        """The same q(φ), with the deterministic path of the context's posterior."""
        return self

    @abstractmethod
    def mean_outputs(self, x: Tensor) -> Tensor:
        """Network outputs (task, point, output) with φ at its mean."""

    @abstractmethod
    def sampled_outputs(self, x: Tensor, samples: int, generator: torch.Generator | None) -> Tensor:
        """Network outputs (sample, task, point, output), one φ per sample and task shared by all points."""

    def training_outputs(self, x: Tensor, generator: torch.Generator | None) -> Tensor:
        """Outputs (task, point, output) under noise, differentiable in the model's parameters."""
        return self.sampled_outputs(x, 1, generator).squeeze(0)

    def expected_log_likelihood(
        self, points: PointSet, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """A one-sample estimate of E_q[Σ_i log p(y_i | x_i, φ)] for each task."""
        outputs = self.training_outputs(self.embed(points.x), generator)
        return (self.likelihood.log_prob(outputs, points.y) * points.mask).sum(-1)

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Answer:
        """The prediction at x.

        Args:
            x: Inputs (points, features), or (tasks, points, features) for several tasks.
            samples: 0 for the best prediction there is without sampling: all uncertainty of φ is inside, in closed
                form where there is one. Otherwise the number of coherent functions to draw.
            generator: Where samples are drawn from: a generator or a seed; by default the seed 0.

        Returns:
            A mixture: of ``samples`` functions, or of whatever components the closed form has.

        >>> import nvdp
        >>> posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
        >>> ours, sampled = posterior.predict([0.5]), posterior.predict([0.5], samples=1_000)
        >>> abs(ours.mean - sampled.mean).item() < 0.06, abs(ours.std / sampled.std - 1).item() < 0.06
        (True, True)
        """
        at = self._points(x)
        self._tell_far(x)
        if samples == 0:
            with torch.no_grad():
                return self.closed_form(at)
        generator = self._generator(at, samples, generator)
        with torch.no_grad():
            return self._prediction(self.sampled_outputs(at, samples, generator))

    def at_mean_parameters(self, x: Any) -> Answer:
        """The prediction at x with φ at its mean: the paper's score, without the uncertainty of φ.

        Args:
            x: Inputs (points, features), or (tasks, points, features) for several tasks.

        Returns:
            A prediction of one component.
        """
        with torch.no_grad():
            coherent = self.likelihood.components == 1
            return self._prediction(self.mean_outputs(self._points(x))[None], coherent)

    def components(self, x: Any, samples: int, generator: torch.Generator | int | None = None) -> Answer:
        """Mixture components of single points; they need not be coherent functions.

        The marginal at each point is that of sampled functions; the estimate has less variance, or is cheaper.
        `Prediction.coherent` says whether the components are functions.

        Args:
            x: Inputs (points, features), or (tasks, points, features) for several tasks.
            samples: The number of components.
            generator: A generator or a seed; by default the seed 0.
        """
        if self.likelihood.components == 1:
            return self.predict(x, samples, generator)
        with torch.no_grad():
            at = self._points(x)
            generator = self._generator(at, samples, generator)
            return self._prediction(self.sampled_outputs(at, samples, generator), coherent=False)

    @torch.no_grad()
    def joint_log_prob(
        self, points: PointSet, samples: int, generator: torch.Generator | None = None
    ) -> Float[Tensor, " task"]:
        """log 1/L Σ_l Π_i p(y_i | x_i, φ_l): the density of all outputs of a task together, under L sampled functions.

        Args:
            points: Where outputs were observed, with a task axis.
            samples: L; a density of many points needs many.
            generator: Of the samples.

        Returns:
            One number for each task, in nats and not divided by the number of points.
        """
        outputs = self.sampled_outputs(self.embed(points.x), samples, generator)
        y = points.y.expand(len(outputs), *points.y.shape)
        return mixture_log_prob((self.likelihood.log_prob(outputs, y) * points.mask).sum(-1))

    def joint_closed_form(self, points: PointSet) -> Float[Tensor, " task"] | None:
        """The density of all outputs of a task together as one formula; None if the posterior has none."""
        return None

    def functions(self, samples: int, seed: int = 0) -> Callable[[Tensor], Any]:
        """Sampled functions that stay the same wherever, and however often, they are evaluated.

        Args:
            samples: How many.
            seed: Of the draw.

        Returns:
            A differentiable function of x (task, point, x). For regression it gives the value of every function
            (sample, task, point, y) and the standard deviation of an observation there.

        >>> import nvdp
        >>> functions = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1]).functions(samples=8)
        >>> both, one = functions(torch.tensor([[[0.5], [0.7]]]))[0], functions(torch.tensor([[[0.7]]]))[0]
        >>> both.shape, torch.allclose(both[:, :, 1:], one, atol=1e-6)
        (torch.Size([8, 1, 2, 1]), True)
        """
        outputs = self._kept_outputs(samples, seed)
        return lambda x: self.likelihood(outputs(self.embed(x)))

    def _kept_outputs(self, samples: int, seed: int) -> Callable[[Tensor], Tensor]:
        """Outputs of functions that stay the same; by default φ is drawn again, from the same seed, whatever x is."""
        generator = torch.Generator(device=self.like.device)
        return lambda x: self.sampled_outputs(x, samples, generator.manual_seed(seed))

    def suggest(
        self, candidates: Any, k: int = 1, by: str = "spread", samples: int = SAMPLES, seed: int = 0
    ) -> Int[Tensor, "*task k"]:
        """Which candidates to observe next.

        The first is where sampled functions differ most, or with ``by="std"`` where the whole predictive standard
        deviation is largest. Each further one is chosen as if the ones before had been observed: a posterior with a
        memory takes them in with the values that it expects there; one without is conditioned as if its functions
        were Gaussian.

        Args:
            candidates: Inputs (points, features), or (tasks, points, features) for several tasks.
            k: How many to choose.
            by: "spread" or "std".
            samples: Functions behind a spread.
            seed: Of those functions.

        Returns:
            Indices of k candidates, most wanted first; for several tasks a row for each.

        >>> import nvdp
        >>> posterior = nvdp.load("gp").adapt([-1.0, 0.0, 1.0], [0.3, 0.9, 0.1])
        >>> posterior.suggest([-2.0, -0.9, 0.1, 2.0], k=2).shape
        torch.Size([2])
        """
        chosen = suggest(self, self._inputs(candidates), k, by, samples, seed)
        return chosen[0] if self.single else chosen

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """A copy that shares its tensors: no method of a posterior changes them, and gradients cannot be copied."""
        return copy.copy(self)

    @property
    def memory(self) -> Memory | None:
        """The sums that this posterior goes on learning from; made from its points when first asked for.

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
        """The posterior as bytes, for ``posterior_from_bytes``: 1 to 4 kB a task, whatever the number of points."""
        return self._remembered().to_bytes()

    def _remembered(self) -> Memory:
        memory = self.memory
        if memory is None:
            raise InputError("this posterior keeps no memory of its context; adapt its model to all points together")
        return memory

    def closed_form(self, x: Float[Tensor, "task point x"]) -> Answer:
        """The best prediction without sampling, of checked inputs.

        Args:
            x: Inputs with a task axis, as `embed` gives them.

        Returns:
            A closed form; here, for a posterior without one, a mixture of `FIXED_SAMPLES` functions of a fixed seed.
        """
        generator = torch.Generator(device=x.device).manual_seed(0)
        coherent = self.likelihood.components == 1
        return self._prediction(self.sampled_outputs(x, FIXED_SAMPLES, generator), coherent)

    def _prediction(self, outputs: Float[Tensor, "component task point output"], coherent: bool = True) -> Answer:
        """The answer that network outputs stand for."""
        answer: Any = prediction_of(self.likelihood, self._shown(outputs).to(self.like), coherent)
        return answer

    def _shown(self, values: Float[Tensor, "component task point _"]) -> Tensor:
        return values[:, 0] if self.single else values

    @staticmethod
    def _generator(x: Tensor, samples: int, generator: torch.Generator | int | None) -> torch.Generator:
        if samples < 0 or samples != int(samples):
            raise InputError(f"samples is {samples}; expected a whole number of at least 0")
        if isinstance(generator, torch.Generator):
            return generator
        return torch.Generator(device=x.device).manual_seed(generator or 0)

    def _tell_far(self, x: Any) -> None:
        note = None if self.known is None else self.known.far(x)
        if note is not None:
            warnings.warn(note, FarNote, stacklevel=3)

    def _points(self, x: Any) -> Tensor:
        with torch.no_grad():
            return self.embed(self._inputs(x))

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
