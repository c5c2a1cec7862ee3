import torch

from nvdp.randomness import TABLE, ShareOfNoise, _table, derived_generator, derived_seed, tabled_normal


def test_a_derived_seed_is_the_same_on_every_machine_and_in_every_process():
    assert derived_seed(0, "noise", 700) == 3265481938620727703


def test_seeds_depend_on_every_part_of_their_purpose():
    purposes = [(seed, name, step) for seed in range(5) for name in ("data", "noise") for step in range(50)]
    purposes += [(0, "data", "1"), (0, "data"), (0,), (0, 1, "data")]
    assert len({derived_seed(*purpose) for purpose in purposes}) == len(purposes)


def test_seeds_fit_a_torch_generator():
    assert all(0 <= derived_seed(seed) < 2**63 for seed in range(-500, 500))


def test_generators_of_one_purpose_agree_and_of_others_do_not():
    def draw(*purpose):
        return torch.rand(8, generator=derived_generator(*purpose))

    assert torch.equal(draw(3, "data", 1), draw(3, "data", 1))
    assert not torch.equal(draw(3, "data", 1), draw(3, "data", 2))
    assert not torch.equal(draw(3, "data", 1), draw(4, "data", 1))


def test_noise_from_the_table_is_normal_and_its_neighbours_are_independent():
    noise = tabled_normal((1_000, 1_000), torch.zeros(1), derived_generator(0, "test"))
    assert abs(noise.mean()) < 5e-3
    assert abs(noise.var() - 1) < 5e-3
    assert abs(noise.pow(4).mean() - 3) < 0.05
    for shift in (1, 16, 1_000):
        assert abs((noise.flatten()[:-shift] * noise.flatten()[shift:]).mean()) < 5e-3


def test_the_table_does_not_follow_the_default_precision():
    _table.cache_clear()
    torch.set_default_dtype(torch.float64)
    try:
        noise = tabled_normal((4, 4), torch.zeros(1, dtype=torch.float32), derived_generator(0, "noise"))
    finally:
        torch.set_default_dtype(torch.float32)
    assert noise.dtype == torch.float32
    kept = noise.clone()
    _table.cache_clear()
    assert torch.equal(kept, tabled_normal((4, 4), torch.zeros(1), derived_generator(0, "noise")))


def test_noise_of_two_steps_is_not_the_same():
    one, two = (tabled_normal((16, 75, 128), torch.zeros(1), derived_generator(0, "noise", step)) for step in (1, 2))
    assert abs((one * two).mean()) < 0.02


def test_shares_of_a_tabled_draw_are_what_one_process_draws():
    whole = tabled_normal((4, 8), torch.zeros(1), derived_generator(0, "noise"))
    shares = [ShareOfNoise.of(derived_generator(0, "noise"), part, 2) for part in range(2)]
    assert torch.equal(whole, torch.cat([tabled_normal((2, 8), torch.zeros(1), share) for share in shares]))


def test_noise_too_long_for_the_table_is_drawn():
    noise = tabled_normal((TABLE // 2 + 1,), torch.zeros(1), derived_generator(0, "noise"))
    assert torch.equal(noise, torch.randn(TABLE // 2 + 1, generator=derived_generator(0, "noise")))


def test_noise_in_another_precision_is_drawn():
    like = torch.zeros(1, dtype=torch.float64)
    drawn = torch.randn(3, 4, generator=derived_generator(0, "noise"), dtype=torch.float64)
    assert torch.equal(tabled_normal((3, 4), like, derived_generator(0, "noise")), drawn)
