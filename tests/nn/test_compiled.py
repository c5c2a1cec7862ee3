"""The compiled loops against those of `fused` in double precision."""

import inspect
from collections.abc import Callable, Iterator
from typing import cast

import pytest
import torch
from torch import Tensor

from nvdp.data.gp import GPTasks
from nvdp.errors import InputError
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.nn import compiled
from nvdp.nn.compiled import COMPILED, compiled_basis, engine_named, engine_of
from nvdp.nn.dropout import DropoutLinear, target_basis
from nvdp.nn.fused import AUTOGRAD, fused_kl, fused_local_noise
from nvdp.nn.kernels import loaded_kernels
from nvdp.nn.rates import RateBounds
from nvdp.objectives import KLScale, variational_prior_bound
from nvdp.training.presets import preset_config

TASKS, FLOOR, CLOSE = 3, 0.01, 1e-5
SHIPPED_CONV = cast(ModelConfig, preset_config("gp", "nvdp-conv", "quick").model)  # its targets have rates of their own
# Typed loosely: arguments are unpacked from lists below.
compiled_local_noise: Callable[..., Tensor] = compiled.compiled_local_noise
compiled_kl: Callable[..., Tensor] = compiled.compiled_kl
needs_kernels = pytest.mark.skipif(isinstance(loaded_kernels(), str), reason=str(loaded_kernels()))


@pytest.fixture(autouse=True)
def seed() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


