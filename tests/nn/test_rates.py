import pytest
import torch
from torch.distributions import Normal, kl_divergence

from nvdp.errors import InputError
from nvdp.nn.rates import START_RATE, FullRates, LayerRates, RateBounds, RateNetwork, dropout_kl, network_kl

KINDS = ("affine", "clip")


def random_rates(generator, kind, floor=0.01):
    experts = [torch.rand(3, n, generator=generator, dtype=torch.float64) for n in (6, 5, 1)]
    return LayerRates(*experts, RateBounds(kind, floor))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale", [1.0, 1e3, 1e30])
def test_rates_stay_inside_the_papers_interval_for_any_logits(kind, scale):
    network = RateNetwork(4, [(3, 8), (8, 2)], width=8, layers=2, activation="leaky_relu", bounds=RateBounds(kind))
    with torch.no_grad():
        for head in network.heads:
            head.bias.copy_(scale * torch.where(torch.arange(len(head.bias)) % 2 == 0, 1.0, -1.0))
            head.bias[-1] = scale  # an open layer expert, so that large rates occur too
        for rates in network(torch.randn(5, 4)):
            for p in (rates.weight(), rates.bias()):
                assert p.min() >= 0.01
                assert p.max() <= 0.99
                if scale > 1:
                    assert p.min() < 0.011
                    assert p.max() > 0.989


def test_affine_rates_are_rank_one_plus_a_constant_and_clipped_ones_are_not(generator):
    affine, clip = (random_rates(generator, kind, 0.1).weight() for kind in KINDS)
    assert torch.linalg.matrix_rank(affine - 0.1, rtol=1e-10).tolist() == [1, 1, 1]
    assert torch.linalg.matrix_rank(affine, rtol=1e-10).tolist() == [2, 2, 2]
    assert (torch.linalg.matrix_rank(clip, rtol=1e-10) > 2).any()


def test_weight_rates_are_the_bounded_product_of_row_column_and_layer_experts(generator):
    rates = random_rates(generator, "affine")
    product = torch.einsum("tk,td,tl->tkd", rates.rows, rates.columns, rates.layer)
    torch.testing.assert_close(rates.weight(), 0.01 + 0.98 * product)
    torch.testing.assert_close(rates.bias(), 0.01 + 0.98 * rates.columns * rates.layer)


def test_clip_leaves_rates_inside_the_interval_alone(generator):
    product = torch.rand(100, generator=generator)
    clipped = RateBounds("clip", 0.2)(product)
    inside = (product > 0.2) & (product < 0.8)
    assert torch.equal(clipped[inside], product[inside])
    assert torch.equal(clipped[~inside], torch.where(product > 0.5, 0.8, 0.2)[~inside])


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_kept_is_what_is_not_dropped(generator, kind):
    rates = random_rates(generator, kind)
    torch.testing.assert_close(rates.keep(), (1 - rates.weight(), 1 - rates.bias()))


@pytest.mark.parametrize("kind", KINDS)
def test_mean_of_a_layers_rates_is_the_mean_of_its_weight_matrix(generator, kind):
    rates = random_rates(generator, kind)
    torch.testing.assert_close(rates.mean(), rates.weight().mean((-2, -1)))


def test_affine_bounds_keep_a_gradient_where_clip_kills_it():
    logit = torch.tensor([-8.0], requires_grad=True)
    gradients = {kind: torch.autograd.grad(RateBounds(kind)(torch.sigmoid(logit)), logit)[0].item() for kind in KINDS}
    assert gradients["clip"] == 0
    assert gradients["affine"] > 0


def test_every_layer_has_rates_of_its_own_shape():
    shapes = [(1, 8), (8, 8), (8, 2)]
    rates = RateNetwork(4, shapes, width=8, layers=2, activation="relu")(torch.randn(5, 4))
    assert [tuple(r.weight().shape) for r in rates] == [(5, *shape) for shape in shapes]
    assert [tuple(r.bias().shape) for r in rates] == [(5, d) for _, d in shapes]


def test_a_higher_temperature_pulls_experts_towards_one_half():
    network = RateNetwork(4, [(3, 2)], width=8, layers=2, activation="relu")
    r = torch.randn(5, 4)

    def distance(temperature):
        with torch.no_grad():
            network.temperature.fill_(temperature)
            return (network(r)[0].rows - 0.5).abs()

    assert (distance(4.0) < distance(1.0)).all()
    assert torch.equal(distance(100.0), distance(5.0))
    assert torch.equal(distance(0.0), distance(0.5))


@pytest.mark.parametrize(("kind", "floor", "words"), [("hard", 0.01, "'hard'"), ("clip", 0.5, "0.5")])
def test_unknown_bounds_and_impossible_floors_are_refused(kind, floor, words):
    with pytest.raises(InputError, match=words):
        RateBounds(kind, floor)


def rates_like(generator, *shape):
    return 0.01 + 0.98 * torch.rand(*shape, generator=generator, dtype=torch.float64)


