"""Randomness as an argument: a generator is derived from a seed and the names of what it is for.

Because every step of a run has its own derived generator, nothing about randomness needs saving: step 700 draws
the same numbers whether the run was interrupted at step 699 or not.
"""

import hashlib
import math
from collections.abc import Sequence
from functools import lru_cache

import torch
from torch import Tensor

TABLE = 2**22  # numbers; 16 megabytes
TABLE_STRIDE = 16  # numbers: places begin at a line of the processor's cache


def derived_seed(seed: int, *purpose: str | int) -> int:
    """A 63-bit seed that depends on `seed` and on every part of `purpose`.

    >>> derived_seed(0, "data", 1) == derived_seed(0, "data", 1)
    True
    >>> derived_seed(0, "data", 1) == derived_seed(0, "data", 2)
    False
    """
    digest = hashlib.blake2b(repr((seed, *purpose)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def derived_generator(seed: int, *purpose: str | int, device: torch.device | str = "cpu") -> torch.Generator:
    """A fresh generator seeded by `derived_seed`."""
    return torch.Generator(device=device).manual_seed(derived_seed(seed, *purpose))


class ShareOfNoise(torch.Generator):
    """A generator for one of several processes: together they draw what one process would.

    >>> whole = standard_normal((4, 8), torch.zeros(1), torch.Generator().manual_seed(0))
    >>> parts = [ShareOfNoise.of(torch.Generator().manual_seed(0), part, 2) for part in range(2)]
    >>> torch.equal(whole, torch.cat([standard_normal((2, 8), torch.zeros(1), each) for each in parts]))
    True
    """

    part: int
    parts: int

    @classmethod
    def of(cls, generator: torch.Generator, part: int, parts: int) -> "ShareOfNoise":
        """Part `part` of what a fresh generator would draw."""
        share = cls(device=generator.device)
        share.manual_seed(generator.initial_seed())
        share.part, share.parts = part, parts
        return share


def standard_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Noise of a shape, in the precision and on the device of another tensor.

    >>> standard_normal((2, 3), torch.zeros(1), torch.Generator().manual_seed(0)).shape
    torch.Size([2, 3])
    """
    if generator is None:  # left out, not passed as None: torch.compile knows only the former for shapes that vary
        return torch.randn(shape, dtype=like.dtype, device=like.device)
    if isinstance(generator, ShareOfNoise):  # tasks are the first axis that is not of length one
        whole = torch.randn((generator.parts, *shape), generator=generator, dtype=like.dtype, device=like.device)
        return whole[generator.part]
    return torch.randn(shape, generator=generator, dtype=like.dtype, device=like.device)


def tabled_normal(shape: Sequence[int], like: Tensor, generator: torch.Generator | None) -> Tensor:
    """Noise for a training step: a slice of a fixed table of normal numbers, from a random place on.

    Drawing normal numbers would take a twentieth of a training step. The numbers of a slice are independent, and every
    layer and step draws its own place; slices of two layers may overlap, and a place repeats after some thousands of
    steps. The result is a view of the table and must not be written to. Noise that is too long for the table, or is not
    float32 on a CPU, is drawn.

    >>> like, first = torch.zeros(1), torch.Generator().manual_seed(0)
    >>> noise = tabled_normal((100, 100), like, first)
    >>> torch.equal(noise, tabled_normal((100, 100), like, torch.Generator().manual_seed(0)))
    True
    >>> torch.equal(noise, tabled_normal((100, 100), like, first))
    False
    """
    part, parts = (generator.part, generator.parts) if isinstance(generator, ShareOfNoise) else (0, 1)
    numbers = parts * math.prod(shape)
    if like.dtype != torch.float32 or like.device.type != "cpu" or numbers > TABLE // 4:
        return standard_normal(shape, like, generator)
    places = (TABLE - numbers) // TABLE_STRIDE + 1
    start = TABLE_STRIDE * int(torch.randint(places, (), generator=generator, device="cpu"))
    return _table()[start : start + numbers].view(parts, *shape)[part]


@lru_cache(maxsize=1)
@torch.inference_mode(False)  # else what is made in that mode could not serve a gradient later
def _table() -> Tensor:
    return torch.randn(TABLE, generator=derived_generator(0, "table of noise"), dtype=torch.float32, device="cpu")