def leaves(*tensors: Tensor, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    return [tensor.detach().to(dtype).requires_grad_() for tensor in tensors]


def layer_arguments(points: int, k: int, d: int) -> list[Tensor]:
    """Inputs with exact zeros, weight, bias, and experts that are slices of one array."""
    experts = torch.sigmoid(2 * torch.randn(TASKS, k + d + 1)).split([k, d, 1], dim=-1)
    return [torch.relu(torch.randn(TASKS, points, k)), torch.randn(k, d), torch.randn(d), *experts]


def all_experts(shapes: list[tuple[int, int]]) -> Tensor:
    return torch.sigmoid(2 * torch.randn(TASKS, sum(k + d + 1 for k, d in shapes)))


def assert_same(actual: tuple[Tensor, ...], expected: tuple[Tensor, ...]) -> None:
    """Equal up to a tolerance relative to the largest entry of each tensor."""
    for a, e in zip(actual, expected, strict=True):
        assert a.shape == e.shape
        assert (a - e).abs().max() <= CLOSE * e.abs().max()


@needs_kernels
@pytest.mark.parametrize("floor", [FLOOR, 0.2])
@pytest.mark.parametrize(("points", "k", "d"), [(5, 7, 4), (1, 1, 1), (6, 1, 40), (6, 70, 2), (9, 65, 33)])
def test_a_layer_and_its_gradients_are_those_in_double_precision(points: int, k: int, d: int, floor: float) -> None:
    arguments = layer_arguments(points, k, d)
    noise, cotangent = torch.randn(TASKS, points, d), torch.randn(TASKS, points, d)
    ours, exact = leaves(*arguments), leaves(*arguments, dtype=torch.float64)
    actual, expected = compiled_local_noise(*ours, noise, floor), fused_local_noise(*exact, noise.double(), floor)
    assert_same((actual,), (expected,))
    gradients = torch.autograd.grad(actual, ours, cotangent)
    assert_same(gradients, torch.autograd.grad(expected, exact, cotangent.double()))


@needs_kernels
@pytest.mark.parametrize("floor", [1e-5, FLOOR, 0.2])
@pytest.mark.parametrize(("points", "k", "outputs", "functions"), [(1, 1, 1, 1), (5, 33, 2, 1), (4, 7, 6, 3)])
def test_the_basis_of_weight_noise_is_that_in_double_precision(
    points: int, k: int, outputs: int, functions: int, floor: float
) -> None:
    layer = DropoutLinear(k, outputs)
    experts = torch.sigmoid(2 * torch.randn(TASKS, points, k)), torch.sigmoid(torch.randn(TASKS, functions))
    cotangent, found = torch.randn(TASKS, functions, points, k + 1), []
    for compute, dtype in ((compiled_basis, torch.float32), (target_basis, torch.float64)):
        layer.to(dtype)
        arguments = leaves(
            torch.randn(TASKS, points, k, generator=torch.Generator().manual_seed(1)), *experts, dtype=dtype
        )
        basis = compute(layer, *arguments, RateBounds("affine", floor))
        of_all = torch.autograd.grad(basis, [*arguments, layer.weight, layer.bias], cotangent.to(dtype))
        found.append((basis, *of_all))
    assert_same(*found)


@needs_kernels
@pytest.mark.parametrize(("samples", "kind"), [((2,), "affine"), ((), "clip")])
def test_the_basis_of_sampled_inputs_and_of_clipped_rates_is_left_to_autograd(samples: tuple[int], kind: str) -> None:
    layer, inputs = DropoutLinear(7, 1), torch.randn(*samples, TASKS, 5, 7)
    rest = torch.rand(TASKS, 5, 7), torch.rand(TASKS, 1), RateBounds(kind, FLOOR)
    assert torch.equal(compiled_basis(layer, inputs, *rest), target_basis(layer, inputs, *rest))


@needs_kernels
def test_the_layout_of_the_arguments_does_not_matter() -> None:
    inputs, weight, bias, *experts = layer_arguments(5, 7, 12)
    noise = torch.randn(TASKS, 5, 12)
    expected_leaves = leaves(inputs, weight, bias, *experts)
    expected = compiled_local_noise(*expected_leaves, noise, FLOOR)
    apart = [part.mT.contiguous().mT for part in (inputs, weight)], [part.t().contiguous().t() for part in experts]
    others = leaves(*apart[0], bias, *apart[1])
    actual = compiled_local_noise(*others, noise.mT.contiguous().mT, FLOOR)
    assert_same((actual,), (expected,))
    # An expanded output gradient, as a sum gives it.
    gradients = torch.autograd.grad(actual.sum(), others)
    assert_same(gradients, torch.autograd.grad(expected.sum(), expected_leaves))


@needs_kernels
def test_arguments_and_output_gradient_are_left_as_they_were() -> None:
    ours, noise, cotangent = leaves(*layer_arguments(5, 7, 4)), torch.randn(TASKS, 5, 4), torch.randn(TASKS, 5, 4)
    before = [tensor.detach().clone() for tensor in (*ours, noise, cotangent)]
    torch.autograd.grad(compiled_local_noise(*ours, noise, FLOOR), ours, cotangent)
    assert all(torch.equal(a, b) for a, b in zip((*ours, noise, cotangent), before, strict=True))


@needs_kernels
@pytest.mark.parametrize("floor", [1e-5, FLOOR, 0.2, 0.45])
@pytest.mark.parametrize("shapes", [[(7, 4)], [(1, 40), (40, 33), (33, 2)]])
def test_the_kl_and_its_gradients_are_those_in_double_precision(shapes: list[tuple[int, int]], floor: float) -> None:
    q, p = all_experts(shapes), all_experts(shapes)
    ours, exact = leaves(q, p), leaves(q, p, dtype=torch.float64)
    actual, expected = compiled_kl(*ours, shapes, floor), fused_kl(*exact, shapes, floor)
    cotangent = torch.randn(TASKS)
    torch.testing.assert_close(actual.double(), expected, rtol=CLOSE, atol=0)
    gradients = torch.autograd.grad(actual, ours, cotangent)
    assert_same(gradients, torch.autograd.grad(expected, exact, cotangent.double()))


@needs_kernels
def test_the_kl_of_equal_posteriors_and_its_gradient_are_exactly_zero() -> None:
    shapes = [(33, 19), (19, 2)]
    q = all_experts(shapes)
    ours = leaves(q, q.clone())
    kl = compiled_kl(*ours, shapes, FLOOR)
    assert torch.equal(kl, torch.zeros(TASKS))
    assert all(not gradient.any() for gradient in torch.autograd.grad(kl.sum(), ours))


@needs_kernels
def test_results_do_not_depend_on_the_number_of_threads() -> None:
    shapes = [(70, 33)]
    arguments, noise = layer_arguments(9, 70, 33), torch.randn(TASKS, 9, 33)
    q, p, results = all_experts(shapes), all_experts(shapes), []
    before, layer, columns = torch.get_num_threads(), DropoutLinear(70, 1), torch.rand(TASKS, 1)
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            ours, sides = leaves(*arguments), leaves(q, p)
            outputs, kl = compiled_local_noise(*ours, noise, FLOOR), compiled_kl(*sides, shapes, FLOOR)
            of_experts = torch.autograd.grad(outputs.sum(), ours)[3:]
            basis = compiled_basis(layer, ours[0], arguments[0].sigmoid(), columns, RateBounds())
            of_basis = torch.autograd.grad(basis.sum(), [ours[0], layer.weight])
            results.append([outputs, kl, *of_experts, *torch.autograd.grad(kl.sum(), sides), basis, *of_basis])
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for other in results[1:] for a, b in zip(results[0], other, strict=True))


@needs_kernels
@pytest.mark.parametrize(
    ("config", "bounds"),
    [(ModelConfig("nvdp"), "affine"), (ModelConfig("nvdp"), "clip"), (SHIPPED_CONV, "affine")],
    ids=["affine", "clip", "rates of targets"],
)
def test_the_bound_and_its_gradients_are_those_of_autograd_and_of_the_same_call(
    config: ModelConfig, bounds: str
) -> None:
    model = build_model(config.updated({"decoder.width": 16, "rates.bounds": bounds}))
    tasks, found = GPTasks().training_batch(0, 0, 3), []
    for engine in (AUTOGRAD, COMPILED, COMPILED):
        model.engine = engine
        model.zero_grad()
        bound = variational_prior_bound(model, tasks, KLScale("elbo", 0.1), torch.Generator().manual_seed(1)).value
        bound.backward()
        found.append(
            [
                bound.detach(),
                *(parameter.grad.clone() for parameter in model.parameters() if parameter.grad is not None),
            ]
        )
    for plain, ours, again in zip(*found, strict=True):
        torch.testing.assert_close(ours, plain, rtol=1e-4, atol=1e-4 * float(plain.abs().max()))
        assert torch.equal(ours, again)


