"""What limits a plain NVDP on GP functions: the inference of its rates, its decoder, or its own choice of points?

    python benchmarks/limits.py --model gp-nvdp --json results/limits/gp-nvdp.json

- *inference*: the log-likelihood of the model, and after gradient steps on each task's rates that see all points. What
  the steps gain is lost by encoder and rate networks; what is missing after them, by the decoder.
- *choice*: the log-likelihood of the model and of the exact GP after 20 points that the model, or the exact GP, chose,
  less that after random points, and how close together the chosen points lie.
"""

import argparse
import json
from copy import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import nvdp
from nvdp.active import exact_learner, follow, learn, model_learner, random_order
from nvdp.data.gp import GPTasks
from nvdp.evaluation.joint import regrouped
from nvdp.nn.dropout import MeanWeights, local_moments
from nvdp.nn.likelihoods import gaussian_log_prob
from nvdp.system import use_threads

SEED = 779  # of validation tasks that no table uses
CONTEXT, TARGETS, RATE = 100, 200, 0.05
POINTS, EVERY = 20, 4
EXPERTS = ("rows", "columns", "layer")


def inference(model: Any, steps: int) -> dict[str, float]:
    """LL of 300 points given 100 of them, and after gradient steps on the rates by all of them."""
    whole = GPTasks().validation_chunk(SEED, 0)
    tasks = regrouped(whole, CONTEXT, TARGETS, torch.Generator().manual_seed(0))
    assert tasks is not None
    with torch.no_grad():
        posterior = copy(model.posterior_given(tasks.context))
    given = posterior.rates
    logits = [
        {part: torch.logit(getattr(layer, part).detach(), eps=1e-6).requires_grad_() for part in EXPERTS}
        for layer in given
    ]
    optimizer = torch.optim.Adam([expert for layer in logits for expert in layer.values()], lr=RATE)
    last = list(model.network.dropout_layers())[-1]
    scores = []
    for _ in range(steps + 1):
        rates = [
            replace(layer, **{part: expert.sigmoid() for part, expert in own.items()})
            for layer, own in zip(given, logits, strict=True)
        ]
        hidden = model.network.hidden(tasks.x, rates, MeanWeights(), None)
        mean, spread = local_moments(last, hidden, rates[-1])
        std = (spread.square() + model.likelihood.noise(mean).square()).sqrt()
        score = gaussian_log_prob(tasks.y, mean, std).mean()
        scores.append(score.item())
        optimizer.zero_grad()
        (-score).backward()
        optimizer.step()
    smallest = torch.tensor(model.config.likelihood.min_std)
    limit = gaussian_log_prob(torch.zeros(()), torch.zeros(()), smallest).item()
    return {"inferred": scores[0], "after_steps": scores[-1], "steps": steps, "limit_of_sigma": limit}


def choice(model: Any, chunks: int) -> dict[str, Any]:
    """LL after 20 points by who chose them and who learns, differences to random points, and distances of points."""
    learners = {"model": model_learner(model), "exact GP": exact_learner(model.config.likelihood.min_std)}
    gains: dict[str, list[torch.Tensor]] = {}
    nearest: dict[str, list[torch.Tensor]] = {}
    for chunk in range(chunks):
        batch = GPTasks().validation_chunk(SEED, chunk)
        parts = {part: getattr(batch, part)[:, ::EVERY] for part in ("x", "y", "is_context", "mask")}
        tasks = replace(batch, **parts)
        order = random_order(tasks, POINTS, SEED, chunk)
        orders = {name: learn(each, tasks, order[:, :1], POINTS - 1).order for name, each in learners.items()}
        for name, each in learners.items():
            by_chance = follow(each, tasks, order, [POINTS]).scores["LL"][:, -1]
            for chooser, own in orders.items():
                gain = follow(each, tasks, own, [POINTS]).scores["LL"][:, -1] - by_chance
                gains.setdefault(f"{name} learns, {chooser} chooses", []).append(gain)
        for name, own in {"random": order, **orders}.items():
            place = tasks.x[..., 0].gather(1, own).sort(-1).values
            nearest.setdefault(name, []).append(place.diff(dim=-1).amin(-1))
    return {
        "tasks": sum(map(len, next(iter(gains.values())))),
        "gain_over_random": {name: _summary(torch.cat(parts)) for name, parts in gains.items()},
        "smallest_distance": {name: torch.cat(parts).mean().item() for name, parts in nearest.items()},
    }


def _summary(gain: torch.Tensor) -> dict[str, float]:
    low, middle = gain.double().quantile(torch.tensor([0.05, 0.5], dtype=torch.float64)).tolist()
    return {"mean": gain.mean().item(), "stderr": (gain.std() / len(gain) ** 0.5).item(), "q05": low, "median": middle}


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="gp-nvdp", help="a pretrained name or a run folder")
    parser.add_argument("--steps", type=int, default=300, help="gradient steps on the rates")
    parser.add_argument("--chunks", type=int, default=2, help="of 64 tasks, for the choice of points")
    parser.add_argument("--json", type=Path, help="where to write the numbers")
    options = parser.parse_args()
    use_threads(1)
    model = nvdp.load(options.model).model
    result = {"inference": inference(model, options.steps), "choice": choice(model, options.chunks)}
    text = json.dumps({"model": options.model, **result}, indent=1)
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(text + "\n")
    print(text)


if __name__ == "__main__":
    main()
