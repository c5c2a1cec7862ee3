"""The fused and low-rank layers against the plain ones; gradients against autograd and finite differences."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.distributions import kl_divergence
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.loading import load
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn import fused
from nvdp.nn.dropout import DropoutLinear, LocalNoise
from nvdp.nn.fused import AUTOGRAD, FUSED
from nvdp.nn.rates import LayerRates, RateBounds, dropout_kl
from nvdp.objectives import KLScale, variational_prior_bound
from nvdp.randomness import tabled_normal
from nvdp.tasks import TaskBatch

FLOOR = 0.01
TASKS, POINTS, K, D = 3, 5, 7, 4
# Typed loosely: arguments are unpacked from lists below.
fused_local_noise: Callable[..., Tensor] = fused.fused_local_noise
low_rank_local_noise: Callable[..., Tensor] = fused.low_rank_local_noise
PATHS = [fused_local_noise, low_rank_local_noise]
DTYPES = [(torch.float32, 1e-5, 1e-4), (torch.float64, 1e-10, 1e-9)]  # values, gradients


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def experts(dtype: torch.dtype, tasks: int = TASKS, k: int = K, d: int = D) -> list[Tensor]:
    # Views of one tensor, as the rate network gives them.
    parts = torch.sigmoid(2 * torch.randn(tasks, k + d + 1, dtype=dtype)).split([k, d, 1], dim=-1)
    return [part.detach().requires_grad_() for part in parts]


def layer_rates(vectors: list[Tensor], floor: float = FLOOR) -> LayerRates:
    return LayerRates(vectors[0], vectors[1], vectors[2], RateBounds("affine", floor))


def layer_and_inputs(dtype: torch.dtype, points: int = POINTS, d: int = D) -> tuple[DropoutLinear, Tensor]:
    inputs = torch.relu(torch.randn(TASKS, points, K, dtype=dtype))  # with exact zeros, as after an activation
    inputs[0, 0] = 0
    return DropoutLinear(K, d).to(dtype), inputs.requires_grad_()


def fused_kl(*vectors_and_floor: Any) -> Tensor:
    """The KL of one layer by its experts: rows, columns and layer of q, then of p."""
    *vectors, floor = vectors_and_floor
    shapes = [(vectors[0].shape[-1], vectors[1].shape[-1])]
    return fused.fused_kl(torch.cat(vectors[:3], -1), torch.cat(vectors[3:], -1), shapes, floor)


def plain_kl(q: list[Tensor], p: list[Tensor], floor: float = FLOOR) -> Tensor:
    q_rates, p_rates = layer_rates(q, floor), layer_rates(p, floor)
    weights = dropout_kl(q_rates.weight(), p_rates.weight()).sum((-2, -1))
    return weights + dropout_kl(q_rates.bias(), p_rates.bias()).sum(-1)


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...], tolerance: float) -> None:
    """Equal up to a tolerance relative to the largest entry of each tensor."""
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape
        assert (a - e).abs().max() <= tolerance * e.abs().max()


class LargestTensor(TorchDispatchMode):
    """Records how many numbers the largest storage behind any operation's output holds."""

    def __init__(self) -> None:
        super().__init__()
        self.numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out


@pytest.mark.parametrize(("points", "d"), [(POINTS, 1), (POINTS, D), (POINTS, 12), (1, 1), (1, D), (1, 12)])
@pytest.mark.parametrize("floor", [FLOOR, 0.2])
@pytest.mark.parametrize(("dtype", "value_tolerance", "gradient_tolerance"), DTYPES)
@pytest.mark.parametrize("path", PATHS)
def test_values_and_gradients_are_those_of_local_noise(
    path: Callable[..., Tensor],
    dtype: torch.dtype,
    value_tolerance: float,
    gradient_tolerance: float,
    floor: float,
    points: int,
    d: int,
) -> None:
    layer, inputs = layer_and_inputs(dtype, points, d)
    vectors = experts(dtype, d=d)
    noise = tabled_normal((TASKS, points, d), inputs, torch.Generator().manual_seed(1))
    way = LocalNoise(torch.Generator().manual_seed(1))
    leaves = (inputs, layer.weight, layer.bias, *vectors)

    expected = way(layer, inputs, layer_rates(vectors, floor))
    actual = path(*leaves, noise, floor)
    cotangent = torch.randn_like(expected)

    assert_same((actual,), (expected,), value_tolerance)
    expected_gradients = torch.autograd.grad(expected, leaves, cotangent)
    assert_same(torch.autograd.grad(actual, leaves, cotangent), expected_gradients, gradient_tolerance)


