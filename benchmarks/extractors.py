"""Images a second of the feature extractors, forward and backward, on one thread; variants take turns.

python benchmarks/extractors.py --json results/bench/extractors.json

*ours* is `nvdp.nn.extractors.ConvExtractor` in training mode. *layers* is the same by PyTorch's own convolution, batch
norm, ReLU and pooling. *convolutions* is the floor: the convolutions alone, of maps of the same sizes. Ratios are of
processor time within a round, which other load on the machine hardly changes.
"""

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from nvdp.bench.timing import interleaved, machine
from nvdp.nn.extractors import ConvExtractor, convolved, pooled
from nvdp.system import keep_freed_memory, use_threads

SHAPES = {
    "omniglot": ("conv4", 1, 28, 128),
    "miniimagenet": ("conv5", 3, 84, 32),
    "patches": ("conv5-patches", 3, 84, 64),
}


def by_layers(extractor: ConvExtractor, images: Tensor) -> Tensor:
    """Features by PyTorch's own layers."""
    maps = extractor.shape.patched(images).contiguous(memory_format=torch.channels_last)
    for index, block in enumerate(extractor.blocks):
        maps = F.batch_norm(F.conv2d(maps, block.weight, padding=1), None, None, block.scale, block.shift, True)
        maps = pooled(maps, extractor.shape.keep_odd, extractor.shape.window(index))
    return maps.flatten(1)


def convolutions(extractor: ConvExtractor, images: Tensor) -> Callable[[], None]:
    """The convolutions alone, each of maps of its own size."""
    maps, given = extractor.shape.patched(images), []
    for block in extractor.blocks:
        given.append(maps.detach())
        maps = F.max_pool2d(convolved(given[-1], block.weight), 2, ceil_mode=extractor.shape.keep_odd).detach()
    given = [each.requires_grad_(index > 0) for index, each in enumerate(given)]

    def step() -> None:
        for each, block in zip(given, extractor.blocks, strict=True):
            result = convolved(each, block.weight)
            result.backward(result.detach())

    return step


def row(name: str, rounds: int) -> dict[str, Any]:
    """The variants of one extractor."""
    kind, channels, size, batch = SHAPES[name]
    torch.manual_seed(0)
    extractor, images = ConvExtractor(kind, channels).train(), torch.rand(batch, channels, size, size)
    floor = convolutions(extractor, images)
    variants = {
        "ours": lambda _: extractor(images).square().mean().backward(),
        "layers": lambda _: by_layers(extractor, images).square().mean().backward(),
        "convolutions": lambda _: floor(),
    }
    timings = interleaved(variants, rounds)
    columns = timings.columns()
    rates = {f"{each}_images_per_second": 1e3 * batch / columns[f"{each}_cpu_ms"] for each in variants}
    ratios = {f"ours_over_{each}": timings.ratio("ours", each, processor=True) for each in ("layers", "convolutions")}
    return {"name": name, "extractor": kind, "size": size, "batch": batch, **rates, **ratios, **columns}


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=15)
    options = parser.parse_args()
    kept = keep_freed_memory()
    use_threads(1)
    rows = [row(name, options.rounds) for name in SHAPES]
    for each in rows:
        print({key: round(value, 2) for key, value in each.items() if "second" in key or "over" in key}, each["name"])
    if options.json:
        options.json.write_text(json.dumps({"machine": machine(kept), "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
