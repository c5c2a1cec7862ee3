"""Which pixels to look at next: those the model is least sure of, against random ones; and what that is worth."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from jaxtyping import Bool, UInt8
from torch import Tensor

from nvdp.completion import psnr
from nvdp.data.images import random_pixels, whole_images
from nvdp.metrics import task_means
from nvdp.models.base import MetaModel
from nvdp.nn.likelihoods import gaussian_log_prob
from nvdp.posteriors import Posterior
from nvdp.randomness import derived_generator

ImageArray = UInt8[np.ndarray, "image row column channel"]
ROUND_SHARE = 5  # a round adds one pixel for every five that are shown, so that rounds stay few
SAMPLES = 4


def random_contexts(images: ImageArray, sizes: Sequence[int], seed: int = 0) -> list[Bool[Tensor, "image pixel"]]:
    """Random pixels of every image, for each size; a larger context holds the smaller ones."""
    pixels = images.shape[1] * images.shape[2]
    generator = derived_generator(seed, "random contexts")
    state = generator.get_state()
    return [random_pixels(len(images), pixels, size, generator.set_state(state)) for size in sizes]


class PixelChoice:
    """A model before some images, of which it may see any pixels: each pixel is encoded once, whatever is shown."""

    @torch.no_grad()
    def __init__(self, model: MetaModel, images: ImageArray, samples: int = SAMPLES, seed: int = 0) -> None:
        self.model, self.images, self.samples, self.seed = model, images, samples, seed
        self.pixels = images.shape[1] * images.shape[2]
        nothing = torch.zeros(len(images), self.pixels, dtype=torch.bool)
        self.tasks = whole_images(images, nothing).to(next(model.parameters()).device)
        self._features = model.encoder.encode(self.tasks.whole)

    def posterior(self, shown: Bool[Tensor, "image pixel"]) -> Posterior:
        """What the model knows when these pixels are shown."""
        shown = shown.to(self._features.device)
        (representation,) = self.model.represent(self._features, shown)
        return self.model.posterior(representation, self.model.read(replace(self.tasks.whole, mask=shown)))

    @torch.no_grad()
    def uncertain_contexts(self, sizes: Sequence[int]) -> list[Bool[Tensor, "image pixel"]]:
        """Contexts that begin as the random ones of `sizes[0]` and grow by the pixels of largest deviation."""
        shown = random_contexts(self.images, sizes[:1], self.seed)[0]
        contexts = [shown]
        for size in sizes[1:]:
            while size < self.pixels and (count := int(shown[0].sum())) < size:
                std = self.posterior(shown).predict(self.tasks.x, self.samples, self.seed).std.cpu()
                doubt = std.square().mean(-1).masked_fill(shown, -1.0)  # (image, pixel)
                new = min(size - count, max(1, count // ROUND_SHARE))
                shown = shown.scatter(1, doubt.topk(new).indices, True)
            shown = torch.ones_like(shown) if size == self.pixels else shown
            contexts.append(shown)
        return contexts

    @torch.no_grad()
    def scores(self, shown: Bool[Tensor, "image pixel"]) -> dict[str, float]:
        """Means over images: PSNR of the completed picture, LL over all pixels, spread between sampled pictures."""
        posterior, y = self.posterior(shown), self.tasks.y
        plain = posterior.predict(self.tasks.x)
        sampled = posterior.predict(self.tasks.x, self.samples, self.seed)
        completed = torch.where(shown.to(y.device)[..., None], y, sampled.mean.clamp(0, 1))
        truth = self.images.astype(float) / 255
        log_prob = gaussian_log_prob(y, plain.mean, plain.std)
        return {
            "PSNR": float(psnr(truth, completed.double().cpu().numpy().reshape(truth.shape)).mean()),
            "LL": float(task_means(log_prob, self.tasks.mask).mean()),
            "spread": float(sampled.spread.mean()),
        }
