"""What else one could do with a new task: fit a Gaussian process to it, or fine-tune the network.

Every method is a function (x, y, x_target) -> (mean, std) of one task, so that each can be timed and scored alike.
scikit-learn and GPyTorch are optional; they are imported when asked for.
"""

import copy
import warnings
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from nvdp.models.base import MetaModel
from nvdp.randomness import derived_generator
from nvdp.tasks import PointSet

Points = Float[Tensor, "_ _"]  # (points, features)
Gaussian = tuple[Float[Tensor, "_ 1"], Float[Tensor, "_ 1"]]
Method = Callable[[Points, Points, Points], Gaussian]

GPYTORCH_ITERATIONS, GPYTORCH_RATE = 50, 0.1  # as in GPyTorch's regression tutorial
FINE_TUNING_STEPS, FINE_TUNING_RATE = 5, 5e-4  # the learning rate of the paper's training
MODULES = {"sklearn": "scikit-learn", "gpytorch": "gpytorch"}


def missing_peers() -> list[str]:
    """The packages that are not installed, by the names pip knows."""
    return [package for module, package in MODULES.items() if find_spec(module) is None]


def adapted(model: MetaModel) -> Method:
    """Ours: one pass through the model, mean parameters."""

    @torch.no_grad()
    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        prediction = model.adapt(x, y).predict(x_target)
        return prediction.mean, prediction.std

    return predict


def fine_tuned(model: MetaModel) -> Method:
    """The same network after some gradient steps on the context's log-likelihood; each call starts from `model`."""
    start, own = copy.deepcopy(model.state_dict()), copy.deepcopy(model)

    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        own.load_state_dict(start)
        optimizer = torch.optim.Adam(own.parameters(), lr=FINE_TUNING_RATE, fused=True)
        context, noise = PointSet.of(x, y), derived_generator(0, "fine-tuning")
        for _ in range(FINE_TUNING_STEPS):
            optimizer.zero_grad()
            (-own.adapt(context).expected_log_likelihood(context, noise).sum() / y.numel()).backward()
            optimizer.step()
        return adapted(own)(x, y, x_target)

    return predict


def sklearn_gp() -> Method:
    """scikit-learn's exact GP; kernel fitted by its default optimiser (L-BFGS), no restarts."""
    process, kernels = import_module("sklearn.gaussian_process"), import_module("sklearn.gaussian_process.kernels")
    pools = import_module("threadpoolctl")  # comes with scikit-learn

    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        kernel = kernels.ConstantKernel() * kernels.RBF() + kernels.WhiteKernel()
        regressor = process.GaussianProcessRegressor(kernel, n_restarts_optimizer=0)
        with warnings.catch_warnings(), pools.threadpool_limits(torch.get_num_threads()):
            warnings.simplefilter("ignore")  # a parameter near its bound is common with few points
            regressor.fit(x.double().numpy(), y[:, 0].double().numpy())
            mean, std = regressor.predict(x_target.double().numpy(), return_std=True)
        return _column(mean), _column(std)

    return predict


def gpytorch_gp() -> Method:
    """GPyTorch's exact GP; marginal likelihood maximised by Adam as in its tutorial."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its own imports warn of deprecated parts of PyTorch
        gpytorch = import_module("gpytorch")

    class ExactGP(gpytorch.models.ExactGP):  # type: ignore[name-defined]
        def __init__(self, x: Tensor, y: Tensor, likelihood: torch.nn.Module) -> None:
            super().__init__(x, y, likelihood)
            self.mean_module = gpytorch.means.ConstantMean()
            self.covar_module = gpytorch.kernels.ScaleKernel(gpytorch.kernels.RBFKernel())

        def forward(self, x: Tensor) -> object:
            return gpytorch.distributions.MultivariateNormal(self.mean_module(x), self.covar_module(x))

    def predict(x: Points, y: Points, x_target: Points) -> Gaussian:
        likelihood = gpytorch.likelihoods.GaussianLikelihood()
        model = ExactGP(x, y[:, 0], likelihood)
        model.train()
        likelihood.train()
        optimizer = torch.optim.Adam(model.parameters(), lr=GPYTORCH_RATE)
        marginal = gpytorch.mlls.ExactMarginalLogLikelihood(likelihood, model)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for _ in range(GPYTORCH_ITERATIONS):
                optimizer.zero_grad()
                (-marginal(model(x), y[:, 0])).backward()
                optimizer.step()
            model.eval()
            likelihood.eval()
            with torch.no_grad(), gpytorch.settings.fast_pred_var():
                prediction = likelihood(model(x_target))
                return prediction.mean[:, None], prediction.stddev[:, None]

    return predict


def _column(values: np.ndarray) -> Float[Tensor, "point 1"]:
    return torch.as_tensor(values, dtype=torch.float32)[:, None]
