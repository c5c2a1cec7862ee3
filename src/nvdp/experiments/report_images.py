"""The sections of table 2 and of the choice of pixels in figure 4 on the results page."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from nvdp.experiments.report_parts import score_table, steps_of
from nvdp.experiments.results import FIGURE_SUFFIX, Result
from nvdp.experiments.table1 import NAMES
from nvdp.experiments.table2 import LONG, READING_NAMES

SETTINGS = {  # title: what was trained on, what it is scored on
    "MNIST": ("mnist", None),
    "MNIST to Omniglot": ("mnist", "omniglot"),
    "CelebA": ("celeba", None),
}
TABLE2_TEXT = """Test images; the context is 3 to 197 random pixels, all others are targets. The paper's models of a set
are trained for equal steps: MNIST {mnist}, CelebA {celeba}, of 16 images, one seed, where the paper has 300 epochs
(937,500 and some three million steps). Rows that are not the paper's have as many steps as take NVDP's seconds when
timed alone: MNIST {mnist_reading}, CelebA {celeba_reading}; the one named *long* has more. Omniglot is scored with the
runs trained on MNIST. CelebA's pixels keep their colours and coordinates together and test faces are of other people,
so numbers need not match the paper's; before its representation of 1,024 the encoder is 128 wide."""
WHY_TEXT = """**Why these differ from the paper's.** A hundredth of the paper's steps on digits, less than a
thousandth on faces. On digits the NP alone is above the paper's LL and PLL, the others below; which is first depends on
the flavour. Models that read the context by convolutions see what is near a pixel from the first step on, which the
others have to learn."""
CHOICE_TEXT = """Mean over {images} test images. *Random* pixels against as many that the model chose itself, each time
those of its largest predictive standard deviation. PSNR in dB of the completed picture, in which shown pixels are as
they were; spread: standard deviation across sampled functions, mean over all pixels. On digits and signs pixels of its
own choice serve `nvdp-conv` better than random ones, and its samples differ from 10 pixels and agree from all. On faces
30 or 100 random pixels serve it better, and its samples differ again from all pixels, five times as many as it was
trained with."""


def table2_section(results: dict[str, Result], paper: dict[str, Any], budget: str = "cpu") -> str:
    """The section as Markdown; empty if there are no results."""
    if not results:
        return ""
    steps = {task: _steps(results, task, NAMES) for task in TRAINED}
    steps |= {f"{task}_reading": _steps(results, task, READING_NAMES) for task in TRAINED}
    lines = ["## Table 2: image completion", "", TABLE2_TEXT.format(**steps)]
    for title, (trained, on) in SETTINGS.items():
        rows = {
            name: result if on is None else result | {"evaluation": result["evaluations"][on]}
            for name in (*NAMES, *READING_NAMES, LONG)
            if (result := results.get(f"{name}-{trained}")) is not None
        }
        if rows:
            tasks = next(iter(rows.values()))["evaluation"]["tasks"]
            lines += ["", f"### {title}, {tasks} test images", "", *score_table(rows, paper.get(title))]
    return "\n".join([*lines, *(["", WHY_TEXT] if budget == "cpu" else [])])


TRAINED = ("mnist", "celeba")


def _steps(results: dict[str, Result], task: str, names: Sequence[str]) -> str:
    return steps_of({name: results[f"{name}-{task}"] for name in names if f"{name}-{task}" in results}) or "none"


def choice_section(folder: Path, budget: str) -> str:
    """What the model's own choice of pixels is worth."""
    path = folder / "figure4" / f"{budget}{FIGURE_SUFFIX}"
    if not path.exists():
        return ""
    data = json.loads(path.read_text())
    lines = ["## Pixels of the model's own choice", "", CHOICE_TEXT.format(images=data["images"]), ""]
    return "\n".join([*lines, *_choice_table(data["pixels"])])


def _choice_table(pixels: dict[str, Any]) -> Iterator[str]:
    sizes = list(next(iter(next(iter(pixels.values())).values()))["random"])
    head = ["set", "model", "pixels", *(f"PSNR {size}" for size in sizes), *(f"spread {size}" for size in sizes)]
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for name, models in pixels.items():
        for model, ways in models.items():
            for way, scores in ways.items():
                values = [f"{scores[size]['PSNR']:.1f}" for size in sizes]
                values += [f"{scores[size]['spread']:.3f}" for size in sizes]
                yield f"| {name} | {model} | {way} | " + " | ".join(values) + " |"