@needs_kernels
def test_numbers_that_are_not_finite_stay_so() -> None:
    q, broken = all_experts([(7, 4)]), all_experts([(7, 4)])
    broken[1, 0] = torch.nan
    for kl in (compiled_kl(broken, q, [(7, 4)], FLOOR), compiled_kl(q, broken, [(7, 4)], FLOOR)):
        assert kl.isnan().tolist() == [False, True, False]


@needs_kernels
def test_the_strides_of_experts_do_not_matter() -> None:
    shapes = [(7, 4), (4, 2)]
    q, p = all_experts(shapes), all_experts(shapes)
    wide = torch.rand(TASKS, 50)
    wide[:, 3 : 3 + q.shape[1]] = q
    for other in (wide[:, 3 : 3 + q.shape[1]], q.t().contiguous().t()):
        assert torch.equal(compiled_kl(other, p, shapes, FLOOR), compiled_kl(q, p, shapes, FLOOR))
        assert torch.equal(compiled_kl(p, other, shapes, FLOOR), compiled_kl(p, q, shapes, FLOOR))


@needs_kernels
@pytest.mark.parametrize(("tasks", "points"), [(0, 5), (2, 0)])
def test_empty_tasks_and_tasks_without_points(tasks: int, points: int) -> None:
    experts = torch.rand(tasks, 12).split([7, 4, 1], dim=-1)
    ours = leaves(torch.rand(tasks, points, 7), torch.rand(7, 4), torch.rand(4), *experts)
    outputs = compiled_local_noise(*ours, torch.rand(tasks, points, 4), FLOOR)
    assert outputs.shape == (tasks, points, 4)
    assert all(not gradient.any() for gradient in torch.autograd.grad(outputs.sum(), ours))
    basis = compiled_basis(DropoutLinear(7, 4), ours[0], ours[0].detach(), torch.rand(tasks, 1), RateBounds())
    assert basis.shape == (tasks, 1, points, 8)


@needs_kernels
def test_hooks_on_saved_tensors_do_not_change_gradients() -> None:
    ours, noise = leaves(*layer_arguments(5, 7, 4)), torch.randn(TASKS, 5, 4)
    expected = torch.autograd.grad(compiled_local_noise(*ours, noise, FLOOR).sum(), ours)
    copied = torch.autograd.graph.saved_tensors_hooks(
        lambda tensor: tensor.detach().clone(memory_format=torch.contiguous_format), lambda tensor: tensor
    )
    with copied:
        outputs = compiled_local_noise(*ours, noise, FLOOR)
    assert_same(torch.autograd.grad(outputs.sum(), ours), expected)


@needs_kernels
def test_shapes_that_do_not_fit_are_refused() -> None:
    q = all_experts([(7, 4)])
    with pytest.raises(InputError, match=r"shape \(3, 12\); expected \(3, 24\)"):
        compiled_kl(q, q, [(7, 4), (7, 4)], FLOOR)
    layer, inputs, columns = DropoutLinear(7, 1), torch.rand(TASKS, 5, 7), torch.rand(TASKS, 1)
    for rows, own_columns in ((torch.rand(1, 5, 7), columns), (inputs, columns[:1]), (inputs, torch.rand(TASKS, 2))):
        with pytest.raises(InputError, match="a tensor has shape"):
            inspect.unwrap(compiled_basis)(layer, inputs, rows, own_columns, RateBounds())  # unchecked, as in use


@pytest.mark.parametrize(
    ("model", "name", "device", "full", "used"),
    [
        (ModelConfig("nvdp"), "fused", "cpu", True, "fused"),
        (ModelConfig("nvdp"), "compiled", "cpu", True, engine_named("compiled").name),
        (ModelConfig("nvdp"), "compiled", "cpu", False, "fused"),
        (ModelConfig("nvdp"), "compiled", "meta", True, "fused"),
        (ModelConfig("nvdp").updated({"rates.bounds": "clip"}), "compiled", "cpu", True, "autograd"),
        (ModelConfig("cnp"), "compiled", "cpu", True, None),
    ],
)
def test_the_engine_of_a_model_is_the_one_that_computes_it(
    model: ModelConfig, name: str, device: str, full: bool, used: str | None
) -> None:
    assert engine_of(build_model(model), name, torch.device(device), full) == used


def test_double_precision_is_left_to_fused() -> None:
    shapes = [(7, 4)]
    q, p = all_experts(shapes).double(), all_experts(shapes).double()
    assert torch.equal(compiled_kl(q, p, shapes, FLOOR), fused_kl(q, p, shapes, FLOOR))


def test_an_unknown_engine_is_refused_by_name() -> None:
    assert engine_named("autograd") is AUTOGRAD
    with pytest.raises(InputError, match="unknown engine 'fast'"):
        engine_named("fast")
