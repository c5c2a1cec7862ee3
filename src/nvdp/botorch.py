"""A model for BoTorch: Bayesian optimisation with what was learned from other tasks of the same family.

Needs the extra ``nvdp[botorch]``. Samples of the posterior are functions drawn once and kept: each is the same function
in whatever batch of points it is asked, which is what Monte Carlo acquisition functions and their gradients rely on.
A model with the hierarchical GP of a table has a Gaussian posterior instead: the mean and variance of its prediction,
calibrated, and the correlations of the process.
"""

import copy
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Self

import torch

try:
    import botorch  # noqa: F401
except ImportError as error:
    raise ImportError("nvdp.botorch needs BoTorch: pip install 'nvdp[botorch]'") from error
from botorch.acquisition.objective import PosteriorTransform
from botorch.exceptions.errors import UnsupportedError
from botorch.models.model import Model
from botorch.posteriors.gpytorch import GPyTorchPosterior
from botorch.posteriors.posterior import Posterior
from botorch.sampling.base import MCSampler
from botorch.sampling.get_sampler import GetSampler
from botorch.sampling.normal import SobolQMCNormalSampler
from gpytorch.distributions import MultivariateNormal
from jaxtyping import Float
from torch import Tensor
from torch.special import ndtr, ndtri

from nvdp.errors import FarNote, InputError
from nvdp.loading import Predictor
from nvdp.models.base import MetaModel, RegressionModel
from nvdp.nn.likelihoods import GaussianLikelihood
from nvdp.posteriors.prediction import Prediction
from nvdp.randomness import derived_generator
from nvdp.tables.estimator import MetaEstimator
from nvdp.tasks import PointSet

JITTER = 1e-8  # of the mean variance
SAMPLES = 64  # functions; a power of two is covered evenly by quasi-random numbers


class FunctionsPosterior(Posterior):
    """The values of some equally probable functions at the points of a batch.

    A base sample is one standard normal number a sample, which chooses the function: it is shared by all points and
    all batches, so that each sample is one function everywhere.
    """

    def __init__(self, values: Float[Tensor, "function *batch q m"]) -> None:
        self.values = values

    @property
    def device(self) -> torch.device:
        """Of the values."""
        return self.values.device

    @property
    def dtype(self) -> torch.dtype:
        """Of the values."""
        return self.values.dtype

    @property
    def batch_shape(self) -> torch.Size:
        """Of the points."""
        return self.values.shape[1:-2]

    @property
    def mean(self) -> Float[Tensor, "*batch q m"]:
        """Mean over functions."""
        return self.values.mean(0)

    @property
    def variance(self) -> Float[Tensor, "*batch q m"]:
        """Variance over functions."""
        return self.values.var(0, correction=0)

    @property
    def base_sample_shape(self) -> torch.Size:
        """One number, whatever the points; BoTorch wants the batch's axes before it."""
        return torch.Size([*self.batch_shape, 1, 1])

    @property
    def batch_range(self) -> tuple[int, int]:
        """The batch's axes, over which base samples are the same."""
        return (0, -2)

    def _extended_shape(self, sample_shape: torch.Size = torch.Size()) -> torch.Size:  # noqa: B008  (BoTorch's own)
        return sample_shape + self.values.shape[1:]

    def rsample(self, sample_shape: torch.Size | None = None) -> Float[Tensor, "*sample_and_batch q m"]:
        """Functions at random, with gradients in the points."""
        shape = torch.Size([1]) if sample_shape is None else sample_shape
        return self.values[torch.randint(len(self.values), shape, device=self.device)]

    def rsample_from_base_samples(
        self, sample_shape: torch.Size, base_samples: Float[Tensor, "*sample_and_batch 1 1"]
    ) -> Float[Tensor, "*sample_and_batch q m"]:
        """The functions that base samples choose, with gradients in the points."""
        if base_samples.shape != sample_shape + self.base_sample_shape:
            expected = tuple(sample_shape + self.base_sample_shape)
            raise InputError(f"base samples have shape {tuple(base_samples.shape)}; expected {expected}")
        one = base_samples.reshape(*sample_shape, -1)[..., 0]
        index = (ndtr(one.double()) * len(self.values)).long().clamp(max=len(self.values) - 1)
        return self.values[index]


@GetSampler.register(FunctionsPosterior)
def _sampler(posterior: FunctionsPosterior, sample_shape: torch.Size, *, seed: int | None = None) -> MCSampler:
    return SobolQMCNormalSampler(sample_shape, seed=seed)


