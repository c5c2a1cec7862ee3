"""Suite ``real``: the pretrained general model on public data sets, beside Gaussian processes, a forest and a spline.

A case is a data set, a number of context points and a random choice of them; the other rows are targets, at most
`MOST_TARGETS`. Outputs are counted in standard deviations of the whole set, so that scores of different sets compare.
"""

import math
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np
import torch
from jaxtyping import Float

from nvdp.bench.adapt import gpytorch_gp, sklearn_gp
from nvdp.bench.real_sets import REAL_SETS, RealSet
from nvdp.loading import Predictor, load
from nvdp.posteriors.prediction import Prediction

SIZES, REPEATS, MOST_TARGETS, LEAST_TARGETS = (3, 5, 10, 20, 40, 100, 300, 1_000), 3, 500, 20
GPS, MOST_FOR_GP = ("sklearn", "gpytorch"), 300  # restarts take minutes for more points
QUICK_SETS, QUICK_SIZES = ("motorcycle", "ethanol"), (5, 20)
METRICS = ("LL", "RMSE", "coverage90", "coverage50")
RESTARTS, FOLDS, TREES, QUANTILES = 3, 5, 200, 64
NOTES = {
    "LL": "mean log-likelihood of a target, in standard deviations of the set's outputs; mean over contexts",
    "RMSE": "root mean squared error of the predictive mean, in the same unit; mean over contexts",
    "coverage": "share of targets inside the central 90 % and 50 % interval",
    "ours": "nvdp.load('general'), adapted to the context alone",
    "sklearn": f"exact GP, constant · RBF with a length for each input + white noise; {RESTARTS} restarts",
    "gpytorch": "exact GP, RBF with a length for each input, 50 steps of Adam",
    "forest": f"{TREES} trees; quantiles of the training outputs that share leaves with x",
    "boosting": "histogram gradient boosting, 100 trees, noise by cross-validation",
    "spline": "cubic smoothing spline by generalised cross-validation, noise by cross-validation; sets of one input",
}
Array = np.ndarray
Method = Callable[[Array, Array, Array], Prediction]


@dataclass(frozen=True)
class Case:
    """A context and the targets of one set."""

    x: Float[Array, "context x"]
    y: Float[Array, "context 1"]
    x_target: Float[Array, "target x"]
    y_target: Float[Array, "target 1"]
    unit: float  # the standard deviation of all outputs

    def scores(self, method: Method) -> dict[str, float]:
        """LL, RMSE and coverage of a method's predictions."""
        prediction = method(self.x, self.y, self.x_target)
        y = torch.from_numpy(self.y_target)
        from_middle = (prediction.cdf(y) - 0.5).abs()
        values = (
            prediction.log_prob(y).mean() + math.log(self.unit),
            (prediction.mean - y).square().mean().sqrt() / self.unit,
            (from_middle <= 0.45).double().mean(),
            (from_middle <= 0.25).double().mean(),
        )
        return dict(zip(METRICS, map(float, values), strict=True))


def cases(data: RealSet, size: int, repeats: int = REPEATS) -> Iterator[Case]:
    """Random contexts of that size; none if too few rows are left as targets.

    >>> [len(case.x_target) for case in cases(REAL_SETS[0], 100, repeats=2)]
    [33, 33]
    """
    x, y = data.read()
    if len(x) < size + LEAST_TARGETS:
        return
    for repeat in range(repeats):
        order = np.random.default_rng((repeat, size)).permutation(len(x))
        context, target = order[:size], order[size : size + MOST_TARGETS]
        yield Case(x[context], y[context], x[target], y[target], float(y.std()))


def ours(predictor: Predictor) -> Method:
    """A model, adapted to the context."""
    return lambda x, y, x_target: predictor.adapt(x, y).predict(x_target)


def _standardised(method: Callable[..., Any], dtype: torch.dtype) -> Method:
    """A method on tensors in units of the context."""

    def predict(x: Array, y: Array, x_target: Array) -> Prediction:
        x_centre, x_spread, y_centre, y_spread = x.mean(0), _spread(x), y.mean(), _spread(y)[0]
        inputs = [torch.tensor((part - x_centre) / x_spread, dtype=dtype) for part in (x, x_target)]
        mean, std = method(inputs[0], torch.tensor((y - y_centre) / y_spread, dtype=dtype), inputs[1])
        return Prediction(mean[None], std[None].clamp(min=1e-6)).scaled([y_centre], [y_spread])

    return predict


def _spread(values: Array) -> Array:
    spread = values.std(0)
    return np.where(spread > 0, spread, 1.0)


