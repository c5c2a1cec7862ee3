"""Choosing points with `general`: active learning on real data, and Bayesian optimisation beside SingleTaskGP.

    python benchmarks/choose.py      # results/bench/choose.json

Active learning: from 3 random rows of a public set, 17 more are taken where the predictive deviation is largest, or at
random; RMSE and log-likelihood of the other rows. Optimisation: BoTorch's test functions of two or three inputs, scaled
to the unit cube, from 3 Sobol points to 20 evaluations; qLogExpectedImprovement and optimize_acqf for both models.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from botorch.acquisition.logei import qLogExpectedImprovement
from botorch.acquisition.objective import LinearMCObjective
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.optim import optimize_acqf
from botorch.test_functions import Ackley, Branin, Hartmann, Michalewicz, SixHumpCamel
from gpytorch.mlls import ExactMarginalLogLikelihood

import nvdp
from nvdp.bench.real_sets import REAL_SETS
from nvdp.botorch import NVDPModel
from nvdp.system import keep_freed_memory, write_text

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "choose.json"
START, TAKEN, EVALUATIONS, SEEDS = 3, 17, 20, 5
RESTARTS, RAW_SAMPLES, ITERATIONS, FUNCTIONS_DRAWN = 3, 64, 25, 32
FUNCTIONS = {
    "Ackley": Ackley(2),
    "Branin": Branin(),
    "Hartmann3": Hartmann(3),
    "six-hump camel": SixHumpCamel(),
    "Michalewicz": Michalewicz(2),
}


def active(general, data, seed):
    """RMSE and LL after 20 points, chosen or random."""
    x, y = data.read()
    order = np.random.default_rng(seed).permutation(len(x))[:300]
    x, y, unit = x[order], y[order], y.std()
    row = {}
    for way in ("chosen", "random"):
        known = list(range(START))
        while len(known) < START + TAKEN:
            rest = [i for i in range(len(x)) if i not in known]
            if way == "random":
                known.append(rest[0])
                continue
            std = general.adapt(x[known], y[known]).predict(x[rest]).std[:, 0]
            known.append(rest[int(std.argmax())])
        rest = [i for i in range(len(x)) if i not in known]
        prediction, truth = general.adapt(x[known], y[known]).predict(x[rest]), torch.tensor(y[rest])
        row[way] = {
            "RMSE": ((prediction.mean - truth) / unit).square().mean().sqrt().item(),
            "LL": (prediction.log_prob(truth) + np.log(unit)).mean().item(),
        }
    return row


def optimise(general, function, seed):
    """The lowest value after each evaluation less the minimum, in standard deviations of the function's values."""
    low, high = function.bounds
    sobol = torch.quasirandom.SobolEngine(function.dim, scramble=True, seed=seed).draw(1_024).double()
    unit = function(low + (high - low) * sobol).std()
    cube = torch.stack([torch.zeros(function.dim), torch.ones(function.dim)]).double()
    bounded = general.within(cube[0].tolist(), cube[1].tolist())
    models = {
        "general": lambda x, y: NVDPModel(bounded, x, y, samples=FUNCTIONS_DRAWN),
        "SingleTaskGP": fitted_gp,
        "random": None,
    }
    curves = {}
    for way, make in models.items():
        x = sobol[:START]
        while len(x) < EVALUATIONS:
            y = function(low + (high - low) * x)[:, None]
            new = sobol[len(x)][None] if make is None else best_next(make(x, y), y, cube, seed)
            x = torch.cat([x, new])
        values = function(low + (high - low) * x)
        curves[way] = ((values.cummin(0).values - function.optimal_value) / unit).tolist()
    return curves


def fitted_gp(x, y):
    """BoTorch's own model, with its default priors and standardisation."""
    model = SingleTaskGP(x, y)
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def best_next(model, y, cube, seed):
    """The maximum of the expected improvement by BoTorch's optimiser."""
    torch.manual_seed(1_000 * seed + len(y))
    down = LinearMCObjective(torch.tensor([-1.0]).double())
    acquisition = qLogExpectedImprovement(model, best_f=-y.min(), objective=down)
    return optimize_acqf(acquisition, cube, 1, RESTARTS, RAW_SAMPLES, options={"maxiter": ITERATIONS})[0]


def main():
    """Measure and write."""
    torch.set_num_threads(1)
    keep_freed_memory()
    warnings.simplefilter("ignore")
    general = nvdp.load("general")
    sets = [each for each in REAL_SETS if each.part == "develop"]
    rows = {each.name: [active(general, each, seed) for seed in range(SEEDS)] for each in sets}
    result = {"active": rows, "optimisation": {}}
    write_text(RESULT, json.dumps(result, indent=1) + "\n")
    for name, function in FUNCTIONS.items():
        result["optimisation"][name] = [optimise(general, function, seed) for seed in range(SEEDS)]
        write_text(RESULT, json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
