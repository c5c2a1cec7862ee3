"""Suites ``step`` and ``growth``: the time of a training step, and how its time and memory grow.

``step``: the six models at the paper's shapes; ours, the naive version, and the floor. ``growth``: time and peak memory
of NVDP's step and of its prediction as tasks, points, width and layers grow.
"""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from nvdp.bench.cases import STEPS, Case, floor_step, naive_step, our_step, training_products
from nvdp.bench.timing import Variant, Worker, interleaved
from nvdp.models.registry import build_model
from nvdp.system import source_commit

GP = Case(shape="gp", tasks=16, points=75, context=50)
MNIST = Case(shape="mnist", tasks=16, points=150, context=100, x_dim=2)
CELEBA = replace(MNIST, shape="celeba", y_dim=3, representation=1_024, encoder_width=128)
PAPERS = ("nvdp", "cnp", "np", "np+vp", "np+cnp", "np+cnp+vp")
READERS = ("nvdp-attentive", "anp", "nvdp-conv", "convcnp")
CASES = [replace(shape, model=name) for shape in (GP, MNIST, CELEBA) for name in PAPERS]
CASES += [replace(GP, model=name, shape="gp, as shipped") for name in READERS]
STEP_NOTES = {
    "ours": "the paper's model, default engine: bound, backward, fused Adam; data generation is not part of a step",
    "autograd": "the straightforward version in the same process, hence also with the allocator that keeps freed "
    "memory: the ratio to it is conservative",
    "autograd_default_malloc": "the same in a process with glibc's default allocator, taking its turn in every round",
    "cpu": "processor time of the process that did the work; the ratios to trust on a machine that is busy otherwise",
    "floor": "only the step's matrix products, on preallocated buffers; see nvdp.bench.cases for how they are counted",
    "before": "a step of an earlier version of the package (--before) in a process of its own, with its own presets",
    "readers": "nvdp-attentive, anp, nvdp-conv and convcnp as they ship (preset cpu); autograd is the same model "
    "without hand-derived gradients, and the floor repeats the products and convolutions of a recorded step",
}

BASE = Case()
AXES: dict[str, tuple[int, ...]] = {
    "tasks": (4, 64, 256),
    "points": (10, 30, 300, 1000, 10_000),
    "width": (256, 512, 1024, 2048, 4096),
    "layers": (1, 2, 8),
}
QUICK_AXES: dict[str, tuple[int, ...]] = {"tasks": (64,), "points": (300,), "width": (256,), "layers": (8,)}
NAIVE_LIMIT = 6 * 2**30  # bytes beyond which the naive version is not run
NAIVE_GRIDS = 23  # arrays of tasks × K × D numbers that the naive version holds at its peak, measured
NAIVE_POINT_ARRAYS = 3  # and arrays of tasks × points × width for each layer, encoder included
GROWTH_NOTES = {
    "time": "ours, naive and prediction in turns in one process; medians",
    "memory": "peak of the first step above model and data, each in a process of its own: the kernel's high-water mark",
    "predict": "adapt to the contexts of all tasks, and mean and σ of all their points",
    "autograd_estimated_bytes": "where the naive version is expected to need more than 6 GiB it is not run",
}


def step_rows(
    rounds: int, cases: Sequence[Case] = CASES, warmup: int = 2, before: Path | None = None
) -> list[dict[str, Any]]:
    """One row a case; ratios are medians over rounds of the ratio within a round."""
    threads = torch.get_num_threads()
    with (
        Worker(threads, keep_memory=False) as worker,
        nullcontext() if before is None else Worker(threads, keep_memory=True, source=before) as old,
    ):
        known = {} if before is None else {"before_commit": source_commit(before / "nvdp" / "__init__.py")}
        return [_step_row(case, worker, old, rounds, warmup) | known for case in cases]


def _step_row(case: Case, worker: Worker, old: Worker | None, rounds: int, warmup: int) -> dict[str, Any]:
    ours, naive, floor = our_step(case), naive_step(case), floor_step(case)
    variants: dict[str, Variant] = {
        "ours": lambda _: ours(),
        "autograd": lambda _: naive(),
        "floor": lambda _: floor(),
        "autograd_default_malloc": lambda _: worker.step("autograd", case),
    }
    pairs = [("ours", "floor"), ("autograd", "ours"), ("autograd_default_malloc", "ours")]
    if old is not None:
        variants["before"] = lambda _: old.step("ours", case)
        pairs.append(("before", "ours"))
    timings = interleaved(variants, rounds, warmup)
    ratios = {}
    for name, base in pairs:
        ratios[f"{name}_over_{base}"] = timings.ratio(name, base)
        ratios[f"{name}_over_{base}_cpu"] = timings.ratio(name, base, processor=True)
    return {
        **case.columns(),
        "parameters": sum(parameter.numel() for parameter in build_model(case.config).parameters()),
        "floor_mflop": None if case.reads else sum(product.flops for product in training_products(case)) / 1e6,
        **timings.columns(),
        **ratios,
        "tasks_per_second": 1e3 * case.tasks / timings.median("ours"),
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
        return [{"axis": axis, **_growth_row(case, worker, rounds, seconds)} for (axis, _), case in cases.items()]


def naive_bytes(case: Case) -> int:
    """About what the naive version's step needs at its peak, from the arrays it holds.

    >>> 60 < naive_bytes(Case(width=4096)) / 2**30 < 80
    True
    """
    grid = (case.layers - 1) * case.width**2 + case.width * (case.x_dim + 2 * case.y_dim)
    weights = 4 * grid  # gradient, moments, and a temporary of the optimiser
    points = NAIVE_POINT_ARRAYS * case.points * (case.layers * case.width + case.config.encoder.layers * 128)
    return 4 * (case.tasks * (NAIVE_GRIDS * grid + points) + weights)


def _growth_row(case: Case, worker: Worker, rounds: int, seconds: float) -> dict[str, Any]:
    names = ["ours", "predict", *(["autograd"] if naive_bytes(case) <= NAIVE_LIMIT else [])]
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
