import math

import pytest
import torch

from nvdp.errors import InputError
from nvdp.nn.attention import ContextAttention, DistanceAttention, attend, plain_attention
from nvdp.tasks import PointSet


def by_hand(attention, tokens, x, context, x_context, mask):
    """The same scores from differences of places, head by head."""
    heads, size = attention.heads, tokens.shape[-1] // attention.heads
    taken = []
    for head in range(heads):
        part = slice(head * size, (head + 1) * size)
        q = attention.query(tokens)[..., part]
        k, v = (attention.key_value(context)[..., half * heads * size :][..., part] for half in (0, 1))
        scale = attention.log_scale.exp()[head]
        distance = (scale * (x[:, :, None] - x_context[:, None])).square().sum(-1)
        scores = q @ k.mT / math.sqrt(size) + attention.offset[head] - distance
        null = q @ attention.null_token[0, head].mT / math.sqrt(size)
        scores = torch.cat([null, scores.masked_fill(~mask[:, None], -math.inf)], dim=-1)
        values = torch.cat([attention.null_token[1, head].expand(len(v), 1, -1), v], dim=1)
        taken.append(scores.softmax(-1) @ values)
    return attention.out(torch.cat(taken, dim=-1))


def test_scores_are_those_of_a_kernel_of_distances(generator):
    attention = DistanceAttention(6, 2, 3).double()
    with torch.no_grad():
        attention.null_token.normal_(generator=generator)
    tokens, context = (torch.randn(4, n, 6, generator=generator, dtype=torch.float64) for n in (5, 7))
    x, x_context = (torch.randn(4, n, 3, generator=generator, dtype=torch.float64) for n in (5, 7))
    mask = torch.rand(4, 7, generator=generator) < 0.6
    ours = attention(tokens, x, *attention.keys_and_values(context, x_context, mask))
    assert torch.allclose(ours, by_hand(attention, tokens, x, context, x_context, mask), atol=1e-10)


def attention_parts(generator, dtype, size=1.0):
    """Queries, keys, values with a last row of ones, and the null token's value, that need gradients."""
    shapes = (2, 3, 4, 5), (2, 3, 4, 6), (2, 3, 2, 6), (3, 2, 1)
    queries, keys, values, null = (torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes)
    values = torch.cat([values, torch.ones_like(values[:, :, :1])], dim=2)
    return [part.requires_grad_() for part in (size * queries, keys, values, null)]


@pytest.mark.parametrize("size", [1.0, 100.0], ids=["usual scores", "scores beyond the range of exp"])
def test_hand_derived_gradients_of_attention_are_those_of_autograd(generator, size):
    parts = attention_parts(generator, torch.float32, size)
    cotangent = torch.randn(2, 3, 2, 5, generator=generator)
    ours, reference = attend(*parts), plain_attention(*parts)
    assert torch.allclose(ours, reference, atol=1e-5)
    for own, other in zip(*(torch.autograd.grad(out, parts, cotangent) for out in (ours, reference)), strict=True):
        assert torch.allclose(own[..., :2, :], other[..., :2, :], atol=1e-5 * max(1.0, other.abs().max().item()))


def test_gradients_of_attention_are_those_of_finite_differences(generator):
    queries, keys, values, null = attention_parts(generator, torch.float64)
    ones = torch.ones_like(values[:, :, :1]).detach()

    def attended(queries, keys, values, null):
        return attend(queries, keys, torch.cat([values, ones], dim=2), null)

    free = values[:, :, :-1].detach().requires_grad_()
    assert torch.autograd.gradcheck(attended, (queries, keys, free, null))


@pytest.mark.parametrize("by_distance", [True, False])
def test_hidden_points_and_their_order_change_nothing(by_distance, generator):
    attention = ContextAttention(2, 1, width=8, blocks=2, heads=2, by_distance=by_distance)
    x, y = torch.randn(1, 6, 2, generator=generator), torch.randn(1, 6, 1, generator=generator)
    mask = torch.tensor([[True, True, True, True, False, False]])
    at = torch.randn(1, 3, 2, generator=generator)
    features = attention.read(PointSet(x, y, mask))(at)
    assert torch.allclose(features, attention.read(PointSet(x[:, :4], y[:, :4], mask[:, :4]))(at), atol=1e-5)
    order = torch.tensor([3, 1, 0, 2])
    shuffled = PointSet(x[:, order], y[:, order], mask[:, order])
    assert torch.allclose(features, attention.read(shuffled)(at), atol=1e-5)


def test_a_target_far_from_all_points_sees_what_it_would_see_of_no_points(generator):
    attention = ContextAttention(1, 1, width=8, blocks=1, heads=2)
    context = PointSet(torch.zeros(1, 4, 1), torch.randn(1, 4, 1, generator=generator), torch.ones(1, 4).bool())
    nothing = PointSet(torch.zeros(1, 0, 1), torch.zeros(1, 0, 1), torch.ones(1, 0).bool())
    near, far = torch.tensor([[[0.1]]]), torch.tensor([[[30.0]]])
    assert torch.allclose(attention.read(context)(far), attention.read(nothing)(far), atol=1e-6)
    assert not torch.allclose(attention.read(context)(near), attention.read(nothing)(near), atol=1e-2)


def test_a_width_that_heads_do_not_divide_is_refused():
    with pytest.raises(InputError, match="width 10 cannot have 4 heads"):
        DistanceAttention(10, 4, 1)
