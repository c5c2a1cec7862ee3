import torch

from nvdp.randomness import derived_generator, derived_seed


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
