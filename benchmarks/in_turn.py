"""Milliseconds of feeding targets back into the context, one at a time: updates where sums are kept, or adapting again.

    python benchmarks/in_turn.py --json results/bench/in_turn.json

Each target is predicted and then joins the context. A model that keeps sums of its context's points updates them; the
same model is also measured with a new adaptation for each target. Models whose targets read the context always adapt
again. The two ways take turns; one thread.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import torch

import nvdp
from nvdp.bench.timing import Variant, interleaved, machine
from nvdp.evaluation.in_turn import Chain
from nvdp.system import keep_freed_memory, source_commit, use_threads, write_text

MODELS, TARGETS, CONTEXT = ("gp-nvdp", "gp", "general"), (30, 100, 300), 5
UPDATED, AGAIN = "updated", "adapted_again"


def fed_back(predictor: Any, targets: int, again: bool) -> Variant:
    """Predict and add that many targets, one after the other."""
    order = torch.randperm(CONTEXT + targets, generator=torch.Generator().manual_seed(0))
    x = torch.linspace(-2, 2, CONTEXT + targets, dtype=torch.float64)[order][:, None]
    y = torch.sin(2 * x)

    def work(turn: int) -> None:
        chain = Chain(predictor.adapt, x[:CONTEXT], y[:CONTEXT])
        chain.remembers = chain.remembers and not again
        for place in range(CONTEXT, CONTEXT + targets):
            chain.posterior.predict(x[place : place + 1])
            chain.add(x[place : place + 1], y[place : place + 1])

    return work


def main() -> None:
    """Measure, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path, help="the file to write")
    options = parser.parse_args()
    kept = keep_freed_memory()
    use_threads(1)
    about = {"suite": "in_turn", "commit": source_commit() or nvdp.__version__, "machine": machine(kept)}
    rows = []
    for name in MODELS:
        predictor = nvdp.load(name)
        chain = Chain(predictor.adapt, torch.zeros(1, 1), torch.zeros(1, 1))
        for targets in TARGETS:
            ways: dict[str, Variant] = {AGAIN: fed_back(predictor, targets, True)}
            if chain.remembers:
                ways[UPDATED] = fed_back(predictor, targets, False)
            times = interleaved(ways, options.rounds)
            row = {"model": name, "context": CONTEXT, "targets": targets, **times.columns()}
            print(row)
            rows.append(row)
    if options.json:
        write_text(options.json, json.dumps(about | {"rows": rows}, indent=1) + "\n")
        print(f"wrote {options.json}")


if __name__ == "__main__":
    main()
