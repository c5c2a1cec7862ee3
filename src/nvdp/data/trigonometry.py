"""The trigonometry toy: y = a f(2x − bπ) with f one of sine, cosine, tanh (appendix E)."""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from nvdp.data.source import VALIDATION_CHUNK
from nvdp.randomness import derived_generator
from nvdp.tasks import TaskBatch

FUNCTIONS = {"sine": torch.sin, "cosine": torch.cos, "tanh": torch.tanh}
AMPLITUDES, SHIFTS = (1.5, 2.0), (-0.1, 0.1)
TRAINING_POINTS, GRID_POINTS, CONTEXT_SIZE = 50, 200, 4


@dataclass(frozen=True)
class TrigonometryBatch(TaskBatch):
    """Tasks that remember which function each was made from, an index into ``FUNCTIONS``."""

    kind: Int[Tensor, " task"]


@dataclass(frozen=True)
class TrigonometryTasks:
    """Four context points of a scaled sine, cosine or tanh on [−π, π]."""

    name: ClassVar[str] = "trig"
    x_dim: ClassVar[int] = 1
    y_dim: ClassVar[int] = 1

    def training_batch(self, seed: int, step: int, tasks: int) -> TrigonometryBatch:
        """Points at random places, the first four of them the context."""
        generator = derived_generator(seed, "trig", "train", step)
        x = math.pi * (2 * torch.rand(tasks, TRAINING_POINTS, 1, generator=generator) - 1)
        is_context = (torch.arange(TRAINING_POINTS) < CONTEXT_SIZE).expand(tasks, -1).clone()
        return _draw(x, is_context, generator)

    def validation_chunk(self, seed: int, chunk: int) -> TrigonometryBatch:
        """Functions on a 200-point grid of which four random points are the context."""
        generator = derived_generator(seed, "trig", "validation", chunk)
        x = torch.linspace(-math.pi, math.pi, GRID_POINTS)[None, :, None].expand(VALIDATION_CHUNK, -1, -1)
        order = torch.rand(VALIDATION_CHUNK, GRID_POINTS, generator=generator).argsort(-1)
        return _draw(x.clone(), order.argsort(-1) < CONTEXT_SIZE, generator)


def _draw(x: Float[Tensor, "task point 1"], is_context: Tensor, generator: torch.Generator) -> TrigonometryBatch:
    shape = (len(x), 1, 1)
    amplitude = AMPLITUDES[0] + (AMPLITUDES[1] - AMPLITUDES[0]) * torch.rand(shape, generator=generator)
    shift = SHIFTS[0] + (SHIFTS[1] - SHIFTS[0]) * torch.rand(shape, generator=generator)
    kind = torch.randint(len(FUNCTIONS), (len(x),), generator=generator)
    inner = 2 * x - shift * math.pi
    values = torch.stack([function(inner) for function in FUNCTIONS.values()])  # (kind, task, point, 1)
    y = amplitude * values[kind, torch.arange(len(x))]
    return TrigonometryBatch(x, y, is_context, torch.ones_like(is_context), kind)
