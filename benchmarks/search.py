"""What a step should learn from, and by which optimiser: recipes of models for equal seconds.

    python benchmarks/search.py --seconds 60 [--only NAME ...]           # adds to results/bench/search.json
    python benchmarks/search.py --task celeba --seconds 60               # adds to results/bench/search-celeba.json

The seconds are those of a nominal core: each recipe's step is timed in turns with a reference step, and its number of
steps is what fits into the seconds if the reference takes 43.2 ms (measured once with nothing else running). So a busy
machine does not change the result. Scored on tasks of another seed than the validation set, images on validation
images; rows that exist are kept.
"""

import argparse
import json
import time
from pathlib import Path

from nvdp.data.registry import task_source
from nvdp.data.source import NO_DATA, validation_tasks
from nvdp.evaluation.metrics import evaluate
from nvdp.experiments.plan import FORMER_PLAIN, FORMER_READING, USUAL_BOUND
from nvdp.system import keep_freed_memory, use_threads, write_text
from nvdp.training.loop import Trainer, trainer_in_memory
from nvdp.training.preset_rules import MIXTURE
from nvdp.training.presets import preset_config, shortened

FOLDER = Path(__file__).resolve().parents[1] / "results" / "bench"
REFERENCE_MS, SEED, SAMPLES, ROUNDS, STEPS = 43.2, 4242, 2, 8, 5
TASKS = {"gp": 1_024, "mnist": 512, "celeba": 256}  # that score
ADAM_16 = {"tasks_per_step": 16, "optimizer": "adam", "learning_rate": 3e-3}
MUON = {"optimizer": "muon", "muon_rows": 128, "learning_rate": 6e-3}
DEPTHWISE = {"convolution.dense": False, "convolution.kernel": 7}
REFERENCE = "nvdp-conv, former preset, depthwise, Adam, 16 tasks"
GP_VARIANTS = {  # model, settings of the run, settings of the model
    "nvdp, NAdam": ("nvdp", FORMER_PLAIN | {"learning_rate": 2e-3}, {}),
    "nvdp, Muon": ("nvdp", MUON, {}),
    "nvdp, Muon, learning rate 0.012": ("nvdp", MUON | {"learning_rate": 1.2e-2}, {}),
    "nvdp, paper's bound, NAdam": ("nvdp", FORMER_PLAIN, USUAL_BOUND),
    "nvdp, paper's bound, Muon": ("nvdp", MUON, USUAL_BOUND),
    "cnp, NAdam": ("cnp", FORMER_PLAIN, {}),
    "cnp, Muon": ("cnp", MUON, {}),
    "np+cnp+vp, NAdam": ("np+cnp+vp", FORMER_PLAIN, {}),
    "np+cnp+vp, Muon": ("np+cnp+vp", MUON, {}),
    "nvdp-conv": ("nvdp-conv", {}, {}),
    "nvdp-conv, Muon for 128 rows": ("nvdp-conv", {"muon_rows": 128}, {}),
    "nvdp-conv, 16 tasks": ("nvdp-conv", {"tasks_per_step": 16}, {}),
    "nvdp-conv, 4 tasks": ("nvdp-conv", {"tasks_per_step": 4}, {}),
    "nvdp-conv, Adam": ("nvdp-conv", {"optimizer": "adam"}, {}),
    "nvdp-conv, learning rate 0.006": ("nvdp-conv", {"learning_rate": 6e-3}, {}),
    "nvdp-conv, targets alone": ("nvdp-conv", {}, {"likelihood.scored": "targets"}),
    "nvdp-conv, depthwise": ("nvdp-conv", {}, DEPTHWISE),
    "nvdp-conv, depthwise, 4 tasks": ("nvdp-conv", {"tasks_per_step": 4}, DEPTHWISE),
    "nvdp-conv, depthwise, Adam": ("nvdp-conv", {"optimizer": "adam"}, DEPTHWISE),
    "nvdp-conv, depthwise, 16 tasks": ("nvdp-conv", {"tasks_per_step": 16}, DEPTHWISE),
    "nvdp-conv, former preset": ("nvdp-conv", {}, FORMER_READING["nvdp-conv"]),
    "nvdp-conv, three quarters of the joint density": ("nvdp-conv", {}, {"likelihood.joint_share": 0.75}),
    "nvdp-conv, task norm": ("nvdp-conv", {}, {"encoder.task_norm": True}),
    REFERENCE: ("nvdp-conv", ADAM_16, FORMER_READING["nvdp-conv"] | DEPTHWISE),
    "convgnp": ("convgnp", {}, {}),
    "convgnp, Adam, 16 tasks": ("convgnp", ADAM_16, {}),
    "convcnp": ("convcnp", {}, {}),
    "convcnp, Adam, 16 tasks": ("convcnp", ADAM_16, {}),
    "nvdp-attentive": ("nvdp-attentive", {}, {}),
    "nvdp-attentive, Muon for 128 rows": ("nvdp-attentive", {"muon_rows": 128}, {}),
    "nvdp-attentive, former preset": ("nvdp-attentive", {}, FORMER_READING["nvdp-attentive"]),
    "nvdp-attentive, half the joint density": ("nvdp-attentive", {}, {"likelihood.joint_share": 0.5}),
    "nvdp-attentive, three quarters of the joint density": ("nvdp-attentive", {}, {"likelihood.joint_share": 0.75}),
    "nvdp-attentive, task norm": ("nvdp-attentive", {}, {"encoder.task_norm": True}),
    "nvdp-attentive, learning rate 0.003": ("nvdp-attentive", {"learning_rate": 3e-3}, {}),
    "nvdp-attentive, Adam, 16 tasks": ("nvdp-attentive", {**ADAM_16, "learning_rate": 1e-3}, {}),
}
R_OF_256 = {"encoder.size": 256}  # the presets have 128 on MNIST and 1,024 on CelebA
IMAGE_VARIANTS = {  # plain models with noise of eight Gaussians, and contexts of the paper's sizes
    f"{model}, {optimizer}{encoder}": (model, {"data": NO_DATA} | run, MIXTURE | architecture)
    for model in ("nvdp", "cnp")
    for encoder, architecture in {"": {}, ", r of 256": R_OF_256}.items()
    for optimizer, run in {
        "NAdam": {},
        "Muon": MUON,
        "Muon, learning rate 0.012": MUON | {"learning_rate": 1.2e-2},
    }.items()
}
VARIANTS = {"gp": GP_VARIANTS, "mnist": IMAGE_VARIANTS, "celeba": IMAGE_VARIANTS}


