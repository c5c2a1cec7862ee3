"""Which candidates to ask about next: where a posterior is least sure, each in the light of those chosen before it."""

from typing import Any, Protocol

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from nvdp.errors import InputError, unknown_name
from nvdp.posteriors.prediction import Mixture

ACQUISITIONS = ("spread", "std")
SAMPLES = 32  # functions behind a spread
CANDIDATES_AT_ONCE = 2**22  # samples × tasks × candidates: bounds memory


class Suggestible(Protocol):
    """What of a posterior a suggestion needs."""

    @property
    def memory(self) -> object | None:
        """Whether it can take in points."""
        ...

    def predict(self, x: Any, samples: int = 0, generator: torch.Generator | int | None = None) -> Mixture:
        """A mixture over sampled functions."""
        ...

    def update(self, x: Any, y: Any = None, mask: Tensor | None = None) -> "Suggestible":
        """The posterior given more points."""
        ...


def uncertainty(prediction: Mixture, by: str = "spread") -> Float[Tensor, "*task point"]:
    """How unsure a prediction is of each point: a variance, summed over outputs.

    ``spread`` is the paper's: the variance of the mean across sampled functions. Where there is only one function, as
    of a CNP, the spread is zero; then ``std`` is used: the whole predictive variance, noise included.

    >>> sure, unsure = torch.tensor([[0.0], [0.0]]), torch.tensor([[0.0], [1.0]])
    >>> uncertainty(Mixture(torch.stack([sure, unsure]), torch.ones(2, 2, 1)))
    tensor([0.0000, 0.2500])
    """
    if by not in ACQUISITIONS:
        raise unknown_name("acquisition", by, ACQUISITIONS)
    spread = prediction.spread
    return (spread if by == "spread" and spread.any() else prediction.std).square().sum(-1)


def most_uncertain(
    uncertainties: Float[Tensor, "task point"], taken: Bool[Tensor, "task point"]
) -> Int[Tensor, " task"]:
    """The point of largest uncertainty of each task, among those not taken."""
    return uncertainties.masked_fill(taken, -torch.inf).argmax(-1)


def suggest(
    posterior: Suggestible, candidates: Float[Tensor, "task point x"], k: int, by: str, samples: int, seed: int
) -> Int[Tensor, "task k"]:
    """Indices of k different candidates for each task; see `nvdp.Posterior.suggest`."""
    tasks, count, _ = candidates.shape
    if not 1 <= k <= count:
        raise InputError(f"k is {k}; expected a number from 1 to {count}, that of the candidates")
    taken = torch.zeros(tasks, count, dtype=torch.bool, device=candidates.device)
    if k > 1 and posterior.memory is None:
        return _conditioned(_batched(posterior.predict(candidates, samples, seed)), taken, k, by)
    chosen: list[Tensor] = []
    row = torch.arange(tasks, device=candidates.device)
    while True:
        chosen.append(most_uncertain(_uncertainties(posterior, candidates, by, samples, seed), taken))
        taken[row, chosen[-1]] = True
        if len(chosen) == k:
            return torch.stack(chosen, -1)
        x = candidates[row, chosen[-1]][:, None]
        posterior = posterior.update(x, _batched(posterior.predict(x, samples, seed)).mean)


def _uncertainties(
    posterior: Suggestible, candidates: Tensor, by: str, samples: int, seed: int
) -> Float[Tensor, "task point"]:
    part = max(1, CANDIDATES_AT_ONCE // (samples * len(candidates)))
    parts = [_batched(posterior.predict(some, samples, seed)) for some in candidates.split(part, dim=1)]
    return torch.cat([uncertainty(each, by) for each in parts], -1)


def _batched(prediction: Mixture) -> Mixture:
    """With a task axis, whether or not the posterior is of one task without."""
    if prediction.functions.dim() == 4:
        return prediction
    return Mixture(prediction.functions[:, None], prediction.stds[:, None], prediction.coherent)


def _conditioned(prediction: Mixture, taken: Tensor, k: int, by: str) -> Int[Tensor, "task k"]:
    """Greedy choice under a Gaussian with the functions' correlation and the acquisition's variance.

    With F the functions' deviations, one row a sample, cov = FᵀF. An observation at i of noise σ² leaves
    cov − cov_i cov_iᵀ / (cov_ii + σ²), which is that of (I − αuuᵀ)F with u = F_i / |F_i| and
    (1 − α)² = σ² / (|F_i|² + σ²): no matrix of candidates × candidates is needed.
    """
    tasks, row = len(taken), torch.arange(len(taken), device=taken.device)
    variance = uncertainty(prediction, by)  # (task, point)
    factors = (prediction.functions - prediction.mean).permute(1, 0, 3, 2).flatten(1, 2)  # (task, sample·y, point)
    size = factors.square().sum(1)
    factors = factors * (variance / size.clamp(min=torch.finfo(size.dtype).tiny)).sqrt()[:, None]
    alone = variance.where(size == 0, torch.zeros(()).to(variance))  # no samples, so no correlation is known
    noise = (
        prediction.stds.square().mean(0).sum(-1).amin(-1)
    )  # (task): the smallest predictive variance, as an estimate of the noise
    chosen = []
    for _ in range(k):
        chosen.append(most_uncertain(factors.square().sum(1) + alone, taken))
        taken[row, chosen[-1]] = True
        u = factors[row, :, chosen[-1]]  # (task, sample·y)
        square = u.square().sum(-1)
        alpha = 1 - (noise / (square + noise)).sqrt()
        along = torch.einsum("ts,tsp->tp", u, factors) / square.clamp(min=torch.finfo(square.dtype).tiny)[:, None]
        factors = factors - (alpha[:, None] * along)[:, None] * u[..., None]
    return torch.stack(chosen, -1).reshape(tasks, k)
