"""Few-shot images: classify new characters from one or five drawings of each, with `NVDPClassifier`.

    NVDP_DATA=DIR python examples/few_shot_images.py      # under two minutes of one core

Omniglot's drawings are averaged over 2 × 2 pixels and used as vectors. The classifier is meta-trained on tasks of 5
training characters and tested on new characters. The baseline is the nearest class mean of the same vectors.
Convolutions are much better for images: see docs/fewshot.md.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch

from nvdp.data.episodes import EpisodeConfig, class_source, draw_episodes
from nvdp.plots.style import BLUE, FONT_SIZE, VERMILLION, WIDTH, new_figure, save_figure, tidy
from nvdp.system import use_threads
from nvdp.tables import NVDPClassifier

HERE = Path(__file__).resolve().parent.parent
WAY, QUERIES, SIDE = 5, 10, 28


def features(images: torch.Tensor) -> np.ndarray:
    """Pixels averaged over 2 × 2 squares."""
    maps = images.reshape(-1, 1, SIDE, SIDE)
    return torch.nn.functional.avg_pool2d(maps, 2).flatten(1).numpy()


def episodes(split: str, tasks: int, shot: int, seed: int) -> list[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """(features, class numbers, which of them are support) of tasks of one split."""
    pool = class_source("omniglot-fewshot").split(split)
    batch = draw_episodes(pool, EpisodeConfig(WAY, shot, QUERIES), tasks, torch.Generator().manual_seed(seed))
    return [
        (features(x), y.argmax(-1).numpy(), context.numpy())
        for x, y, context in zip(batch.x, batch.y, batch.is_context, strict=True)
    ]


def nearest_mean(x: np.ndarray, y: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """The class whose mean is nearest to each query."""
    means = np.stack([x[y == number].mean(0) for number in range(WAY)])
    return ((queries[:, None] - means) ** 2).sum(-1).argmin(1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=300, help="number of training tasks")
    parser.add_argument("--test-tasks", type=int, default=60)
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--results", type=Path, default=HERE / "results" / "fewshot-images")
    parser.add_argument("--figures", type=Path, default=HERE / "docs" / "figures")
    arguments = parser.parse_args()
    use_threads()
    learning = episodes("train", arguments.tasks, 5, seed=0)
    classifier = NVDPClassifier(steps=arguments.steps).meta_fit((x, y) for x, y, _ in learning)
    result: dict[str, object] = {
        "training_tasks": arguments.tasks,
        "test_tasks": arguments.test_tasks,
        "way": WAY,
        "steps": classifier.meta_steps_,
        "accuracy": {},
    }
    shown = None
    accuracy: dict[str, dict[str, float]] = {}
    for shot in (1, 5):
        right: dict[str, list[float]] = {"nvdp": [], "nearest class mean": []}
        for x, y, support in episodes("test", arguments.test_tasks, shot, seed=1):
            said = {
                "nvdp": classifier.fit(x[support], y[support]).predict(x[~support]),
                "nearest class mean": nearest_mean(x[support], y[support], x[~support]),
            }
            for name, labels in said.items():
                right[name].append(float((labels == y[~support]).mean()))
            if shown is None:
                shown = (x, y, support, classifier.predict_proba(x[~support]))
        accuracy[f"{shot}-shot"] = {name: round(float(np.mean(values)), 4) for name, values in right.items()}
    result["accuracy"] = accuracy
    arguments.results.mkdir(parents=True, exist_ok=True)
    text = json.dumps(result, indent=1)
    (arguments.results / "omniglot.json").write_text(text + "\n")
    print(text)
    assert shown is not None
    for path in draw(*shown, arguments.figures / "few-shot-images.png"):
        print(f"drew {path}")


def draw(x: np.ndarray, y: np.ndarray, support: np.ndarray, probabilities: np.ndarray, path: Path) -> list[Path]:
    """One test task: the support drawing of each class, and two queries of each with their probabilities."""
    figure = new_figure(WIDTH, 0.9 * WIDTH)
    grid = figure.subplots(WAY, 5, width_ratios=[1, 1, 1.6, 1, 1.6])
    queries, labels = x[~support], y[~support]
    for row in range(WAY):
        _picture(grid[row, 0], x[support][row], "shown" if row == 0 else "")
        for column, place in enumerate(np.flatnonzero(labels == row)[:2]):
            _picture(grid[row, 1 + 2 * column], queries[place], "query" if row == 0 else "")
            axes = grid[row, 2 + 2 * column]
            colours = [BLUE if number == row else VERMILLION for number in range(WAY)]
            axes.bar(np.arange(1, WAY + 1), probabilities[place], color=colours, width=0.7)
            axes.set_ylim(0, 1)
            axes.set_yticks([0, 1])
            axes.set_xticks(range(1, WAY + 1))
            tidy(axes)
            if row == WAY - 1:
                axes.set_xlabel("class", fontsize=FONT_SIZE)
            else:
                axes.set_xticklabels([])
            if row == 0:
                axes.set_title("probability", fontsize=FONT_SIZE)
    return save_figure(figure, path)


def _picture(axes, features: np.ndarray, title: str) -> None:
    axes.imshow(1 - features.reshape(SIDE // 2, SIDE // 2), cmap="gray", vmin=0, vmax=1)
    axes.set_xticks([])
    axes.set_yticks([])
    axes.set_title(title, fontsize=FONT_SIZE)


if __name__ == "__main__":
    main()