@pytest.mark.parametrize("path", PATHS)
def test_gradients_are_finite_differences(path: Callable[..., Tensor]) -> None:
    layer, _ = layer_and_inputs(torch.float64)
    # Away from zero inputs and weights, where the standard deviation has a kink.
    inputs = (torch.rand(TASKS, POINTS, K, dtype=torch.float64) + 0.5).requires_grad_()
    noise = torch.randn(TASKS, POINTS, D, dtype=torch.float64)
    leaves = (inputs, layer.weight, layer.bias, *experts(torch.float64))
    assert torch.autograd.gradcheck(lambda *tensors: path(*tensors, noise, FLOOR), leaves)


def test_constant_inputs_get_no_gradient_and_change_no_other() -> None:
    layer, inputs = layer_and_inputs(torch.float64)
    leaves = (layer.weight, layer.bias, *experts(torch.float64))
    noise = torch.randn(TASKS, POINTS, D, dtype=torch.float64)
    # An expanded output gradient, as a sum gives it.
    with_inputs = torch.autograd.grad(fused_local_noise(inputs, *leaves, noise, FLOOR).sum(), leaves)
    without = torch.autograd.grad(fused_local_noise(inputs.detach(), *leaves, noise, FLOOR).sum(), leaves)
    assert all(torch.equal(a, b) for a, b in zip(with_inputs, without, strict=True))


def test_arguments_and_output_gradient_are_left_as_they_were() -> None:
    layer, inputs = layer_and_inputs(torch.float32)
    noise, cotangent = torch.randn(TASKS, POINTS, D), torch.randn(TASKS, POINTS, D)
    leaves = (inputs, layer.weight, layer.bias, *experts(torch.float32))
    before = [tensor.detach().clone() for tensor in (*leaves, noise, cotangent)]
    torch.autograd.grad(fused_local_noise(*leaves, noise, FLOOR), leaves, cotangent)
    assert all(torch.equal(a, b) for a, b in zip((*leaves, noise, cotangent), before, strict=True))


def test_low_rank_path_holds_no_grid_per_task() -> None:
    tasks, points, width = 4, 8, 1024
    layer, vectors = DropoutLinear(width, width), experts(torch.float32, tasks, width, width)
    inputs, noise = torch.randn(tasks, points, width, requires_grad=True), torch.randn(tasks, points, width)
    leaves = (inputs, layer.weight, layer.bias, *vectors)
    largest = {}
    for path in PATHS:
        with LargestTensor() as record:
            torch.autograd.grad(path(*leaves, noise, FLOOR).square().sum(), leaves)
        largest[path] = record.numbers
    assert largest[low_rank_local_noise] <= width * width < tasks * width * width
    assert largest[fused_local_noise] == tasks * width * width  # the record does see such arrays


@pytest.mark.parametrize("floor", [FLOOR, 0.2])
@pytest.mark.parametrize(("dtype", "value_tolerance", "gradient_tolerance"), DTYPES)
def test_kl_is_the_sum_over_weights_and_biases(
    dtype: torch.dtype, value_tolerance: float, gradient_tolerance: float, floor: float
) -> None:
    q, p = experts(dtype), experts(dtype)
    actual, expected = fused_kl(*q, *p, floor), plain_kl(q, p, floor)
    cotangent = torch.randn_like(expected)
    torch.testing.assert_close(actual, expected, rtol=value_tolerance, atol=0)
    expected_gradients = torch.autograd.grad(expected, (*q, *p), cotangent)
    assert_same(torch.autograd.grad(actual, (*q, *p), cotangent), expected_gradients, gradient_tolerance)


def test_gradients_keep_their_digits_between_close_posteriors_and_the_value_is_good_to_1e_7_a_weight() -> None:
    q = experts(torch.float64)
    p = [(vector.detach() * (1 - 1e-3 * torch.rand_like(vector))).requires_grad_() for vector in q]
    q32, p32 = ([vector.detach().float().requires_grad_() for vector in side] for side in (q, p))
    # The same numbers in both precisions: rounding the experts themselves is no fault of the formula.
    q64, p64 = ([vector.detach().double().requires_grad_() for vector in side] for side in (q32, p32))
    low, high = fused_kl(*q32, *p32, FLOOR), plain_kl(q64, p64)
    weights = q32[1].shape[1] * (q32[0].shape[1] + 1)
    torch.testing.assert_close(low.double(), high, rtol=1e-3, atol=1e-7 * weights)
    gradients = torch.autograd.grad(low.sum(), (*q32, *p32))
    assert_same(gradients, torch.autograd.grad(high.sum(), (*q64, *p64)), 1e-3)


