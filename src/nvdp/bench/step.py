"""Suite ``step``: a training step of the six models at the paper's shapes, ours, naive, and the floor."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from nvdp.bench.cases import Case, naive_step, our_step
from nvdp.bench.floor import floor_step, training_products
from nvdp.bench.timing import Variant, Worker, interleaved
from nvdp.models.registry import build_model

GP = Case(shape="gp", tasks=16, points=75, context=50)
MNIST = Case(shape="mnist", tasks=16, points=150, context=100, x_dim=2)
CELEBA = replace(MNIST, shape="celeba", y_dim=3, representation=1_024, encoder_width=128)
PAPERS = ("nvdp", "cnp", "np", "np+vp", "np+cnp", "np+cnp+vp")
CASES = [replace(shape, model=name) for shape in (GP, MNIST, CELEBA) for name in PAPERS]
NOTES = {
    "ours": "the paper's model, default engine: bound, backward, fused Adam; data generation is not part of a step",
    "autograd": "the straightforward version in the same process, hence also with the allocator that keeps freed "
    "memory: the ratio to it is conservative",
    "autograd_default_malloc": "the same in a process with glibc's default allocator, taking its turn in every round",
    "cpu": "processor time of the process that did the work; the ratios to trust on a machine that is busy otherwise",
    "floor": "only the step's matrix products, on preallocated buffers; see nvdp.bench.floor for how they are counted",
}


def step_rows(rounds: int, cases: Sequence[Case] = CASES, warmup: int = 2) -> list[dict[str, Any]]:
    """One row a case; ratios are medians over rounds of the ratio within a round."""
    rows = []
    with Worker(torch.get_num_threads(), keep_memory=False) as worker:
        for case in cases:
            rows.append(_row(case, worker, rounds, warmup))
    return rows


def _row(case: Case, worker: Worker, rounds: int, warmup: int) -> dict[str, Any]:
    ours, naive, floor = our_step(case), naive_step(case), floor_step(case)
    variants: dict[str, Variant] = {
        "ours": lambda _: ours(),
        "autograd": lambda _: naive(),
        "floor": lambda _: floor(),
        "autograd_default_malloc": lambda _: worker.step("autograd", case),
    }
    pairs = [("ours", "floor"), ("autograd", "ours"), ("autograd_default_malloc", "ours")]
    timings = interleaved(variants, rounds, warmup)
    ratios = {}
    for name, base in pairs:
        ratios[f"{name}_over_{base}"] = timings.ratio(name, base)
        ratios[f"{name}_over_{base}_cpu"] = timings.ratio(name, base, processor=True)
    return {
        **case.columns(),
        "parameters": sum(parameter.numel() for parameter in build_model(case.config).parameters()),
        "floor_mflop": sum(product.flops for product in training_products(case)) / 1e6,
        **timings.columns(),
        **ratios,
        "tasks_per_second": 1e3 * case.tasks / timings.median("ours"),
    }