def trainer(task: str, name: str, steps: int) -> Trainer:
    """Of a new model; the reference is always on GP functions."""
    if name == REFERENCE:
        task = "gp"
    model, run, architecture = VARIANTS[task][name]
    config = preset_config(task, model, "quick", architecture=architecture, **run)
    return trainer_in_memory(shortened(config, steps), task_source(task, config.data))


def seconds_of(trained: Trainer, steps: int) -> float:
    """Processor seconds of so many steps."""
    began = time.process_time()
    for _ in range(steps):
        trained.take_step()
    return time.process_time() - began


def row(task: str, name: str, seconds: float) -> dict:
    """Train a recipe for the nominal seconds and score it."""
    both = [trainer(task, which, 10**6) for which in (REFERENCE, name)]
    for trained in both:
        seconds_of(trained, STEPS)
    reference, ours = map(sum, zip(*[[seconds_of(t, STEPS) for t in both] for _ in range(ROUNDS)], strict=True))
    milliseconds = REFERENCE_MS * ours / reference
    trained = trainer(task, name, max(1, round(1e3 * seconds / milliseconds)))
    for _ in trained.steps():
        pass
    batches = validation_tasks(task_source(task), SEED, TASKS[task])
    found = evaluate(trained.model.eval(), batches, SAMPLES)
    model, run, architecture = VARIANTS[task][name]
    return {
        "name": name,
        "model": model,
        "settings": {key: value for key, value in run.items() if key != "data"} | architecture,
        "seconds": seconds,
        "tasks": TASKS[task],
        "steps": trained.step,
        "ms": milliseconds,
        **{metric: found["scores"][metric]["mean_parameters"] for metric in ("LL", "RLL", "PLL")},
        **{f"{metric}_expected_log": found["scores"][metric]["expected_log"] for metric in ("LL", "RLL", "PLL")},
        "spread": found["spread"],
        "mean_rate": found["mean_rate"],
    }


def main() -> None:
    """Train what is missing and add it to the file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--task", default="gp", choices=list(VARIANTS))
    parser.add_argument("--only", nargs="*", help="names of recipes; all by default")
    parser.add_argument("--json", type=Path, help="default: search.json or search-TASK.json in results/bench")
    given = parser.parse_args()
    task, names = given.task, given.only or list(VARIANTS[given.task])
    if unknown := set(names) - set(VARIANTS[task]):
        parser.error(f"unknown recipes of {task}: {sorted(unknown)}; expected some of {list(VARIANTS[task])}")
    file = given.json or FOLDER / ("search.json" if task == "gp" else f"search-{task}.json")
    keep_freed_memory()
    use_threads(1)
    rows = json.loads(file.read_text())["rows"] if file.exists() else []
    for name in names:
        if (name, given.seconds) not in [(done["name"], done["seconds"]) for done in rows]:
            rows.append(row(task, name, given.seconds))
            print(json.dumps(rows[-1]), flush=True)
            rows.sort(key=lambda done: (done["seconds"], -done["PLL"]))
            write_text(file, json.dumps({"seed": SEED, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