class NVDPModel(Model):
    """A trained model and the observations of a new task, as BoTorch takes it.

    Args:
        model: A `Predictor`, as `nvdp.load` gives it, an `NVDPRegressor` after `meta_fit`, or a regression model. X and
            Y are in its units. Functions are those of the network, stretched by the calibration of ``nvdp fit``; with a
            process, for one output, see above.
        train_X: Inputs of the observations; there may be none.
        train_Y: Their values.
        samples: How many functions are drawn.
        seed: What they are drawn from.
        lean: A learned σ(x) holds much of what a model does not know of a function. With `lean` each function leans to
            one side by its own share of what σ(x) is above its floor, so that the variance of samples is the predictive
            one; without, they are the posterior's functions alone.

    >>> import nvdp
    >>> x = torch.tensor([[-1.0], [0.0], [1.0]], dtype=torch.float64)
    >>> model = NVDPModel(nvdp.load("gp"), x, x.sin())
    >>> model.posterior(torch.rand(5, 2, 1, dtype=torch.float64)).rsample(torch.Size([16])).shape
    torch.Size([16, 5, 2, 1])
    """

    def __init__(
        self,
        model: Predictor | MetaModel | MetaEstimator,
        train_X: Float[Tensor, "*batch n d"],
        train_Y: Float[Tensor, "*batch_and_n m"],
        *,
        samples: int = SAMPLES,
        seed: int = 0,
        lean: bool = True,
    ) -> None:
        super().__init__()
        if samples < 1:
            raise InputError(f"samples is {samples}; expected at least 1")
        if train_X.shape[:-1] != train_Y.shape[:-1]:
            raise InputError(f"train_X has shape {tuple(train_X.shape)} but train_Y has {tuple(train_Y.shape)}")
        known = Predictor.of(model.predictor if isinstance(model, MetaEstimator) else model)
        if not isinstance(known.model, RegressionModel):
            raise InputError(f"BoTorch needs a model of regression; {known.model.config.name} is a classifier")
        self._process = None if known.adjustment is None else known.adjustment.process
        if self._process is not None and known.model.config.y_dim > 1:
            raise InputError(
                f"a model with a process has one output in BoTorch; this one has {known.model.config.y_dim}: "
                "fit it with --model nvdp"
            )
        self.meta_model = _frozen(known.model)
        self.predictor = replace(known, model=self.meta_model)
        config = self.meta_model.config
        self.train_inputs, self.train_targets = (train_X,), train_Y
        self.samples, self.seed, self.lean = samples, seed, lean
        self._task_shape = train_X.shape[:-2]
        _check_width("x", train_X, self.predictor.widths.x)
        _check_width("y", train_Y, [config.y_dim])
        x, y = (part.reshape(self._task_shape.numel(), *part.shape[-2:]) for part in (train_X, train_Y))
        self._units = self.predictor.units.of_context(x, y)
        if self._process is not None:
            return
        posterior = self.meta_model.adapt(*self._units.points_in(x, y))
        self._functions = posterior.functions(samples, seed)
        points = torch.tensor([x.shape[1]])
        self._factor = 1.0 if known.adjustment is None else float(known.adjustment.factor(points))
        # Where σ does not depend on the point, all of it is noise; elsewhere what lies above the floor is doubt.
        likelihood = posterior.likelihood
        assert isinstance(likelihood, GaussianLikelihood)
        self._noise_floor = likelihood.min_std if likelihood.outputs > config.y_dim else None
        # One number for each function, evenly over the normal distribution, in an order that tells nothing.
        even = ndtri((torch.arange(samples, dtype=torch.float64) + 0.5) / samples)
        self._lean = even[torch.randperm(samples, generator=derived_generator(seed, "lean"))]

    @property
    def num_outputs(self) -> int:
        """Values of an observation."""
        return self.meta_model.config.y_dim

    @property
    def batch_shape(self) -> torch.Size:
        """Of the tasks whose observations it holds."""
        return self._task_shape

    def posterior(
        self,
        X: Float[Tensor, "*batch q d"],
        output_indices: list[int] | None = None,
        observation_noise: bool | Tensor = False,
        posterior_transform: PosteriorTransform | None = None,
        **kwargs: Any,
    ) -> Any:
        """The sampled functions at X; `observation_noise` adds that of the likelihood, drawn once for a shape of X."""
        if isinstance(observation_noise, Tensor):
            raise UnsupportedError("the noise is the model's own; observation_noise may be True or False")
        if self._process is not None:
            gaussian = self._gaussian(self.transform_inputs(X), observation_noise)
            return gaussian if posterior_transform is None else posterior_transform(gaussian)
        values, std = self._values(self.transform_inputs(X))
        if observation_noise:
            noise = torch.randn(values.shape, generator=derived_generator(self.seed, "noise"), dtype=values.dtype)
            values = torch.addcmul(values, std, noise.to(values))
        if output_indices is not None:
            values = values[..., output_indices]
        posterior = FunctionsPosterior(values.to(X))
        return posterior if posterior_transform is None else posterior_transform(posterior)

    def _gaussian(self, X: Tensor, noisy: bool) -> GPyTorchPosterior:
        """Mean and variance of the prediction at X, correlated as the process is given the observations."""
        assert self._process is not None
        batch = torch.broadcast_shapes(X.shape[:-2], self._task_shape)
        _check_width("x", X, [self.train_inputs[0].shape[-1]])
        x, known_x, known_y = (
            part.expand(*batch, *part.shape[-2:]).reshape(-1, *part.shape[-2:]).double()
            for part in (X, self.train_inputs[0], self.train_targets)
        )
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", FarNote)
            posterior = self.predictor.adapt(known_x, known_y)
            prediction = posterior.predict(x)
        points, at = PointSet.of(*self._units.points_in(known_x, known_y)), self._units.x_in(x)
        covariance, noise = self._process.given(points).moments(at)
        total = covariance.diagonal(dim1=-2, dim2=-1)
        scale = (prediction.std[..., 0] / (total + noise).sqrt())[..., :, None]  # of process and calibrated prediction
        covariance = covariance * scale * scale.mT
        more = JITTER * covariance.diagonal(dim1=-2, dim2=-1).detach().mean() + noisy * scale[..., 0].square() * noise
        covariance = covariance + torch.diag_embed(more)
        shape = (*batch, X.shape[-2])
        mean, covariance = prediction.mean[..., 0].reshape(shape), covariance.reshape(*shape, shape[-1])
        return GPyTorchPosterior(MultivariateNormal(mean.to(X), covariance.to(X)))

    def _values(self, X: Tensor) -> tuple[Tensor, Tensor]:
        """Every function at X and the noise of an observation there, (function, *batch, q, m) each."""
        batch = torch.broadcast_shapes(X.shape[:-2], self._task_shape)
        extra, tasks = batch[: len(batch) - len(self._task_shape)], self._task_shape
        if batch[len(extra) :] != tasks:
            raise InputError(f"X has the batch shape {tuple(X.shape[:-2])}; the tasks have {tuple(tasks)}")
        _check_width("x", X, [self.train_inputs[0].shape[-1]])
        x = X.expand(*batch, *X.shape[-2:]).reshape(extra.numel(), tasks.numel(), *X.shape[-2:])
        # Batches of points of one task are points of that task: its functions are the same in all of them.
        x = self._units.x_in(x.transpose(0, 1).flatten(1, 2))
        mean, std = self._functions(x.to(next(self.meta_model.parameters())))
        floor = std if self._noise_floor is None else torch.full_like(std, self._noise_floor)
        if self.lean:
            open_part = (std.square() - floor.square()).clamp(min=torch.finfo(std.dtype).eps).sqrt()
            mean = mean + self._lean.to(mean)[:, None, None, None] * open_part
        centre, noise_std = mean.mean(0), floor if self.lean else std
        stretched = mean if self._factor == 1 else centre + self._factor * (mean - centre)
        scaled = self._units.y_out(Prediction(stretched, self._factor * noise_std))
        last = (X.shape[-2], self.num_outputs)
        split, shape = (tasks.numel(), extra.numel(), *last), (*batch, *last)
        values, noise = (
            part.reshape(self.samples, *split).transpose(1, 2).reshape(self.samples, *shape)
            for part in (scaled.functions, scaled.stds)
        )
        return values, noise

    def condition_on_observations(self, X: Tensor, Y: Tensor, **kwargs: Any) -> Self:
        """The model with more observations; a batch of them makes a batch of models."""
        (old_x,), old_y = self.train_inputs, self.train_targets
        batch = torch.broadcast_shapes(old_x.shape[:-2], X.shape[:-2], Y.shape[:-2])
        x, y = (
            torch.cat([part.expand(*batch, *part.shape[-2:]) for part in pair], dim=-2)
            for pair in ((old_x, X.to(old_x)), (old_y, Y.to(old_y)))
        )
        return type(self)(self.predictor, x, y, samples=self.samples, seed=self.seed, lean=self.lean)


def _check_width(name: str, values: Tensor, widths: Sequence[int]) -> None:
    if values.shape[-1] not in widths:
        expected = f"{widths[0]}" if len(widths) == 1 else f"{widths[0]} to {widths[-1]}"
        raise InputError(f"{name} has shape {tuple(values.shape)}; expected {expected} values in the last axis")


def _frozen(model: MetaModel) -> MetaModel:
    """A copy in float64, in which line searches see gradients that fit, and whose weights take none."""
    if all(p.dtype == torch.float64 and not p.requires_grad for p in model.parameters()) and not model.training:
        return model
    return copy.deepcopy(model).double().eval().requires_grad_(False)
