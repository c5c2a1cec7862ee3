"""Bayesian optimisation with a model that was meta-trained on the family, compared with a GP fitted from scratch.

    python examples/botorch_minimise.py                       # both families, 20 functions each
    python examples/botorch_minimise.py --family branin --seeds 5

Both methods use BoTorch's qLogExpectedImprovement and optimize_acqf, the same two random first points and ten
evaluations in all. Only the model differs: `NVDPModel`, or a SingleTaskGP fitted to the points so far, with its own
priors and standardisation. Regret is the best value found minus the minimum of the function. The families are:

* ``branin``: Branin functions with random coefficients on [−5, 10] × [0, 15]. An NVDPRegressor is meta-trained on 48
  points of each of 1,000 other functions.
* ``gp``: GPs with random RBF kernels on [−2, 2], as in the training of the pretrained model.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from nvdp.data.gp import DOMAIN, LENGTH_SCALES, SIGNAL_SCALES, rbf_kernel
from nvdp.plots.curves import RegretPanel, figure_regret
from nvdp.randomness import derived_generator, derived_seed
from nvdp.system import use_threads, write_text
from nvdp.tables import NVDPRegressor

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # GPyTorch's imports warn of deprecated parts of PyTorch
    from botorch.acquisition.logei import qLogExpectedImprovement
    from botorch.acquisition.objective import LinearMCObjective
    from botorch.fit import fit_gpytorch_mll
    from botorch.models import SingleTaskGP
    from botorch.models.transforms import Normalize
    from botorch.optim import optimize_acqf
    from gpytorch.mlls import ExactMarginalLogLikelihood

    from nvdp.botorch import NVDPModel

FLOAT = torch.float64
FIRST, EVALUATIONS = 2, 10
RESTARTS, RAW, ITERATIONS, FUNCTIONS = 3, 64, 25, 32
TASKS, POINTS = 1_000, 48
BRANIN = {"a": (0.5, 1.5), "b": (0.1, 0.15), "c": (1.0, 2.0), "r": (5.0, 7.0), "s": (8.0, 12.0), "t": (0.03, 0.05)}
Function = Callable[[Tensor], Tensor]  # (point, x) → (point, 1)


@dataclass(frozen=True)
class Family:
    title: str
    bounds: Tensor  # (2, x)
    draw: Callable[[torch.Generator], Function]
    learned: Callable[[argparse.Namespace], Any]  # what NVDPModel takes
    grid: int  # points per axis of the grid search for the minimum


def uniform(generator: torch.Generator, low: float, high: float) -> float:
    return low + (high - low) * torch.rand((), generator=generator, dtype=FLOAT).item()


def branin(generator: torch.Generator) -> Function:
    a, b, c, r, s, t = (uniform(generator, *bounds) for bounds in BRANIN.values())

    def function(x: Tensor) -> Tensor:
        first, second = x[:, 0], x[:, 1]
        bowl = a * (second - b * first**2 + c * first - r) ** 2
        return (bowl + s * (1 - t) * torch.cos(first) + s)[:, None]

    return function


def gp(generator: torch.Generator) -> Function:
    length, signal = (torch.tensor([uniform(generator, *bounds)]) for bounds in (LENGTH_SCALES, SIGNAL_SCALES))
    x = torch.linspace(*DOMAIN, 801, dtype=FLOAT)[None, :, None]
    covariance = rbf_kernel(x, x, length, signal)[0]
    covariance.diagonal().add_(1e-7 * signal.item() ** 2)
    y = torch.linalg.cholesky(covariance) @ torch.randn(801, generator=generator, dtype=FLOAT)
    return lambda at: torch.from_numpy(np.interp(at.numpy(), x[0, :, 0].numpy(), y.numpy()))


def points_in(bounds: Tensor, count: int, generator: torch.Generator) -> Tensor:
    return torch.lerp(*bounds, torch.rand(count, bounds.shape[1], generator=generator, dtype=FLOAT))


def learn_branin(arguments: argparse.Namespace) -> NVDPRegressor:
    generator, family = derived_generator(0, "branin", "training"), FAMILIES["branin"]
    tasks = []
    for _ in range(TASKS):
        function, x = branin(generator), points_in(family.bounds, POINTS, generator)
        tasks.append((x.numpy(), function(x).numpy()))
    return NVDPRegressor("nvdp", steps=arguments.steps).meta_fit(tasks)


FAMILIES = {
    "branin": Family(
        "Branin functions", torch.tensor([[-5.0, 0.0], [10.0, 15.0]], dtype=FLOAT), branin, learn_branin, 400
    ),
    "gp": Family(
        "random GPs",
        torch.tensor([[DOMAIN[0]], [DOMAIN[1]]], dtype=FLOAT),
        gp,
        lambda arguments: NVDPRegressor.from_pretrained(arguments.pretrained),
        4_001,
    ),
}


def minimum(function: Function, family: Family) -> float:
    axes = [torch.linspace(low, high, family.grid, dtype=FLOAT) for low, high in family.bounds.T.tolist()]
    return float(function(torch.cartesian_prod(*axes).reshape(-1, len(axes))).min())


def gp_from_scratch(x: Tensor, y: Tensor, bounds: Tensor) -> SingleTaskGP:
    model = SingleTaskGP(x, y, input_transform=Normalize(x.shape[1], bounds=bounds))
    fit_gpytorch_mll(ExactMarginalLogLikelihood(model.likelihood, model))
    return model


def minimise(function: Function, family: Family, make: Callable[[Tensor, Tensor], Any] | None, seed: int) -> Tensor:
    """The lowest value after each evaluation; random points if no model is given."""
    generator = derived_generator(seed, "points")
    x = points_in(family.bounds, FIRST, generator)
    y = function(x)
    down = LinearMCObjective(torch.tensor([-1.0], dtype=FLOAT))
    while len(x) < EVALUATIONS:
        if make is None:
            new = points_in(family.bounds, 1, generator)
        else:
            torch.manual_seed(derived_seed(seed, "acquisition", len(x)) % 2**31)
            acquisition = qLogExpectedImprovement(make(x, y), best_f=-y.min(), objective=down)
            options = {"maxiter": ITERATIONS}
            new, _ = optimize_acqf(acquisition, family.bounds, 1, RESTARTS, RAW, options=options)
        x, y = torch.cat([x, new]), torch.cat([y, function(new)])
    return torch.cummin(y[:, 0], 0).values


def regrets(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    family, began, seeds = FAMILIES[name], time.process_time(), arguments.seeds
    learned = family.learned(arguments)
    trained = time.process_time() - began
    print(f"{name}: ready after {trained:.0f} seconds", flush=True)
    ways: dict[str, Callable[[Tensor, Tensor], Any] | None] = {
        "NVDP": lambda x, y: NVDPModel(learned, x, y, samples=FUNCTIONS),
        "GP from scratch": lambda x, y: gp_from_scratch(x, y, family.bounds),
        "random points": None,
    }
    found: dict[str, list[list[float]]] = {way: [] for way in ways}
    for seed in range(seeds):
        function = family.draw(derived_generator(seed, name, "function"))
        best = minimum(function, family)
        for way, make in ways.items():
            found[way].append([round(v, 5) for v in (minimise(function, family, make, seed) - best).tolist()])
        print(f"{name} {seed + 1}/{seeds}: " + ", ".join(f"{w} {v[-1][-1]:.3f}" for w, v in found.items()), flush=True)
    return {"title": family.title, "training_seconds": round(trained, 1), "seeds": seeds, "regret": found}


def summary(result: dict[str, Any]) -> dict[str, Any]:
    """Mean and median regret after each evaluation, and on how many functions NVDP beats the GP."""
    regret = {way: np.array(values) for way, values in result["regret"].items()}
    ours, theirs = regret["NVDP"], regret["GP from scratch"]
    return {
        "mean": {way: values.mean(0).round(4).tolist() for way, values in regret.items()},
        "median": {way: np.median(values, 0).round(4).tolist() for way, values in regret.items()},
        "mean_of_chosen_evaluations": {
            way: round(float(values[:, FIRST:].mean()), 4) for way, values in regret.items()
        },
        "functions_won_in_mean": int((ours[:, FIRST:].mean(1) < theirs[:, FIRST:].mean(1)).sum()),
    }


def draw(results: dict[str, Any], out: Path) -> None:
    panels = [
        RegretPanel(value["title"], {way: np.array(rows) for way, rows in value["regret"].items()}, FIRST)
        for value in results.values()
    ]
    for drawn in figure_regret(panels, out / "regret.png"):
        print(f"drew {drawn}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--family", choices=[*FAMILIES, "both"], default="both")
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=2_500, help="steps of meta-training")
    parser.add_argument("--pretrained", default="gp-nvdp", help="model of the family gp: a name, or a run folder")
    parser.add_argument("--out", type=Path, default=Path("results/botorch"))
    arguments = parser.parse_args()
    use_threads()
    warnings.simplefilter("ignore")  # line searches often end early on flat acquisition functions
    names = list(FAMILIES) if arguments.family == "both" else [arguments.family]
    arguments.out.mkdir(parents=True, exist_ok=True)
    path = arguments.out / "regret.json"
    results = json.loads(path.read_text()) if path.exists() else {}
    for name in names:
        result = regrets(name, arguments)
        results[name] = {**result, "summary": summary(result)}
        write_text(path, json.dumps(results, indent=1) + "\n")
        print(name, json.dumps(results[name]["summary"]["mean_of_chosen_evaluations"]))
    draw(results, arguments.out)


if __name__ == "__main__":
    main()
