"""Choosing points with `general`: active learning on real data, and Bayesian optimisation beside SingleTaskGP.

    python benchmarks/choose.py      # results/bench/choose.json

Active learning: from 3 random rows of a public set, 17 more are taken where the predictive deviation is largest, or at
random; RMSE and log-likelihood of the other rows. Optimisation: BoTorch's test functions of two or three inputs on
256 Sobol points of the unit cube, expected improvement in closed form, from 3 to 15 evaluations.
"""

import json
import warnings
from pathlib import Path

import numpy as np
import torch
from botorch.fit import fit_gpytorch_mll
from botorch.models import SingleTaskGP
from botorch.test_functions import Ackley, Branin, Hartmann, Michalewicz, SixHumpCamel
from gpytorch.mlls import ExactMarginalLogLikelihood

import nvdp
from nvdp.bench.real_sets import REAL_SETS
from nvdp.system import keep_freed_memory, write_text

RESULT = Path(__file__).resolve().parents[1] / "results" / "bench" / "choose.json"
START, TAKEN, EVALUATIONS, POINTS, SEEDS = 3, 17, 15, 256, 2
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
    """The best value after each evaluation, less the best of all candidates."""
    sobol = torch.quasirandom.SobolEngine(function.dim, scramble=True, seed=seed).draw(POINTS).double()
    low, high = function.bounds
    values = function(low + (high - low) * sobol)[:, None].double()
    bounded = general.within([0.0] * function.dim, [1.0] * function.dim)
    curves = {}
    for way in ("general", "SingleTaskGP", "random"):
        known = list(range(START))
        while len(known) < EVALUATIONS:
            rest = [i for i in range(POINTS) if i not in known]
            if way == "random":
                known.append(rest[0])
                continue
            if way == "general":
                prediction = bounded.adapt(sobol[known], values[known]).predict(sobol[rest])
                means, stds = prediction.functions[..., 0], prediction.stds[..., 0]
            else:
                model = SingleTaskGP(sobol[known], values[known])
                fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
                with torch.no_grad():
                    answer = model.posterior(sobol[rest])
                means, stds = answer.mean[None, :, 0], answer.variance.sqrt()[None, :, 0]
            z = (values[known].min() - means) / stds
            normal = torch.distributions.Normal(0.0, 1.0)
            gain = (stds * (z * normal.cdf(z) + normal.log_prob(z).exp())).mean(0)
            known.append(rest[int(gain.argmax())])
        best = np.minimum.accumulate(values[known, 0].numpy()) - float(values.min())
        curves[way] = (best / float(values.std())).tolist()
    return curves


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
