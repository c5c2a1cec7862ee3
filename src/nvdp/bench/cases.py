"""A training step as a case to measure: ours, the naive version's, and its floor; and a prediction.

The floor of a step is the matrix products that it cannot do without, alone, on buffers that already exist:

* A linear layer K → D on R rows costs three products: forward (R×K)(K×D), the gradient of its weights (K×R)(R×D), and
  the gradient of its inputs (R×D)(D×K) unless these are data.
* A conditional-dropout layer has a mean and a variance, hence two of each, batched over tasks.
* Encoders see every point once. Rate networks and the head of z see context and whole task as one batch of 2 × tasks
  rows, and the hidden layers of all rate networks are one batched product.
* Not counted, although they are products too: the means over sets and the gradients of the rate experts, whose
  matrices have one or two rows. Activations, noise, KL and optimiser are no products. So the floor cannot be reached.

Each product has its own operands, in PyTorch's memory layout (transposed where autograd transposes).

Models that read the context (attention, convolutions) are measured as they ship, in the preset cpu. Their floor is not
counted by hand: all matrix products and convolutions of one real step are recorded and then repeated alone.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nvdp.bench.naive import NaiveNeuralProcess, NaiveNVDP
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model, model_spec
from nvdp.nn.attention import DistanceAttention, plain_attention
from nvdp.nn.convolution import ConvolutionBlock, plain_block
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch
from nvdp.training.config import RunConfig
from nvdp.training.loop import Trainer, TrainingStep
from nvdp.training.optimizers import build_optimizer
from nvdp.training.presets import preset_config

Step = Callable[[], None]


@dataclass(frozen=True)
class Case:
    """One training step: a model with the paper's architecture but for width and layers, and a batch's shape.

    A model with a reader is taken as it ships, whatever width and layers say.
    """

    model: str = "nvdp"
    shape: str = "gp"
    tasks: int = 16
    points: int = 75  # of each task, context included
    context: int = 50
    x_dim: int = 1
    y_dim: int = 1
    width: int = 128
    layers: int = 4
    representation: int = 128
    encoder_width: int | None = None

    @property
    def config(self) -> ModelConfig:
        """The model."""
        if self.reads:
            return cast(ModelConfig, preset_config("gp", self.model, "cpu").model)
        return ModelConfig(self.model, self.x_dim, self.y_dim).updated(
            {
                "decoder.width": self.width,
                "decoder.layers": self.layers,
                "encoder.size": self.representation,
                "encoder.width": self.encoder_width,
            }
        )

    @property
    def recipe(self) -> RunConfig:
        """Objective, KL scale and learning rate: the paper's, or those that a model with a reader ships with."""
        return preset_config("gp", self.model, "cpu" if self.reads else "tuned")

    @property
    def reads(self) -> bool:
        """Whether the model's targets read the context themselves."""
        return model_spec(self.model).reader is not None

    def batch(self) -> TaskBatch:
        """Random points: their values do not change how long a step takes.

        >>> Case(points=7, context=3).batch().x.shape
        torch.Size([16, 7, 1])
        """
        generator = derived_generator(0, "bench")
        x = torch.rand(self.tasks, self.points, self.x_dim, generator=generator) * 4 - 2
        y = torch.randn(self.tasks, self.points, self.y_dim, generator=generator)
        return TaskBatch.first_points_as_context(x, y, self.context)

    def columns(self) -> dict[str, Any]:
        """The entries that name this case in a row."""
        return asdict(self)


def our_step(case: Case, engine: str = "compiled") -> Step:
    """A step of the training loop; with the engine autograd, attention and convolutions are by autograd too."""
    model, tasks, recipe = build_model(case.config), case.batch(), case.recipe
    for part in model.modules():
        if isinstance(part, DistanceAttention) and engine == "autograd":
            part.compute = plain_attention
        if isinstance(part, ConvolutionBlock) and engine == "autograd":
            part.compute = plain_block
    optimizer = build_optimizer(recipe.optimizer, model.parameters(), recipe.learning_rate, recipe.muon_rows)
    inputs = (tasks.x, tasks.y, tasks.is_context, tasks.mask, derived_generator(0, "bench noise"))
    module = TrainingStep(model, recipe.objective, recipe.kl, engine)
    trainer = Trainer(recipe, model, module, optimizer, lambda step: inputs)

    def step() -> None:
        trainer.take_step()

    return step


def naive_step(case: Case) -> Step:
    """The same with the naive model and an optimiser that updates one parameter after the other.

    For models with a reader, it is the same model without hand-derived gradients.
    """
    if case.reads:
        return our_step(case, "autograd")
    model, tasks, recipe = naive_model(case.config), case.batch(), case.recipe
    optimizer = torch.optim.Adam(model.parameters(), lr=recipe.learning_rate, foreach=False)
    noise = derived_generator(0, "bench noise")

    def step() -> None:
        loss = -model.bound(tasks.x, tasks.y, case.context, recipe.kl, noise)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def naive_model(config: ModelConfig) -> NaiveNVDP | NaiveNeuralProcess:
    """The naive version of a model."""
    return NaiveNVDP(config) if config.name == "nvdp" else NaiveNeuralProcess(config)


def prediction(case: Case) -> Step:
    """Adapt to the contexts of all tasks and predict all their points, as a user does: mean and σ, no samples."""
    model, tasks = build_model(case.config).eval(), case.batch()

    @torch.no_grad()
    def step() -> None:
        model.adapt(tasks.context).predict(tasks.x)

    return step