def test_kl_gradients_are_finite_differences() -> None:
    q, p = experts(torch.float64), experts(torch.float64)
    assert torch.autograd.gradcheck(lambda *vectors: fused_kl(*vectors, FLOOR), (*q, *p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_kl_of_equal_posteriors_and_its_gradient_are_exactly_zero(dtype: torch.dtype) -> None:
    q = experts(dtype, k=33, d=19)
    p = [vector.detach().clone().requires_grad_() for vector in q]
    kl = fused_kl(*q, *p, FLOOR)
    assert torch.equal(kl, torch.zeros(TASKS, dtype=dtype))
    assert all(not gradient.any() for gradient in torch.autograd.grad(kl.sum(), (*q, *p)))


@pytest.mark.parametrize("numbers", [1, TASKS * D * 3, 2**20])
def test_kl_does_not_depend_on_the_chunks(monkeypatch: pytest.MonkeyPatch, numbers: int) -> None:
    q, p = experts(torch.float64), experts(torch.float64)
    expected = fused_kl(*q, *p, FLOOR)
    monkeypatch.setattr(fused, "KL_CHUNK", numbers)
    actual = fused_kl(*q, *p, FLOOR)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    expected_gradients = torch.autograd.grad(expected.sum(), (*q, *p))
    assert_same(torch.autograd.grad(actual.sum(), (*q, *p)), expected_gradients, 1e-12)


def test_kl_of_a_wide_layer_holds_one_chunk_at_a_time() -> None:
    q, p = experts(torch.float32, 4, 512, 1024), experts(torch.float32, 4, 512, 1024)
    with LargestTensor() as record:
        fused_kl(*q, *p, FLOOR).sum().backward()
    assert record.numbers <= fused.KL_CHUNK


def test_kl_without_gradients_skips_their_work(monkeypatch: pytest.MonkeyPatch) -> None:
    q, p = experts(torch.float32), experts(torch.float32)
    expected = fused_kl(*q, *p, FLOOR)
    monkeypatch.setattr(fused, "_times_experts", None)
    with torch.no_grad():
        under_no_grad = fused_kl(*q, *p, FLOOR)
    of_constants = fused_kl(*(vector.detach() for vector in (*q, *p)), FLOOR)
    for actual in (under_no_grad, of_constants):
        assert not actual.requires_grad
        assert torch.equal(actual, expected)


@pytest.mark.parametrize("floor", [1e-5, 1e-3, 0.2])
def test_kl_holds_for_any_floor(floor: float) -> None:
    ones = [torch.full((TASKS, n), 0.999) for n in (15, 16, 1)]
    low = [torch.full((TASKS, n), 1e-3) for n in (15, 16, 1)]
    for q, p in ((ones, low), (low, ones)):
        torch.testing.assert_close(fused_kl(*q, *p, floor), plain_kl(q, p, floor), rtol=1e-4, atol=0)


def bound_and_gradients(model, engine, dtype):
    model.engine = engine
    model.zero_grad()
    tasks = GPTasks().training_batch(0, 0, 3).to(dtype)
    bound = variational_prior_bound(model, tasks, KLScale("elbo", 0.1), torch.Generator().manual_seed(1))
    bound.value.backward()
    return bound.value.item(), [parameter.grad.clone() for parameter in model.parameters()]


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 1e-4), (torch.float64, 1e-9)])
@pytest.mark.parametrize("bounds", ["affine", "clip"])
@pytest.mark.parametrize("limit", [2**24, 1])  # 1: the low-rank way for every layer
def test_engines_agree_on_the_bound_and_its_gradients(monkeypatch, dtype, tolerance, bounds, limit):
    monkeypatch.setattr("nvdp.nn.fused.GRID_LIMIT", limit)
    model = build_model(ModelConfig("nvdp").updated({"decoder.width": 16, "rates.bounds": bounds})).to(dtype)
    value, gradients = bound_and_gradients(model, AUTOGRAD, dtype)
    fused_value, fused_gradients = bound_and_gradients(model, FUSED, dtype)
    assert fused_value == pytest.approx(value, rel=tolerance)
    for plain, ours in zip(gradients, fused_gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=tolerance, atol=tolerance * float(plain.abs().max()))


