"""The floor of a training step: the matrix products it cannot do without, alone, on buffers that already exist.

How it is counted. A linear layer K → D on R rows costs three products: forward (R×K)(K×D), the gradient of its
weights (K×R)(R×D), and the gradient of its inputs (R×D)(D×K) unless these are data. A conditional-dropout layer has a
mean and a variance, hence two of each, batched over tasks. Encoders see every point once; rate networks and the head
of z see context and whole task as one batch of 2 × tasks rows, all layers' hidden parts in one batched product. Left
out although the step does them by a matrix product too: the means over sets and the gradients of the rate experts,
products with a matrix of one or two rows. Nor is anything counted that is not a product: activations, noise, KL,
optimiser. The floor can therefore not be reached.

Each product has its own operands, laid out in memory as PyTorch has them (transposed where autograd transposes).
"""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from nvdp.bench.cases import Case


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


def floor_step(case: Case) -> Callable[[], None]:
    """All products of the case, one after the other."""
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
