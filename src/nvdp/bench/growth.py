"""Suite ``growth``: time and peak memory of NVDP's training step as tasks, points, width and layers grow."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from nvdp.bench.cases import STEPS, Case
from nvdp.bench.timing import Variant, Worker, interleaved

BASE = Case()
AXES: dict[str, tuple[int, ...]] = {
    "tasks": (4, 64, 256),
    "points": (10, 30, 300, 1000),
    "width": (256, 512, 1024, 2048, 4096),
    "layers": (1, 2, 8),
}
QUICK_AXES: dict[str, tuple[int, ...]] = {"tasks": (64,), "points": (300,), "width": (256,), "layers": (8,)}
NAIVE_LIMIT = 6 * 2**30  # bytes beyond which the naive version is not run
NAIVE_GRIDS = 23  # arrays of tasks × K × D numbers that the naive version holds at its peak, measured
NAIVE_POINT_ARRAYS = 3  # and arrays of tasks × points × width for each layer, encoder included
NOTES = {
    "time": "ours and naive in turns in one process; medians",
    "memory": "peak of the first step above model and data, each in a process of its own: the kernel's high-water mark",
    "autograd_estimated_bytes": "where the naive version is expected to need more than 6 GiB it is not run",
}


def growth_rows(
    rounds: int, seconds: float, axes: Mapping[str, Sequence[int]] = AXES, base: Case = BASE
) -> list[dict[str, Any]]:
    """The base case, then one row for each value of each axis; a case takes at most about that many seconds."""
    cases = {("base", 0): base}
    for axis, values in axes.items():
        for value in values:
            change: dict[str, Any] = {axis: value}
            if axis == "points":
                change["context"] = value * 2 // 3
            cases[axis, value] = replace(base, **change)
    with Worker(torch.get_num_threads(), keep_memory=True) as worker:
        return [{"axis": axis, **_row(case, worker, rounds, seconds)} for (axis, _), case in cases.items()]


def naive_bytes(case: Case) -> int:
    """About what the naive version's step needs at its peak, from the arrays it holds.

    >>> 60 < naive_bytes(Case(width=4096)) / 2**30 < 80
    True
    """
    grid = (case.layers - 1) * case.width**2 + case.width * (case.x_dim + 2 * case.y_dim)
    weights = 4 * grid  # gradient, moments, and a temporary of the optimiser
    points = NAIVE_POINT_ARRAYS * case.points * (case.layers * case.width + case.config.encoder.layers * 128)
    return 4 * (case.tasks * (NAIVE_GRIDS * grid + points) + weights)


def _row(case: Case, worker: Worker, rounds: int, seconds: float) -> dict[str, Any]:
    names = ["ours", "autograd"] if naive_bytes(case) <= NAIVE_LIMIT else ["ours"]
    memory: dict[str, Any] = {"autograd_peak_bytes": None, "autograd_estimated_bytes": naive_bytes(case)}
    for name in names:
        memory[f"{name}_peak_bytes"] = worker.peak_memory(name, case)
    timings = interleaved({name: _variant(name, case) for name in names}, rounds, seconds=seconds)
    other = memory["autograd_peak_bytes"] or memory["autograd_estimated_bytes"]
    return {
        **case.columns(),
        "autograd_ms": None,
        "floor_ms": None,
        **timings.columns(),
        **memory,
        "autograd_over_ours": timings.ratio("autograd", "ours") if "autograd" in names else None,
        "ours_memory_over_autograd": memory["ours_peak_bytes"] / other,
        "autograd_skipped": "autograd" not in names,
    }


def _variant(name: str, case: Case) -> Variant:
    step = STEPS[name](case)
    return lambda _: step()
