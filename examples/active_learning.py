"""Active learning: observe the point that the model suggests, adapt again, repeat.

    python examples/active_learning.py --out active.png

The pretrained GP model sees two points of a new function and asks for one more point at a time. The figure shows its
predictions after 2, 5, 10 and 15 points, and the same for random points. The errors of both are printed.
"""

import argparse
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import nvdp
from nvdp.data.gp import GPTaskBatch
from nvdp.plots import FunctionPanel, figure_functions, five_point_task, gp_function_panel
from nvdp.system import use_threads

SIZES, FIRST = (2, 5, 10, 15), 2


def ask(model: nvdp.MetaModel, task: GPTaskBatch, first: Tensor, by: str) -> Tensor:
    """Indices of the points of the task in the order of observation."""
    x, y, order = task.x[0], task.y[0], first
    while len(order) < max(SIZES):
        unknown = torch.ones(len(x), dtype=torch.bool)
        unknown[order] = False
        left = unknown.nonzero()[:, 0]
        new = left[model.adapt(x[order], y[order]).suggest(x[left], by=by)]
        order = torch.cat([order, new])
    return order


def rmse(model: nvdp.MetaModel, task: GPTaskBatch, order: Tensor) -> float:
    x, y = task.x[0], task.y[0]
    mean = model.adapt(x[order], y[order]).predict(x, samples=64).mean
    return float((mean - y).square().mean().sqrt())


def panel(model: nvdp.MetaModel, task: GPTaskBatch, order: Tensor, row: str) -> FunctionPanel:
    shown = torch.zeros_like(task.is_context)
    shown[0, order] = True
    return gp_function_panel(model, f"{len(order)} points", row, replace(task, is_context=shown))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="gp", help="a pretrained model, or the folder of a run on gp")
    parser.add_argument(
        "--by", choices=("spread", "std"), default="spread", help="uncertainty that ranks the candidates"
    )
    parser.add_argument("--seed", type=int, default=4)
    parser.add_argument("--out", type=Path, default=Path("active.png"))
    arguments = parser.parse_args()
    use_threads()
    model, task = nvdp.load(arguments.model).model, five_point_task(arguments.seed)
    generator = torch.Generator().manual_seed(arguments.seed)
    at_random = torch.randperm(task.x.shape[1], generator=generator)[: max(SIZES)]
    orders = {"own choice": ask(model, task, at_random[:FIRST], arguments.by), "random": at_random}
    for way, order in orders.items():
        print(way, *(f"{size} points: RMSE {rmse(model, task, order[:size]):.3f}" for size in SIZES), sep="; ")
    panels = [panel(model, task, order[:size], way) for way, order in orders.items() for size in SIZES]
    for path in figure_functions(panels, arguments.out):
        print(f"drew {path}")


if __name__ == "__main__":
    main()