def forest() -> Method:
    """A random forest whose predictive distribution are the training outputs in the same leaves."""
    ensemble = import_module("sklearn.ensemble")

    def predict(x: Array, y: Array, x_target: Array) -> Prediction:
        leaf = max(1, min(5, len(x) // 4))
        trees = ensemble.RandomForestRegressor(TREES, min_samples_leaf=leaf, random_state=0).fit(x, y[:, 0])
        here, there = trees.apply(x), trees.apply(x_target)  # (point, tree)
        weights = np.zeros((len(x_target), len(x)))
        for tree in range(TREES):
            same = there[:, tree, None] == here[None, :, tree]
            weights += same / same.sum(1, keepdims=True).clip(1)
        order = np.argsort(y[:, 0])
        below = (weights[:, order] / TREES).cumsum(1)
        levels = (np.arange(QUANTILES) + 0.5) / QUANTILES
        index = np.stack([np.argmax(below >= min(level, 1 - 1e-9), 1) for level in levels])  # (quantile, target)
        values = y[order, 0][index]
        effective = TREES**2 / (weights**2).sum(1).clip(1e-9)
        least = 0.05 * _spread(y)[0]
        width = (0.9 * values.std(0) * effective**-0.2).clip(least)  # Silverman's rule
        means = torch.from_numpy(values)[..., None]
        return Prediction(means, torch.from_numpy(width)[None, :, None].expand_as(means), coherent=False)

    return predict


def spline() -> Method:
    """A smoothing spline of one input."""
    interpolate = import_module("scipy.interpolate")

    def curve(x: Array, y: Array) -> Callable[[Array], Array]:
        at, place = np.unique(x[:, 0], return_inverse=True)
        weight = np.bincount(place)
        mean = np.bincount(place, y[:, 0]) / weight
        if len(at) < 5:
            line = np.polyfit(at, mean, min(1, len(at) - 1), w=np.sqrt(weight))
            return lambda new: np.polyval(line, new[:, 0])
        unit = at.std()
        fitted = interpolate.make_smoothing_spline(at / unit, mean, weight.astype(float))
        low, high = at[0] / unit, at[-1] / unit
        slopes = fitted.derivative()

        def value(new: Array) -> Array:
            inside = np.clip(new[:, 0] / unit, low, high)
            return fitted(inside) + slopes(inside) * (new[:, 0] / unit - inside)

        return value

    return _with_noise(curve)


def boosting() -> Method:
    """Gradient boosting of trees."""
    ensemble = import_module("sklearn.ensemble")

    def curve(x: Array, y: Array) -> Callable[[Array], Array]:
        leaf = max(1, min(20, len(x) // 10))
        trees = ensemble.HistGradientBoostingRegressor(max_iter=100, min_samples_leaf=leaf, random_state=0)
        return trees.fit(x, y[:, 0]).predict

    return _with_noise(curve)


def _with_noise(curve: Callable[[Array, Array], Callable[[Array], Array]]) -> Method:
    """A method that fits a curve alone; its noise is the error of cross-validation."""

    def predict(x: Array, y: Array, x_target: Array) -> Prediction:
        folds, left = np.arange(len(x)) % min(FOLDS, len(x)), np.empty(len(x))
        for fold in np.unique(folds):
            out = folds == fold
            left[out] = y[out, 0] - curve(x[~out], y[~out])(x[out])
        std = max(float(np.sqrt((left**2).mean())), 1e-6 * _spread(y)[0])
        mean = torch.from_numpy(curve(x, y)(x_target))[None, :, None]
        return Prediction(mean, torch.full_like(mean, std))

    return predict


def rivals() -> dict[str, Method]:
    """The other methods by name."""
    return {
        "sklearn": _standardised(sklearn_gp(RESTARTS), torch.float64),
        "gpytorch": _standardised(gpytorch_gp(), torch.float64),
        "forest": forest(),
        "boosting": boosting(),
        "spline": spline(),
    }


def real_rows(
    quick: bool = False,
    methods: dict[str, Method] | None = None,
    sets: Sequence[RealSet] = REAL_SETS,
    model: str = "general",
) -> list[dict[str, Any]]:
    """One row for each set and size of context: scores of every method, and the time of ours.

    Args:
        quick: Two sets, two sizes and two contexts of each.
        methods: What to score; by default the model and its rivals.
        sets: The data sets.
        model: The pretrained model, or the folder of a run.
    """
    chosen = [each for each in sets if each.name in QUICK_SETS] if quick else sets
    known = {"ours": ours(load(model)), **rivals()} if methods is None else methods
    sizes, repeats = (QUICK_SIZES, 2) if quick else (SIZES, REPEATS)
    rows = [_row(each, size, repeats, known, model) for each in chosen for size in sizes]
    return [row for row in rows if row is not None]


def _row(data: RealSet, size: int, repeats: int, methods: dict[str, Method], model: str) -> dict[str, Any] | None:
    scores: dict[str, list[dict[str, float]]] = {}
    seconds: dict[str, list[float]] = {}
    inputs = len(data.x)
    for case in cases(data, size, repeats):
        for name, method in methods.items():
            if (name == "spline" and inputs > 1) or (name in GPS and size > MOST_FOR_GP):
                continue
            start = time.process_time()
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # a kernel parameter near its bound, and the like
                scores.setdefault(name, []).append(case.scores(method))
            seconds.setdefault(name, []).append(time.process_time() - start)
    if not scores:
        return None
    about: dict[str, Any] = {
        "model": model,
        "shape": f"{data.name}, {size} points",
        "set": data.name,
        "part": data.part,
    }
    about |= {"inputs": inputs, "context": size, "contexts": repeats, "autograd_ms": None, "floor_ms": None}
    times = {f"{name}_ms": 1e3 * float(np.median(spent)) for name, spent in seconds.items()}
    means = {name: {m: float(np.mean([s[m] for s in each])) for m in METRICS} for name, each in scores.items()}
    return about | times | {"scores": means}


def summary(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Means over the sets of each part, by size of context and method; the median of LL beside its mean.

    Splines are compared on sets of one input alone, so they are left out where sets have more.
    """
    table = []
    for part in ("develop", "final"):
        for size in SIZES:
            chosen = [row["scores"] for row in rows if row["part"] == part and row["context"] == size]
            for method in ("ours", "sklearn", "gpytorch", "forest", "boosting"):
                each = [scores[method] for scores in chosen if method in scores]
                if each:
                    means = {metric: float(np.mean([s[metric] for s in each])) for metric in METRICS}
                    median = float(np.median([s["LL"] for s in each]))
                    table.append(
                        {
                            "part": part,
                            "context": size,
                            "method": method,
                            "sets": len(each),
                            **means,
                            "median_LL": median,
                        }
                    )
    return table
