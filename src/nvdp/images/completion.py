"""Completing a picture from some of its pixels: mean, sampled pictures and predictive standard deviation."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from jaxtyping import Bool, Float, UInt8
from torch import Tensor
from torch.nn import functional as F

from nvdp.data.image_files import KINDS
from nvdp.data.images import random_pixels, whole_images
from nvdp.errors import InputError
from nvdp.evaluation.in_turn import drawn
from nvdp.evaluation.metrics import task_means
from nvdp.models.base import RegressionModel
from nvdp.posteriors.base import Posterior
from nvdp.randomness import derived_generator
from nvdp.tasks import PointSet

SAMPLES = 16
LEAST_ERROR = 1e-10  # mean squared; keeps the PSNR of a perfect picture finite


@dataclass(frozen=True)
class Completion:
    """What a model makes of a picture of which it saw some pixels; intensities in [0, 1], predictions unclipped."""

    truth: Float[np.ndarray, "row column channel"]
    is_shown: Bool[np.ndarray, "row column"]
    mean: Float[np.ndarray, "row column channel"]
    functions: Float[np.ndarray, "sample row column channel"]
    std: Float[np.ndarray, "row column channel"]

    @property
    def completed(self) -> Float[np.ndarray, "row column channel"]:
        """The shown pixels as they are and the mean everywhere else."""
        return np.where(self.is_shown[..., None], self.truth, self.mean.clip(0, 1))

    @property
    def spread(self) -> float:
        """How far the sampled pictures differ from each other: their standard deviation, averaged over pixels."""
        return float(self.functions.std(0).mean())


def complete(
    model: RegressionModel,
    picture: UInt8[np.ndarray, "row column channel"],
    is_shown: Bool[np.ndarray, "row column"],
    samples: int = SAMPLES,
    seed: int = 0,
) -> Completion:
    """Show a model some pixels of a picture and ask for all of them.

    Args:
        model: A regression model of pictures.
        picture: All its pixels; those that are not shown are not used.
        is_shown: Which pixels the model sees.
        samples: How many pictures to draw.
        seed: Of those pictures.

    Returns:
        Mean and standard deviation of ``predict(x)``, and the pictures of ``predict(x, samples, seed)``.

    >>> from nvdp import ModelConfig, build_model
    >>> picture = np.full((8, 8, 1), 200, dtype=np.uint8)
    >>> done = complete(build_model(ModelConfig("nvdp", x_dim=2)), picture, random_shown(8, 0.25))
    >>> done.mean.shape, done.is_shown.sum().item(), np.allclose(done.completed[done.is_shown], 200 / 255)
    ((8, 8, 1), 16, True)
    """
    check_picture(model, picture.shape[-1], "the picture")
    tasks = whole_images(picture[None], torch.from_numpy(is_shown).reshape(1, -1))
    posterior = model.adapt(tasks.context)
    prediction, sampled = posterior.predict(tasks.x), posterior.predict(tasks.x, samples, seed)
    shape = picture.shape
    return Completion(
        picture.astype(float) / 255,
        is_shown,
        prediction.mean.double().cpu().numpy().reshape(shape),
        sampled.functions.double().cpu().numpy().reshape(-1, *shape),
        prediction.std.double().cpu().numpy().reshape(shape),
    )


DRAWN_PIXELS = 197  # the largest context of training: further pixels are predicted from it, not drawn
NEW_SHARE = 20  # a pass draws one pixel for every twenty that are known: pixels of one pass do not see each other


@torch.no_grad()
def drawn_in_blocks(
    model: RegressionModel,
    images: UInt8[np.ndarray, "image row column channel"],
    shown: Bool[Tensor, "image pixel"],
    seed: int = 0,
) -> Float[np.ndarray, "image row column channel"]:
    """One picture for each image, drawn block by block: drawn pixels join the context of the next block.

    Single passes predict every pixel by itself, and average over what the picture may be. A drawn pixel decides: the
    pixels after it follow, so that two draws may be two different digits. A value is the mean of a component of the
    prediction that is drawn at random.

    Args:
        model: A regression model of pictures.
        images: All pixels; those that are not shown are not used.
        shown: The context, with as many pixels in each image.
        seed: Of the order of the pixels and of their values.

    Returns:
        Intensities in [0, 1]; shown pixels are unchanged.

    >>> from nvdp import ModelConfig, build_model
    >>> image = np.zeros((1, 6, 6, 1), dtype=np.uint8)
    >>> drawn_in_blocks(build_model(ModelConfig("cnp", x_dim=2)), image, torch.arange(36)[None] < 4).shape
    (1, 6, 6, 1)
    """
    model.eval()
    tasks = whole_images(images, shown).to(next(model.parameters()).device)
    generator = derived_generator(seed, "pictures drawn in blocks")
    order = torch.rand(shown.shape, generator=generator).masked_fill(shown.cpu(), -1).argsort(-1)  # shown ones first
    values, known, last = tasks.y.clone(), int(shown[0].sum()), min(DRAWN_PIXELS, shown.shape[1])
    while known < last:
        new = order[:, known : min(last, known + max(1, known // NEW_SHARE))].to(values.device)
        mask = torch.zeros_like(tasks.mask).scatter(1, order[:, :known].to(values.device), True)
        x = tasks.x.gather(1, new[..., None].expand(-1, -1, 2))
        prediction = model.adapt(PointSet(tasks.x, values, mask)).predict(x)
        pixels = drawn(prediction, generator, noise=False).clamp(0, 1).to(values)
        values = values.scatter(1, new[..., None].expand_as(pixels), pixels)
        known += new.shape[1]
    mask = torch.zeros_like(tasks.mask).scatter(1, order[:, :known].to(values.device), True)
    rest = model.adapt(PointSet(tasks.x, values, mask)).predict(tasks.x).mean.clamp(0, 1)
    return torch.where(mask[..., None], values, rest).double().cpu().numpy().reshape(images.shape)


def random_shown(size: int, keep: float, seed: int = 0) -> Bool[np.ndarray, "row column"]:
    """A random share of the pixels of a square picture, at least one."""
    if not 0 < keep <= 1:
        raise InputError(f"the share of pixels to keep is {keep}; expected a number above 0 and up to 1")
    count = max(1, round(keep * size**2))
    generator = derived_generator(seed, "pixels to keep")
    return random_pixels(1, size**2, count, generator).reshape(size, size).numpy()


def check_picture(model: RegressionModel, channels: int, name: str) -> None:
    """Refuse a picture that a model was not made for."""
    config = model.config
    if config.x_dim != 2 or config.y_dim not in KINDS:
        raise InputError(
            f"the model takes x of {config.x_dim} values and y of {config.y_dim}; "
            "a model of pictures takes 2 and 1 (grey) or 3 (colour)"
        )
    if channels != config.y_dim:
        hint = "save it as grey" if config.y_dim == 1 else "save it in colour, or train with --channels 1"
        raise InputError(f"{name} is {KINDS[channels]} but the model was trained on {KINDS[config.y_dim]}: {hint}")


def psnr(
    truth: Float[np.ndarray, "*image row column channel"], picture: Float[np.ndarray, "*image row column channel"]
) -> Float[np.ndarray, "*image"]:
    """Peak signal-to-noise ratio in decibels, 10 log₁₀(1 / mean squared error), of each picture.

    >>> psnr(np.zeros((4, 4, 1)), np.full((4, 4, 1), 0.1)).round(6).item()
    20.0
    """
    error = np.square(truth - picture).mean((-3, -2, -1))
    return np.asarray(10 * np.log10(1 / np.maximum(error, LEAST_ERROR)))


ImageArray = UInt8[np.ndarray, "image row column channel"]
ROUND_SHARE = 5  # a round adds one pixel for every five that are shown, so that rounds stay few
CHOICE_SAMPLES = 4
LENGTH_SCALE = 1 / 3  # over which pixels explain others, as a share of the mean distance between shown pixels


def random_contexts(images: ImageArray, sizes: Sequence[int], seed: int = 0) -> list[Bool[Tensor, "image pixel"]]:
    """Random pixels of every image, for each size; a larger context holds the smaller ones."""
    pixels = images.shape[1] * images.shape[2]
    generator = derived_generator(seed, "random contexts")
    state = generator.get_state()
    return [random_pixels(len(images), pixels, size, generator.set_state(state)) for size in sizes]


def add_explaining(
    variance: Float[Tensor, "image pixel"],
    shown: Bool[Tensor, "image pixel"],
    count: int,
    columns: int,
    length_scale: float = LENGTH_SCALE,
) -> Bool[Tensor, "image pixel"]:
    """`shown` and `count` more pixels of each image: each explains most variance that is left around it.

    A pixel explains the share exp(−distance²/scale²) of another's variance.

    >>> variance = torch.tensor([[1.0, 1.0, 1.0, 0.9, 0.0, 0.0, 0.0, 0.0, 0.0, 0.8]])
    >>> add_explaining(variance, torch.zeros(1, 10, dtype=torch.bool), 2, 10).nonzero()[:, 1]
    tensor([1, 3])
    """
    scale = max(1e-3, length_scale * math.sqrt(variance.shape[1] / max(1, int(shown.sum(-1).max()))))
    rows = variance.shape[1] // columns
    place = torch.stack(torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij"), -1).view(-1, 2)
    offsets = torch.arange(-math.ceil(3 * scale), math.ceil(3 * scale) + 1)
    kernel = torch.exp(-(offsets[:, None] ** 2 + offsets**2) / scale**2)[None, None].to(variance)
    left = variance.masked_fill(shown, 0.0)
    for _ in range(count):
        explained = F.conv2d(left.view(-1, 1, rows, columns), kernel, padding="same").flatten(1)
        chosen = explained.masked_fill(shown, -1.0).argmax(-1)
        shown = shown.scatter(1, chosen[:, None], True)
        distance = (place - place[chosen][:, None]).square().sum(-1)
        left = left * (1 - torch.exp(-distance / scale**2))
    return shown


class PixelChoice:
    """A model before some images, of which it may see any pixels: each pixel is encoded once, whatever is shown.

    Args:
        model: The model.
        images: What it completes.
        samples: Functions behind a variance.
        seed: Of the functions, and of random pixels.
        length_scale: Over which pixels explain others, as a share of the mean distance between shown pixels; 0 to
            choose by their own variance alone.
    """

    @torch.no_grad()
    def __init__(
        self,
        model: RegressionModel,
        images: ImageArray,
        samples: int = CHOICE_SAMPLES,
        seed: int = 0,
        length_scale: float = LENGTH_SCALE,
    ) -> None:
        self.model, self.images, self.samples, self.seed = model, images, samples, seed
        self.length_scale = length_scale
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
        """Contexts that begin as the random ones of `sizes[0]` and grow by the pixels that explain most variance.

        A pixel explains a share of its neighbours' variance, which falls with distance. By their own variance alone,
        pixels of one round would lie side by side.
        """
        shown = random_contexts(self.images, sizes[:1], self.seed)[0]
        contexts = [shown]
        for size in sizes[1:]:
            while size < self.pixels and (count := int(shown[0].sum())) < size:
                std = self.posterior(shown).predict(self.tasks.x, self.samples, self.seed).std.cpu()
                new = min(size - count, max(1, count // ROUND_SHARE))
                shown = add_explaining(std.square().mean(-1), shown, new, self.images.shape[2], self.length_scale)
            shown = torch.ones_like(shown) if size == self.pixels else shown
            contexts.append(shown)
        return contexts

    @torch.no_grad()
    def scores(self, shown: Bool[Tensor, "image pixel"]) -> dict[str, float]:
        """Means over images: PSNR of the completed picture, LL over all pixels, spread between sampled pictures."""
        posterior, y = self.posterior(shown), self.tasks.y
        plain = posterior.at_mean_parameters(self.tasks.x)
        sampled = posterior.predict(self.tasks.x, self.samples, self.seed)
        log_prob = plain.log_prob(y)
        return {
            "PSNR": float(self._psnr(sampled.mean, shown).mean()),
            "LL": float(task_means(log_prob, self.tasks.mask).mean()),
            "spread": float(sampled.spread.mean()),
        }

    @torch.no_grad()
    def psnr(self, shown: Bool[Tensor, "image pixel"]) -> Float[np.ndarray, " image"]:
        """PSNR of every completed picture; shown pixels keep their values."""
        return self._psnr(self.posterior(shown).predict(self.tasks.x, self.samples, self.seed).mean, shown)

    def _psnr(self, mean: Float[Tensor, "image pixel y"], shown: Tensor) -> Float[np.ndarray, " image"]:
        completed = torch.where(shown.to(mean.device)[..., None], self.tasks.y, mean.clamp(0, 1))
        truth = self.images.astype(float) / 255
        return psnr(truth, completed.double().cpu().numpy().reshape(truth.shape))
