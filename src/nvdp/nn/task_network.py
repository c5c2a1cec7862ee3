"""A classifier whose weights are arguments, for models that adapt by gradients."""

from collections.abc import Mapping

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from nvdp.nn.extractors import EPSILON, extractor_shape, pooled
from nvdp.nn.mlp import fan_in_uniform, he_uniform_
from nvdp.randomness import standard_normal

Weights = Mapping[str, Tensor]
Moments = list[tuple[Tensor, Tensor]]  # variance and mean of every block's maps


class TaskNetwork(nn.Module):
    """A classifier whose weights are arguments, for models that adapt by gradients: MAML, Meta-SGD, Meta-dropout.

    Images pass the extractor's blocks and a linear layer, features one hidden layer. With ``noisy`` each hidden
    layer's pre-activations are multiplied by softplus(a), a ~ N(μ(input), 1), where μ is a layer of the same shape
    that does not adapt (Meta-dropout, Lee et al. 2020).
    """

    def __init__(
        self,
        extractor: str,
        *,
        channels: int,
        size: int,
        features: int,
        width: int,
        num_classes: int,
        noisy: bool,
    ) -> None:
        super().__init__()
        self.channels, self.size = channels, size
        self.shape = None if extractor == "none" else extractor_shape(extractor)
        self.initial, self.noise = nn.ParameterDict(), nn.ParameterDict()
        if self.shape is None:
            self._add_linear("hidden", features, width)
            hidden = ["hidden"]
        else:
            hidden = [f"conv{block}" for block in range(self.shape.blocks)]
            for name, (inputs, outputs) in zip(hidden, self.shape.by_block(channels), strict=True):
                self.initial[f"{name}_weight"] = torch.empty(outputs, inputs, 3, 3)
                he_uniform_(self.initial[f"{name}_weight"], 9 * inputs)
                self.initial[f"{name}_scale"] = torch.ones(outputs)
                self.initial[f"{name}_bias"] = torch.zeros(outputs)
        if noisy:
            for name in hidden:
                for part in ("weight", "bias"):
                    self.noise[f"{name}_{part}"] = torch.zeros_like(self.initial[f"{name}_{part}"])
        self._add_linear("last", width if self.shape is None else features, num_classes)

    def load_blocks(self, blocks: nn.ModuleList) -> None:
        """Begin with the convolutions of an extractor's blocks."""
        with torch.no_grad():
            for index, block in enumerate(blocks):
                for own, theirs in (("weight", "weight"), ("scale", "scale"), ("bias", "shift")):
                    self.initial[f"conv{index}_{own}"].copy_(getattr(block, theirs))

    def _add_linear(self, name: str, inputs: int, outputs: int) -> None:
        self.initial[f"{name}_weight"] = fan_in_uniform(outputs, inputs, fan_in=inputs)
        self.initial[f"{name}_bias"] = torch.zeros(outputs)
        if name == "hidden":
            he_uniform_(self.initial[f"{name}_weight"], inputs)

    def forward(
        self,
        weights: Weights,
        x: Float[Tensor, "task point x"],
        moments: list[Moments] | None = None,
        generator: torch.Generator | None = None,
        noisy: bool = False,
    ) -> Float[Tensor, "task point class"]:
        """Logits of every task's points under its own weights; `noisy` samples a, otherwise a is at its mean."""
        if self.shape is None:
            hidden = self._linear("hidden", weights, x)
            if self.noise:
                hidden = hidden * self._factor(F.linear(x, *self._noise_layer("hidden")), generator, noisy)
            return self._linear("last", weights, F.relu(hidden))
        images = x.unflatten(-1, (self.channels, self.size, self.size))
        features = []
        for task, maps in enumerate(images):
            own = {name: weight[task] for name, weight in weights.items()}
            features.append(self._features(own, maps, None if moments is None else moments[task], generator, noisy))
        return self._linear("last", weights, torch.stack(features))

    def moments(self, weights: Weights, x: Float[Tensor, "task point x"]) -> list[Moments] | None:
        """Batch-norm statistics of every task's points under its own weights; None for features (no batch norm)."""
        if self.shape is None:
            return None
        images = x.unflatten(-1, (self.channels, self.size, self.size))
        seen: list[Moments] = []
        for task, maps in enumerate(images):
            seen.append([])
            self._features({name: weight[task] for name, weight in weights.items()}, maps, None, record=seen[-1])
        return seen

    def _linear(self, name: str, weights: Weights, x: Tensor) -> Tensor:
        return torch.baddbmm(weights[f"{name}_bias"][:, None], x, weights[f"{name}_weight"].mT)

    def _noise_layer(self, name: str) -> tuple[Tensor, Tensor]:
        return self.noise[f"{name}_weight"], self.noise[f"{name}_bias"]

    def _factor(self, mean: Tensor, generator: torch.Generator | None, noisy: bool) -> Tensor:
        if noisy:
            mean = mean + standard_normal(mean.shape, mean, generator)
        return F.softplus(mean)

    def _features(
        self,
        own: Weights,
        images: Float[Tensor, "image channel row column"],
        moments: Moments | None,
        generator: torch.Generator | None = None,
        noisy: bool = False,
        record: Moments | None = None,
    ) -> Float[Tensor, "image feature"]:
        assert self.shape is not None
        maps = self.shape.patched(images).contiguous(memory_format=torch.channels_last)
        for block in range(self.shape.blocks):
            name, given = f"conv{block}", maps
            maps = F.conv2d(maps, own[f"{name}_weight"], padding=1)
            scale, bias = own[f"{name}_scale"], own[f"{name}_bias"]
            if moments is None:
                if record is not None:
                    record.append(torch.var_mean(maps, (0, 2, 3), correction=0))
                maps = F.batch_norm(maps, None, None, scale, bias, True, 0.0, EPSILON)
            else:
                variance, mean = moments[block]
                factor = scale * torch.rsqrt(variance + EPSILON)
                maps = maps * factor[:, None, None] + (bias - mean * factor)[:, None, None]
            if self.noise:
                maps = maps * self._factor(F.conv2d(given, *self._noise_layer(name), padding=1), generator, noisy)
            maps = pooled(maps, self.shape.keep_odd, self.shape.window(block))
        return maps.flatten(1)