STEPS: dict[str, Callable[[Case], Step]] = {"ours": our_step, "autograd": naive_step, "predict": prediction}


@dataclass(frozen=True)
class Product:
    """`batch` products (rows × inner)(inner × columns); a flag says that an operand lies transposed in memory."""

    batch: int
    rows: int
    inner: int
    columns: int
    left_transposed: bool = False
    right_transposed: bool = False

    @property
    def flops(self) -> int:
        """Multiplications and additions.

        >>> Product(1, 2, 3, 4).flops
        48
        """
        return 2 * self.batch * self.rows * self.inner * self.columns


def linear(rows: int, k: int, d: int, input_gradient: bool = True) -> list[Product]:
    """The products of ``nn.Linear``, which keeps its weight as D × K."""
    products = [
        Product(1, rows, k, d, right_transposed=True),
        Product(1, d, rows, k, left_transposed=True),
        Product(1, rows, d, k),
    ]
    return products if input_gradient else products[:2]


def batched(batch: int, rows: int, k: int, d: int, input_gradient: bool = True) -> list[Product]:
    """The products of a layer with weights K × D of its own for every entry of the batch."""
    products = [
        Product(batch, rows, k, d),
        Product(batch, k, rows, d, left_transposed=True),
        Product(batch, rows, d, k, right_transposed=True),
    ]
    return products if input_gradient else products[:2]


def training_products(case: Case) -> list[Product]:
    """Every product of one training step, as counted above."""
    config = case.config
    points, sets = case.tasks * case.points, 2 * case.tasks
    r, width, outputs = config.encoder.size, config.decoder.width, 2 * config.y_dim
    encoded = case.tasks * case.context if config.name == "cnp" else points  # a CNP needs no code of the targets
    hidden = config.encoder.width or r
    encoder = linear(encoded, config.x_dim + config.y_dim, hidden, input_gradient=False)
    encoder += linear(encoded, hidden, hidden) * (config.encoder.layers - 2) + linear(encoded, hidden, r)

    if config.name == "nvdp":
        inner = 2 * batched(case.tasks, case.points, width, width) * (config.decoder.layers - 1)
        products = encoder + 2 * batched(case.tasks, case.points, config.x_dim, width, input_gradient=False)
        products += inner + 2 * batched(case.tasks, case.points, width, outputs)
        copies = config.decoder.layers + 1
        products += batched(copies, sets, r, config.rates.width)
        products += batched(copies, sets, config.rates.width, config.rates.width) * (config.rates.layers - 1)
        shapes = [(config.x_dim, width), *[(width, width)] * (config.decoder.layers - 1), (width, outputs)]
        for k, d in shapes:
            products += linear(sets, config.rates.width, k + d + 1)
        return products

    latent, deterministic = config.name != "cnp", "cnp" in config.name
    products = encoder * (latent + deterministic)
    if latent:
        products += linear(sets, r, r) + linear(sets, r, 2 * config.decoder.latent)
    products += linear(case.tasks, r * deterministic + config.decoder.latent * latent, width)
    products += linear(points, config.x_dim, width, input_gradient=False)
    return products + linear(points, width, width) * (config.decoder.layers - 1) + linear(points, width, outputs)


PRODUCTS = {
    getattr(torch.ops.aten, name)
    for name in ("mm", "addmm", "bmm", "baddbmm", "baddbmm_", "convolution", "convolution_backward")
}


class RecordedProducts(TorchDispatchMode):
    """Keeps a copy of the arguments of every matrix product and convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[tuple[Callable[..., Any], Sequence[Any], dict[str, Any]]] = []

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run the operation."""
        if function.overloadpacket in PRODUCTS:
            copies = [part.detach().clone() if isinstance(part, Tensor) else part for part in args]  # keeps the layout
            options = {name: part for name, part in (kwargs or {}).items() if name != "out"}
            self.calls.append((function.overloadpacket, copies, options))
        return function(*args, **(kwargs or {}))


def recorded_floor(case: Case) -> Step:
    """All products and convolutions of one step of the case, repeated on the same operands."""
    once = our_step(case)
    once()  # lazy buffers are made
    with RecordedProducts() as recorded:
        once()

    def step() -> None:
        with torch.no_grad():
            for function, arguments, options in recorded.calls:
                function(*arguments, **options)

    return step


def floor_step(case: Case) -> Step:
    """All products of the case, one after the other."""
    if case.reads:
        return recorded_floor(case)
    calls = [_prepared(product) for product in training_products(case)]

    def step() -> None:
        with torch.no_grad():
            for multiply, left, right, out in calls:
                multiply(left, right, out=out)

    return step


def _prepared(product: Product) -> tuple[Callable[..., Tensor], Tensor, Tensor, Tensor]:
    left = _operand(product.batch, product.rows, product.inner, product.left_transposed)
    right = _operand(product.batch, product.inner, product.columns, product.right_transposed)
    out = torch.zeros(product.batch, product.rows, product.columns)
    if product.batch == 1:
        return torch.mm, left[0], right[0], out[0]
    return torch.bmm, left, right, out


def _operand(batch: int, rows: int, columns: int, transposed: bool) -> Tensor:
    return torch.randn(batch, columns, rows).mT if transposed else torch.randn(batch, rows, columns)
