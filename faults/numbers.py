"""Inputs at the ends of what numbers can be: no loss, gradient or prediction may fail to be finite."""

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from faults.runs import SMALL
from faults.tally import Tally
from nvdp.models.base import MetaModel
from nvdp.models.config import ModelConfig
from nvdp.models.registry import MODELS, build_model
from nvdp.objectives import KLScale
from nvdp.system import avoid_broken_amx
from nvdp.tasks import TaskBatch
from nvdp.training.loop import TrainingStep
from nvdp.training.preset_rules import FOURIER

PRECISIONS = {"float32": torch.float32, "float64": torch.float64, "bfloat16": torch.bfloat16}
MIXED = "bfloat16, mixed"
FINITE = "loss, gradient and prediction finite"
NAMES = [name for name, spec in MODELS.items() if "regression" in spec.tasks]


def _draw(points: int, x_by: float = 1.0, y_by: float = 1.0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(points)
    x, y = (torch.randn(2, points, 1, generator=generator, dtype=torch.float64) for _ in range(2))
    return x_by * x, y_by * y


def _constant(value: float) -> tuple[Tensor, Tensor]:
    x, y = _draw(20)
    return x, torch.full_like(y, value)


MANY = "10,000 points"
INPUTS: dict[str, Callable[[], tuple[Tensor, Tensor]]] = {
    "usual values": lambda: _draw(20),
    "constant y": lambda: _constant(0.0),
    "constant y = 1e6": lambda: _constant(1e6),
    "all x the same": lambda: (torch.zeros(2, 20, 1, dtype=torch.float64), _draw(20)[1]),
    "one point": lambda: _draw(2),  # in the context, and one to predict
    MANY: lambda: _draw(10_000),
    "x of 1e3": lambda: _draw(20, x_by=1e3),
    "x of 1e6": lambda: _draw(20, x_by=1e6),
    "x of 1e-6": lambda: _draw(20, x_by=1e-6),
    "y of 1e6": lambda: _draw(20, y_by=1e6),
    "y of 1e-6": lambda: _draw(20, y_by=1e-6),
    "x and y of 1e6": lambda: _draw(20, x_by=1e6, y_by=1e6),
}


def _untouched(model: MetaModel) -> None:
    pass


def _rates_at(end: float) -> Callable[[MetaModel], None]:
    """Push every logit of a rate far beyond its bound."""

    def push(model: MetaModel) -> None:
        for head in getattr(getattr(model, "rates", None), "heads", ()):
            nn.init.constant_(head.bias, end * 1e4)

    return push


def models() -> Iterator[tuple[str, ModelConfig, Callable[[MetaModel], None]]]:
    """Every regression model, with fixed and learned variance, and those with rates at both of their bounds."""
    for name in NAMES:
        for variance in ("learned", "fixed"):
            yield (
                f"{name}, {variance} variance",
                ModelConfig(name).updated({"likelihood.variance": variance, **SMALL}),
                _untouched,
            )  # type: ignore[arg-type]
        if "nvdp" in name:
            for bounds in ("affine", "clip"):
                for end, where in ((-1.0, "lower"), (1.0, "upper")):
                    config = ModelConfig(name).updated({"rates.bounds": bounds, **SMALL})  # type: ignore[arg-type]
                    yield f"{name}, rates at their {where} bound ({bounds})", config, _rates_at(end)
            normalised = ModelConfig(name).updated({"encoder.task_norm": True, "rates.norm": True, **SMALL})  # type: ignore[arg-type]
            yield f"{name}, normalised", normalised, _untouched
        if MODELS[name].reader is None:
            shipped = ModelConfig(name).updated({"encoder.task_norm": MODELS[name].dropout, **SMALL | FOURIER})  # type: ignore[arg-type]
            yield f"{name}, as shipped for GP functions", shipped, _untouched


def extreme_inputs(precision: str, every: int = 1) -> Tally:
    """Every model with every input in one precision; or every nth of these pairs."""
    avoid_broken_amx()
    tally = Tally(
        f"{precision}: rates at both bounds, constant y, one point, 10,000 points, x and y of 1e±6, x far outside"
    )
    pairs = [(model, inputs) for model in models() for inputs in INPUTS if inputs != MANY]
    # So many points take a while: once for each model is enough, and for one of them in a short version.
    pairs = pairs[::every] + [
        (model, MANY) for model in models() if "learned variance" in model[0] and (every == 1 or "nvdp," in model[0])
    ]
    for (name, config, change), inputs in pairs:
        trouble = _try(config, change, INPUTS[inputs](), precision)
        tally.check(not trouble, FINITE, f"{name}, {inputs}: {trouble}")
    return tally


def _try(
    config: ModelConfig, change: Callable[[MetaModel], None], points: tuple[Tensor, Tensor], precision: str
) -> str:
    dtype = PRECISIONS.get(precision, torch.float32)
    model = build_model(config)
    change(model)
    model = model.to(dtype)
    x, y = (values.to(dtype) for values in points)
    tasks = TaskBatch.first_points_as_context(x, y, max(1, x.shape[1] // 2))
    step = TrainingStep(model, MODELS[config.name].objective, KLScale("elbo", 0.01))
    with torch.autocast("cpu", torch.bfloat16, enabled=precision == MIXED):
        numbers = step(tasks.x, tasks.y, tasks.is_context, tasks.mask, torch.Generator().manual_seed(0))
    (-numbers["bound"]).backward()
    parts = dict(numbers)
    parts |= {f"gradient of {name}": p.grad for name, p in model.named_parameters() if p.grad is not None}
    model.eval()
    for samples in (0, 3):
        with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=precision == MIXED):
            prediction = model.adapt(tasks.context).predict(tasks.x[:, :50], samples)
        parts |= {"mean": prediction.mean, "std": prediction.std, "functions": prediction.functions}
        if not (prediction.stds > 0).all():
            return "a std that is not positive"
    return ", ".join(name for name, value in parts.items() if not torch.isfinite(value).all())
