import copy

import torch
from torch import nn

from nvdp.training.muon import Muon, polar_factors


def test_polar_factors_keep_the_singular_vectors_and_bring_singular_values_near_1(generator):
    for shape in ((3, 16, 40), (2, 40, 16), (1, 8, 8), (2, 100, 300), (1, 300, 100)):
        matrices = torch.randn(shape, generator=generator)
        u, _, vt = torch.linalg.svd(matrices, full_matrices=False)
        found = polar_factors(matrices)
        values = torch.linalg.svdvals(found)
        assert values.min() > 0.5
        assert values.max() < 1.3
        rotated = u.mT @ found @ vt.mT
        assert (rotated - torch.diag_embed(rotated.diagonal(dim1=1, dim2=2))).abs().max() < 1e-3


def test_matrices_and_1_by_1_convolutions_move_alike_and_other_parameters_as_adam_moves_them(generator):
    start, gradient = torch.randn(8, 12, generator=generator), torch.randn(8, 12, generator=generator)
    matrix, kernel, ours, adams = (
        nn.Parameter(t.clone()) for t in (start, start[..., None, None], start[:2], start[:2])
    )
    muon, adam = Muon([matrix, kernel, ours], lr=0.01), torch.optim.Adam([adams], lr=0.01, betas=(0.9, 0.99))
    for scale in (1.0, 1e-3, -2.0):
        matrix.grad, kernel.grad = scale * gradient, scale * gradient[..., None, None]
        ours.grad, adams.grad = scale * gradient[:2], scale * gradient[:2]
        muon.step()
        adam.step()
    torch.testing.assert_close(matrix, kernel[..., 0, 0])
    torch.testing.assert_close(ours, adams)


def test_a_stack_of_matrices_moves_as_its_matrices_do_one_by_one(generator):
    start, gradient = torch.randn(3, 8, 12, generator=generator), torch.randn(3, 8, 12, generator=generator)
    stack, *single = (nn.Parameter(each.clone()) for each in (start, *start))
    optimizer = Muon([stack, *single], lr=0.01)
    for scale in (1.0, -0.5):
        for parameter, own in zip((stack, *single), (gradient, *gradient), strict=True):
            parameter.grad = scale * own
        optimizer.step()
    torch.testing.assert_close(stack.detach(), torch.stack([each.detach() for each in single]))
    assert not torch.equal(stack.detach(), start)


def test_wide_matrices_take_muons_steps_where_they_are_asked_to(generator):
    weight = nn.Parameter(torch.randn(100, 120, generator=generator))
    before = weight.detach().clone()
    weight.grad = torch.randn(100, 120, generator=generator)
    Muon([weight], lr=0.1, weight_decay=0.5, largest=100).step()
    update = before * (1 - 0.1 * 0.5) - weight.detach()
    assert torch.linalg.svdvals(update).min() > 0.5 * torch.linalg.svdvals(update).max()
    Muon([weight], lr=0.1, weight_decay=0.5).step()  # Adam's: all numbers move as far
    second = before * (1 - 0.1 * 0.5) - update - weight.detach()
    torch.testing.assert_close(second.abs(), torch.full_like(second, 0.1), rtol=1e-3, atol=1e-4)


def test_a_direction_with_a_small_gradient_moves_as_far_as_one_with_a_large_gradient():
    weight = nn.Parameter(torch.zeros(8, 8))
    weight.grad = torch.diag(torch.tensor([1.0, 0.05, *[0.3] * 6]))
    Muon([weight], lr=1.0).step()
    assert 0.5 < (weight[0, 0] / weight[1, 1]).item() < 2


def test_weight_decay_shrinks_matrices_alone():
    matrix, vector = nn.Parameter(torch.eye(8)), nn.Parameter(torch.ones(4))
    matrix.grad, vector.grad = torch.zeros(8, 8), torch.zeros(4)
    Muon([matrix, vector], lr=0.1, weight_decay=0.5).step()
    torch.testing.assert_close(matrix.data, 0.95 * torch.eye(8))
    assert torch.equal(vector.data, torch.ones(4))


def test_a_copy_moves_as_its_original_does(generator):
    weight = nn.Parameter(torch.randn(100, 100, generator=generator))
    weight.grad = torch.randn(100, 100, generator=generator)
    optimizer = Muon([weight], lr=0.1, largest=100)
    other = copy.deepcopy(optimizer)
    other.param_groups[0]["params"][0].grad = weight.grad.clone()
    optimizer.step()
    other.step()
    assert torch.equal(weight, other.param_groups[0]["params"][0])
