import pytest
import torch

from nvdp.errors import InputError
from nvdp.nn.convolution import ContextConvolution, Grid, fused_block, plain_block
from nvdp.tasks import PointSet


def points(x, y):
    x, y = torch.tensor(x)[None], torch.tensor(y)[None]
    return PointSet(x, y, torch.ones(x.shape[:2], dtype=torch.bool))


def test_moving_all_points_by_cells_moves_the_features_with_them():
    convolution = ContextConvolution(1, 1, channels=6, blocks=2, kernel=3, grid=Grid(-4.0, 4.0, 81))
    at = torch.tensor([[[-0.33], [0.2], [0.77]]])
    still = convolution.read(points([[0.0], [0.5]], [[1.0], [-1.0]]))(at)
    moved = convolution.read(points([[1.0], [1.5]], [[1.0], [-1.0]]))(at + 1.0)
    assert torch.allclose(still, moved, atol=1e-4)


def test_a_u_net_moves_with_its_coarsest_cells_and_reaches_further():
    def reader(levels):
        torch.manual_seed(0)
        return ContextConvolution(1, 1, channels=4, blocks=1, kernel=3, levels=levels, grid=Grid(-3.2, 3.1, 64))

    at, one = torch.tensor([[[-0.3], [0.2]]]), [[1.0], [-1.0]]
    u_net = reader(3)
    still, moved = u_net.read(points([[0.0], [0.5]], one))(at), u_net.read(points([[0.4], [0.9]], one))(at + 0.4)
    assert torch.allclose(still, moved, atol=1e-4)

    def influence(reader):  # of a point nine cells away
        near, far = (reader.read(points([[0.0], [0.9]], [[1.0], [y]]))(torch.zeros(1, 1, 1)) for y in (0.0, 5.0))
        return (near - far).abs().max().item()

    assert influence(u_net) > 1e-4 > influence(reader(1))


@pytest.mark.parametrize("cells", [5, 12, 13])
def test_any_number_of_cells_makes_a_u_net(cells):
    u_net = ContextConvolution(2, 1, channels=4, blocks=1, kernel=3, levels=3, grid=Grid(0.0, 1.0, cells))
    read = u_net.read(points([[0.25, 1.0], [0.0, 0.5]], [[3.0], [7.0]]))
    assert read.maps.shape == (1, 4, cells, cells)


def test_a_pixel_is_found_again_at_its_own_row_and_column():
    convolution = ContextConvolution(2, 1, channels=1, blocks=1, kernel=1, grid=Grid(0.0, 1.0, 5))
    with torch.no_grad():
        convolution.log_reach.fill_(-4.0)
        convolution.first.weight.copy_(torch.tensor([0.0, 1.0]).view(1, 2, 1, 1))
        convolution.first.bias.zero_()
        for parameter in convolution.blocks.parameters():
            parameter.zero_()
    read = convolution.read(points([[0.25, 1.0], [0.0, 0.5]], [[3.0], [7.0]]))
    assert (read.maps[0, 0] > 1e-6).nonzero().tolist() == [[0, 2], [1, 4]]
    found = read(torch.tensor([[[0.25, 1.0], [0.0, 0.5], [1.0, 0.25], [0.125, 1.0]]]))
    assert found[0, :, 0].tolist() == pytest.approx([3.0, 7.0, 0.0, 1.5], abs=1e-3)


def test_a_target_beyond_the_grid_sees_its_edge():
    convolution = ContextConvolution(1, 1, channels=4, blocks=1, kernel=3, grid=Grid(-1.0, 1.0, 21))
    read = convolution.read(points([[0.9]], [[1.0]]))
    assert torch.equal(read(torch.tensor([[[5.0]]])), read(torch.tensor([[[1.0]]])))


def test_three_inputs_are_refused():
    with pytest.raises(InputError, match="need 1 or 2 inputs; the task has 3"):
        ContextConvolution(3, 1, channels=4, blocks=1, kernel=3, grid=Grid(-1.0, 1.0, 21))


@pytest.mark.parametrize(("x_dim", "cells", "patch"), [(2, 6, 2), (2, 7, 2), (2, 7, 3), (1, 9, 4)])
def test_patches_of_cells_become_channels_and_cells_again(x_dim, cells, patch):
    reader = ContextConvolution(x_dim, 1, channels=3, blocks=1, kernel=3, patch=patch, grid=Grid(0.0, 1.0, cells))
    maps = torch.randn(2, 2, 1 if x_dim == 1 else cells, cells)
    patches = reader._patches(maps)
    reader.size, reader.last = 2, torch.nn.Identity()
    # `_cells` expects a patch's cells before its channels, `_patches` gives channels first.
    swapped = patches.unflatten(1, (2, -1)).transpose(1, 2).flatten(1, 2)
    assert torch.equal(reader._cells(swapped, maps.shape[-2:]), maps)


def test_a_dense_u_net_of_patches_sees_where_a_pixel_is():
    torch.manual_seed(0)
    reader = ContextConvolution(2, 1, channels=8, blocks=1, kernel=3, levels=2, patch=2, dense=True, grid=Grid(0, 1, 6))
    read = reader.read(points([[0.2, 0.4]], [[1.0]]))
    assert read.maps.shape == (1, 8, 6, 6)
    assert len(read.maps[0].flatten(1).T.unique(dim=0)) > 30  # every cell of the 36 has features of its own


@pytest.mark.parametrize(("kernel", "size", "group"), [((1, 3), (1, 5), 1), ((3, 3), (4, 3), 1), ((3, 3), (4, 3), 2)])
def test_a_block_has_the_values_and_gradients_of_autograd(kernel, size, group):
    generator = torch.Generator().manual_seed(0)
    shapes = ((3, 2, *size), (2, group, *kernel), (2,), (2, 2, 1, 1), (2,))
    parts = [torch.randn(*shape, generator=generator, dtype=torch.float64).requires_grad_() for shape in shapes]
    torch.testing.assert_close(fused_block(*parts), plain_block(*parts), rtol=1e-12, atol=1e-12)
    assert torch.autograd.gradcheck(fused_block, parts)