@pytest.mark.parametrize("points", [1, 6])
@pytest.mark.parametrize("width", [1, 8])
@pytest.mark.parametrize("activation", ["relu", "leaky_relu", "silu"])
def test_engines_agree_for_narrow_networks_and_single_points(points, width, activation):
    model = build_model(
        ModelConfig("nvdp").updated(
            {"decoder.width": width, "decoder.layers": 2, "rates.width": 8, "decoder.activation": activation}
        )
    ).double()
    generator = torch.Generator().manual_seed(2)
    x, y = torch.randn(2, 3, points, 1, generator=generator, dtype=torch.float64)
    tasks, bounds = TaskBatch.first_points_as_context(x, y, 1), []
    for engine in (AUTOGRAD, FUSED):
        model.engine = engine
        model.zero_grad()
        bound = variational_prior_bound(model, tasks, KLScale("elbo", 0.1), torch.Generator().manual_seed(1)).value
        bound.backward()
        bounds.append(torch.cat([bound[None], *(parameter.grad.flatten() for parameter in model.parameters())]))
    torch.testing.assert_close(bounds[1], bounds[0], rtol=1e-8, atol=1e-10)


def test_the_kl_of_posteriors_of_unlike_tasks_is_refused_with_their_shapes():
    model = build_model(ModelConfig("nvdp").updated({"decoder.width": 4, "decoder.layers": 2, "rates.width": 4}))
    one, five = (model.adapt(torch.zeros(tasks, 2, 1), torch.zeros(tasks, 2, 1)) for tasks in (1, 5))
    with pytest.raises(InputError, match=r"\(5, \d+\) and \(1, \d+\)"):
        kl_divergence(five, one)


def test_rates_given_layer_by_layer_have_the_same_kl():
    model = build_model(ModelConfig("nvdp").updated({"decoder.width": 4, "decoder.layers": 2, "rates.width": 4}))
    q, p = (model.adapt(torch.randn(3, 2, 1), torch.randn(3, 2, 1)).rates for _ in range(2))
    torch.testing.assert_close(FUSED.kl(list(q), list(p)), FUSED.kl(q, p))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_prediction_under_autocast_is_that_without_it_up_to_the_precision(dtype):
    model = load("gp-nvdp").model.to(dtype)
    x, y = torch.linspace(-2, 2, 9, dtype=dtype)[:, None], torch.linspace(-1, 1, 9, dtype=dtype)[:, None]
    expected = model.adapt(x, y).predict(x)
    with torch.autocast("cpu", torch.bfloat16):
        actual = model.adapt(x, y).predict(x)
    assert actual.mean.dtype == dtype
    tolerance = 0.1 if dtype == torch.float32 else 1e-9  # autocast leaves float64 alone
    torch.testing.assert_close(actual.mean, expected.mean, atol=tolerance, rtol=0)
    torch.testing.assert_close(actual.std, expected.std, atol=tolerance, rtol=0)


def test_a_step_in_mixed_precision_has_finite_gradients():
    model = build_model(ModelConfig("nvdp").updated({"decoder.width": 16}))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        bound = variational_prior_bound(model, GPTasks().training_batch(0, 0, 3), KLScale("elbo", 0.1))
    bound.value.backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


@pytest.mark.parametrize("setting", [{"rates.form": "full"}, {"decoder.weight_noise": "weights"}])
def test_models_for_comparison_train_by_every_engine(setting):
    model = build_model(
        ModelConfig("nvdp").updated({"decoder.width": 8, "decoder.layers": 2, "rates.width": 8, **setting})
    )
    value, gradients = bound_and_gradients(model, AUTOGRAD, torch.float32)
    fused_value, fused_gradients = bound_and_gradients(model, FUSED, torch.float32)
    assert fused_value == pytest.approx(value, rel=1e-4)
    for plain, ours in zip(gradients, fused_gradients, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-3, atol=1e-4 * float(plain.abs().max()))
    assert sum(float(gradient.abs().sum()) for gradient in gradients) > 0


def test_noise_on_weights_is_one_function_where_local_noise_is_none():
    x = torch.zeros(1, 6, 1)  # the same place six times: a function has one value there
    for noise, spread in (("weights", 0.0), ("local", 0.01)):
        torch.manual_seed(0)
        posterior = build_model(ModelConfig("nvdp").updated({"decoder.weight_noise": noise})).adapt(x[0], x[0])
        outputs = posterior.training_outputs(x, torch.Generator().manual_seed(0))
        assert (outputs.std(1).max() > spread) == (noise == "local")