def dropout_normal(theta, p):
    """Eq. 2 as PyTorch's own distribution."""
    return Normal((1 - p) * theta, (p * (1 - p)).sqrt() * theta.abs())


def test_dropout_kl_is_the_kl_of_two_normals_whatever_theta(generator):
    p, p_hat = rates_like(generator, 1000), rates_like(generator, 1000)
    theta = torch.randn(1000, generator=generator, dtype=torch.float64)
    expected = kl_divergence(dropout_normal(theta, p), dropout_normal(theta, p_hat))
    torch.testing.assert_close(dropout_kl(p, p_hat), expected, atol=1e-6, rtol=1e-9)


def test_dropout_kl_agrees_with_monte_carlo(generator):
    p, p_hat = rates_like(generator, 6), rates_like(generator, 6)
    theta = torch.randn(6, generator=generator, dtype=torch.float64)
    q, prior = dropout_normal(theta, p), dropout_normal(theta, p_hat)
    draws = q.loc + q.scale * torch.randn(50_000, 6, generator=generator, dtype=torch.float64)
    ratio = (q.log_prob(draws) - prior.log_prob(draws)).sum(-1)
    assert (ratio.mean() - dropout_kl(p, p_hat).sum()).abs() < 4 * ratio.std() / len(ratio) ** 0.5


def test_dropout_kl_loses_no_digits_near_equal_rates():
    # To second order the divergence is d² (1/v + (1−2P)²/2v²)/2, far below float32's ulp of its terms.
    p, d = torch.tensor(0.3), 2.0**-12
    v = 0.3 * 0.7
    expected = 0.5 * d**2 * (1 / v + (1 - 0.6) ** 2 / (2 * v**2))
    assert dropout_kl(p + d, p).item() == pytest.approx(expected, rel=0.02)


def test_dropout_kl_is_positive_for_different_rates_and_zero_for_equal_ones(generator):
    p, p_hat = rates_like(generator, 10_000), rates_like(generator, 10_000)
    assert (dropout_kl(p, p_hat) > 0).all()
    assert not dropout_kl(p.float(), p.float()).any()


def test_dropout_kl_gradient_agrees_with_finite_differences(generator):
    p, p_hat = rates_like(generator, 20).requires_grad_(), rates_like(generator, 20).requires_grad_()
    assert torch.autograd.gradcheck(dropout_kl, (p, p_hat))


@pytest.mark.parametrize("kind", KINDS)
def test_network_kl_sums_over_weights_and_biases(generator, kind):
    q, p = random_rates(generator, kind), random_rates(generator, kind)
    expected = dropout_kl(q.weight(), p.weight()).flatten(1).sum(1) + dropout_kl(q.bias(), p.bias()).sum(1)
    torch.testing.assert_close(network_kl([q], [p]), expected)
    assert not network_kl([q], [q]).any()


def test_normalised_rates_differ_between_tasks_whatever_pushes_them_all_down(generator):
    plain, normal = (
        RateNetwork(4, [(3, 8)], width=8, layers=1, activation="leaky_relu", normalise=flag) for flag in (False, True)
    )
    with torch.no_grad():
        for network in (plain, normal):
            network.heads[0].bias.fill_(-500.0)
    r = 10 + 0.1 * torch.randn(64, 4, generator=generator)
    (sunk,), (alive,) = plain(r), normal(r)
    assert sunk.rows.max() < 1e-6
    assert alive.rows.mean() > 0.2  # the offset stops at −1.5
    assert alive.rows.std(0).min() > 0.1


def test_normalised_sets_that_are_equal_have_equal_rates(generator):
    network = RateNetwork(4, [(3, 8), (8, 2)], width=8, layers=2, activation="leaky_relu", normalise=True)
    r = torch.randn(6, 4, generator=generator)
    for context, whole in zip(*network.of_sets(r, r.clone()), strict=True):
        torch.testing.assert_close(context.weight(), whole.weight())


def test_full_rates_hold_matrices_that_no_product_can_and_start_where_a_product_does(generator):
    network = RateNetwork(4, [(3, 8)], width=8, layers=2, activation="leaky_relu", full=True)
    (rates,) = network(torch.randn(5, 4, generator=generator))
    assert isinstance(rates, FullRates)
    assert rates.weight().shape == (5, 3, 8)
    assert torch.linalg.matrix_rank(rates.weight() - 0.01, rtol=1e-4).min() == 3
    with torch.no_grad():
        for head in network.heads:
            head.weight.zero_()
    (rates,) = network(torch.randn(5, 4, generator=generator))
    torch.testing.assert_close(rates.mean(), torch.full((5,), 0.01 + 0.98 * START_RATE))
    torch.testing.assert_close(rates.bias().mean(-1), rates.mean())
    (first,), (second,) = network.of_sets(*torch.randn(2, 3, 4, generator=generator))
    assert (len(first.weight()), len(second.weight())) == (3, 3)
