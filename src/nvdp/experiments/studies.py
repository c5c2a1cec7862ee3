"""Studies beyond the paper's tables. In most of them, each run makes one change to a base run.

A change is a setting and its new value; settings of the model begin with "model.".
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from nvdp.experiments.plan import (
    FORMER_READING,
    TUNING_SEED,
    USUAL_BOUND,
    Experiment,
    PlannedRun,
    changed,
    former_preset,
    paper_architecture,
)
from nvdp.experiments.table3 import extractors_of
from nvdp.experiments.table3 import prepare as prepare_extractors
from nvdp.objectives import KLScale
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config

Changes = dict[str, dict[str, Any]]
SHIPPED = "shipped"  # the base run where it is the preset as it is
PAPER_STEPS, PAPER_TASKS = 500_000, 50_000
TASKS = {"quick": 64, "cpu": 2_048, "paper": PAPER_TASKS}


def _kl(reduction: str, weight: float) -> dict[str, Any]:
    return {"kl": KLScale(reduction, weight)}


# Models whose targets read the context, with as many steps as take the time of 10,000 steps of NVDP. A step of
# NVDP-attentive by its former preset costs 2 times that of NVDP, NVDP-conv 1.1 times, ANP 1.4 times, ConvCNP 0.8 times.
READING_STEPS = {"nvdp-attentive": 5_000, "nvdp-conv": 9_000, "anp": 7_000, "convcnp": 12_000}
PRESET_STEPS = {"nvdp-attentive": 4_700, "nvdp-conv": 8_400}  # the same time by the presets as they are
LONG = "nvdp-conv"  # trained as long as its preset says, too; and with rates as the only path from the context
RATES_ALONE = {"decoder.reads": False, "decoder.width": 256, "inputs.fourier": 8}


def attentive(budget: str) -> Sequence[PlannedRun]:
    """One run for each model that reads the context, learned variance."""
    rows = []
    for name, cpu_steps in READING_STEPS.items():
        steps = {"quick": 60, "cpu": cpu_steps, "paper": PAPER_STEPS}[budget]
        rows.append(PlannedRun(name, former_preset("gp", name, budget, steps=steps), TASKS[budget]))
    if budget == "cpu":
        alone = former_preset("gp", LONG, budget, architecture=RATES_ALONE)
        rows.append(PlannedRun(f"{LONG}-long", former_preset("gp", LONG, budget), TASKS[budget]))
        rows.append(PlannedRun(f"{LONG}-rates-alone", alone, TASKS[budget]))
        for name, steps in PRESET_STEPS.items():
            rows.append(PlannedRun(f"{name}-preset", preset_config("gp", name, budget, steps=steps), TASKS[budget]))
    return rows


def learning(budget: str) -> Sequence[PlannedRun]:
    """NVDP and CNP with the paper's architecture, learned variance, trained longer than in table 1."""
    steps = {"quick": 150, "cpu": 36_000, "paper": PAPER_STEPS}[budget]
    tasks = {"quick": 64, "cpu": 4_096, "paper": PAPER_TASKS}[budget]
    return [
        PlannedRun(name, paper_architecture(former_preset("gp", name, budget, steps=steps)), tasks)
        for name in ("nvdp", "cnp")
    ]


def quarter(budget: str) -> Sequence[PlannedRun]:
    """NVDP by the paper's recipe, and the shipped models with a quarter of its steps or fewer."""
    steps = {"quick": 200, "cpu": 100_000, "paper": 100_000}[budget]
    preset = former_preset("gp", "nvdp", "cpu", architecture=USUAL_BOUND)
    attentive_steps = READING_STEPS["nvdp-attentive"] if budget == "cpu" else steps // 8
    configs = {
        "paper-recipe": preset_config("gp", "nvdp", "tuned", steps=steps),
        "shipped-recipe": replace(preset, steps=steps // 4),
        "shipped-preset": preset if budget == "cpu" else replace(preset, steps=steps // 2),
        "nvdp-attentive": former_preset("gp", "nvdp-attentive", "cpu", steps=attentive_steps),
    }
    return [PlannedRun(name, config, TASKS[budget]) for name, config in configs.items()]


LONG_MODELS = ("nvdp", "cnp", "np+cnp", "np+cnp+vp")


def long(budget: str) -> Sequence[PlannedRun]:
    """Four of the paper's models by Muon, NVDP by the paper's bound: equal steps, more than in table 1."""
    steps = {"quick": 150, "cpu": 40_000, "paper": PAPER_STEPS}[budget]
    run: dict[str, Any] = {"steps": steps, "learning_rate": 6e-3, "architecture": USUAL_BOUND}
    return [PlannedRun(name, preset_config("gp", name, "cpu", **run), TASKS[budget]) for name in LONG_MODELS]


RECIPES: Changes = {
    SHIPPED: {},
    "learning-rate-0.0005": {"learning_rate": 5e-4},
    "learning-rate-0.002": {"learning_rate": 2e-3},
    "schedule-constant": {"schedule": "constant"},
    "no-clipping": {"gradient_clip": None},
    "optimizer-adam": {"optimizer": "adam"},
    "kl-0.01": _kl("elbo", 0.01),
    "no-task-norm": {"model.encoder.task_norm": False},
    "no-fourier": {"model.inputs.fourier": 0},
    "fourier-4": {"model.inputs.fourier": 4},
    "fourier-16": {"model.inputs.fourier": 16},
    "deeper": {"model.decoder.layers": 4, "model.encoder.layers": 6, "model.rates.layers": 4},
    "wider-r": {"model.encoder.size": 256},
    "mean-aggregation": {"model.encoder.aggregation": "mean"},
    "plain-relu": {
        "model.encoder.residual": False,
        "model.rates.residual": False,
        "model.encoder.activation": "relu",
        "model.rates.activation": "leaky_relu",
    },
    "decoder-x,r": {"model.decoder.sees": "x,r"},
    "rate-norm": {"model.rates.norm": True},
}
LONGER: Changes = {  # with five times the steps: some changes help in short runs only
    "shipped-longer": {},
    "deeper-longer": RECIPES["deeper"],
    "learning-rate-0.002-longer": RECIPES["learning-rate-0.002"],
}
BATCHES = (4, 8, 32)  # tasks a step, with as many steps as give the same number of tasks


def recipes(budget: str) -> Sequence[PlannedRun]:
    """NVDP's recipe, one change at a time; all but the longer runs see the same number of training tasks."""
    steps = {"quick": 100, "cpu": 1_000, "paper": 100_000}[budget]
    base = _nvdp(steps)
    runs = {name: changed(base, change) for name, change in RECIPES.items()}
    for tasks in BATCHES:
        runs[f"batch-{tasks}"] = replace(_nvdp(steps * base.tasks_per_step // tasks), tasks_per_step=tasks)
    runs["paper-architecture+norm"] = paper_architecture(base, {"model.encoder.task_norm": True})
    runs |= {name: changed(_nvdp(5 * steps), change) for name, change in LONGER.items()}
    runs["paper"] = preset_config("gp", "nvdp", "tuned", steps=steps)
    return _tuning_runs(runs, {"quick": 64, "cpu": 512, "paper": PAPER_TASKS}[budget])


ABLATIONS: Changes = {
    "kl-none": _kl("elbo", 0.0),
    "kl-released-1.4": _kl("released", 1.4),
    "kl-elbo-0.001": _kl("elbo", 0.001),  # the base run
    "kl-elbo-0.01": _kl("elbo", 0.01),
    "kl-elbo-0.1": _kl("elbo", 0.1),
    "kl-elbo-1": _kl("elbo", 1.0),
    "kl-text-1": _kl("text", 1.0),
    "prior-log-uniform": {"objective": "log-uniform"},
    "bounds-clip": {"model.rates.bounds": "clip"},
    "decoder-x,r": {"model.decoder.sees": "x,r"},
    "rates-full": {"model.rates.form": "full"},
    "noise-on-weights": {"model.decoder.weight_noise": "weights"},
}


def ablations(budget: str) -> Sequence[PlannedRun]:
    """NVDP with the paper's architecture, one change at a time."""
    steps = {"quick": 150, "cpu": 2_000, "paper": PAPER_STEPS}[budget]
    tasks = {"quick": 64, "cpu": 512, "paper": PAPER_TASKS}[budget]
    base = paper_architecture(former_preset("gp", "nvdp", budget, steps=steps))
    return [PlannedRun(name, changed(base, change), tasks) for name, change in ABLATIONS.items()]


COLLAPSE: Changes = {  # of NVDP-attentive
    SHIPPED: {},
    "single-point-density": {"model.likelihood.joint_share": 0.0},
    "joint-density": {"model.likelihood.joint_share": 1.0},
    "last-layer-sampled": {"model.likelihood.integrate_last": False},
    "dot-product-attention": {"model.attention.by_distance": False},
    "two-attention-blocks": {"model.attention.blocks": 2},
    "clipped-rates": {"model.rates.bounds": "clip"},
    "attention-aggregation": {"model.encoder.aggregation": "attention"},
    "bayesian-aggregation": {"model.encoder.aggregation": "bayesian"},
    "kl-0": _kl("elbo", 0.0),
    "kl-0.1": _kl("elbo", 0.1),
    "kl-1": _kl("elbo", 1.0),
}


def collapse(budget: str) -> Sequence[PlannedRun]:
    """NVDP-attentive, one change at a time, with other models trained for the same time."""
    steps = {"quick": 60, "cpu": 300, "paper": PAPER_STEPS}[budget]
    base = former_preset("gp", "nvdp-attentive", "cpu", steps=steps, warmup_steps=steps // 10)
    runs = {name: changed(base, change) for name, change in COLLAPSE.items()}
    anp_steps = steps * READING_STEPS["anp"] // READING_STEPS["nvdp-attentive"]
    runs["anp"] = preset_config("gp", "anp", "cpu", steps=anp_steps, warmup_steps=anp_steps // 10)
    runs["anp-by-distance"] = changed(runs["anp"], {"model.attention.by_distance": True})
    plain = _nvdp(2 * steps)  # a step costs half as much
    runs["nvdp"] = paper_architecture(plain, {"model.encoder.task_norm": True})
    runs["attention-for-rates-only"] = changed(runs["nvdp"], {"model.encoder.aggregation": "attention"})
    return _tuning_runs(runs, {"quick": 64, "cpu": 256, "paper": PAPER_TASKS}[budget])


ONE_STD, STD_OF_NETWORK = "one-std", "std-of-network"
WITHOUT_KL = {ONE_STD: "kl-0", STD_OF_NETWORK: f"{STD_OF_NETWORK}-kl-0"}  # without the variational prior
ALIVE: Changes = {  # of plain NVDP with its last layer integrated out: what makes the rates carry the uncertainty
    ONE_STD: {},
    "usual-bound": {"model.likelihood.integrate_plain": False},
    "joint-0": {"model.likelihood.joint_share": 0.0},
    "joint-1": {"model.likelihood.joint_share": 1.0},
    STD_OF_NETWORK: {"model.likelihood.shared_std": False},
    WITHOUT_KL[ONE_STD]: _kl("elbo", 0.0),
    WITHOUT_KL[STD_OF_NETWORK]: {"model.likelihood.shared_std": False, **_kl("elbo", 0.0)},
    "kl-0.01": _kl("elbo", 0.01),
    "floor-0.002": {"model.rates.floor": 0.002},
}
ALIVE_SEEDS = (1, 2)  # more, of each pair with and without the variational prior


def alive(budget: str) -> Sequence[PlannedRun]:
    """Plain NVDP, one change at a time, equal steps; with and without the variational prior under three seeds."""
    steps = {"quick": 60, "cpu": 1_000, "paper": PAPER_STEPS}[budget]
    one_std = {"likelihood.shared_std": True}
    base = former_preset("gp", "nvdp", "quick", steps=steps, warmup_steps=steps // 10, architecture=one_std)
    runs = {name: changed(base, change) for name, change in ALIVE.items()}
    seeded = (*WITHOUT_KL, *WITHOUT_KL.values())
    runs |= {f"{name}-seed-{seed}": replace(runs[name], seed=seed) for name in seeded for seed in ALIVE_SEEDS}
    return _tuning_runs(runs, {"quick": 64, "cpu": 512, "paper": PAPER_TASKS}[budget])


# As many steps as take the time of 7,500 steps of TNP-D.
TNP_MODELS = {"tnp-d": 7_500, "convgnp": 15_000, "nvdp-conv": 8_550, "nvdp": 9_900}


def tnp(budget: str) -> Sequence[PlannedRun]:
    """The protocol of Nguyen and Grover (2022), both kernels; with `paper` their 100,000 steps and 48,000 tasks."""
    rows = []
    for task in ("gp-tnp", "gp-tnp-matern"):
        for name, cpu_steps in TNP_MODELS.items():
            steps = {"quick": 60, "cpu": cpu_steps, "paper": 100_000}[budget]
            tasks = {"quick": 64, "cpu": 4_096, "paper": 48_000}[budget]
            config = former_preset(task, name, "quick", steps=steps, warmup_steps=steps // 10)
            rows.append(PlannedRun(f"{name}-{task}", config, tasks))
    return rows


# Models whose targets read the context, by name: steps of the preset `quick` that take the time of 2,400 of NVDP-conv
# by its former preset, and settings. All have Muon and see 8 tasks a step; attention sees distances.
BY_DISTANCE = {"attention.by_distance": True}
RIVALS: dict[str, tuple[str, int, dict[str, Any]]] = {
    "nvdp-conv": ("nvdp-conv", 2_250, {}),
    "nvdp-attentive": ("nvdp-attentive", 1_550, {}),
    "convgnp": ("convgnp", 2_900, {}),
    "convcnp": ("convcnp", 3_200, {}),
    "anp-by-distance": ("anp", 1_650, BY_DISTANCE),
    "tnp-d-by-distance": ("tnp-d", 1_450, BY_DISTANCE),
    "nvdp-conv-joint-0.75": ("nvdp-conv", 2_250, {"likelihood.joint_share": 0.75}),
    "nvdp-conv-former": ("nvdp-conv", 2_400, FORMER_READING["nvdp-conv"]),
    "nvdp-attentive-former": ("nvdp-attentive", 1_650, FORMER_READING["nvdp-attentive"]),
    "convgnp-former": ("convgnp", 3_000, FORMER_READING["convgnp"]),
    "nvdp-conv-rates-alone": ("nvdp-conv", 2_200, FORMER_READING["nvdp-conv"] | RATES_ALONE),
}
RIVAL_SEEDS = (0, 1, 2)


def rivals(budget: str) -> Sequence[PlannedRun]:
    """Models whose targets read the context: the same seconds, the same tricks, three seeds."""
    tasks = {"quick": 64, "cpu": 512, "paper": PAPER_TASKS}[budget]
    rows = []
    for seed in RIVAL_SEEDS:
        for title, (name, cpu_steps, changes) in RIVALS.items():
            steps = {"quick": 60, "cpu": cpu_steps, "paper": 100 * cpu_steps}[budget]
            config = preset_config(
                "gp", name, "quick", steps=steps, warmup_steps=min(100, steps // 10), architecture=changes, seed=seed
            )
            rows.append(PlannedRun(f"{title}-seed-{seed}", config, tasks, validation_seed=TUNING_SEED))
    return rows


FEWSHOT_TASK = "miniimagenet"
FEWSHOT_CHANGES: Changes = {
    SHIPPED: {},
    "rates-from-network-only": {"rates.path": "network"},
    "rates-from-mean": {"rates.sees": "mean"},
    "rates-from-contrast": {"rates.sees": "contrast"},
    "paper-rates": {"rates.path": "network", "rates.sees": "mean"},
    "decoder-x,r": {"decoder.sees": "x,r"},
}
FEWSHOT_KL_WEIGHTS = (0.0, 1e-6, 1e-4, 1e-3)
FEWSHOT_RIVALS = ("protonet", "versa", "cnp")


def fewshot_choices(budget: str) -> Sequence[PlannedRun]:
    """NVDP's classifier, one change at a time, and other methods, on the features of the first extractor of table 3."""
    steps = {"quick": 20, "cpu": 300, "paper": 50_000}[budget]
    episodes = {"quick": 20, "cpu": 600, "paper": 600}[budget]
    features, given = None, {}
    if budget != "paper":
        features, recipe = next(iter(extractors_of(FEWSHOT_TASK, budget).items()))
        given = {"extractor.features": recipe.features}

    def config(model: str, architecture: dict[str, Any] | None = None, **changes: Any) -> RunConfig:
        preset = {"steps": steps, "warmup_steps": steps // 10, "tasks_per_step": 4} | changes
        changed = given | (architecture or {})
        return preset_config(
            FEWSHOT_TASK, model, "cpu", way=5, shot=1, features=features, architecture=changed, **preset
        )

    runs = {name: config("nvdp", architecture=changes) for name, changes in FEWSHOT_CHANGES.items()}
    runs |= {f"kl-{weight:g}": config("nvdp", **_kl("elbo", weight)) for weight in FEWSHOT_KL_WEIGHTS}
    runs |= {name: config(name) for name in FEWSHOT_RIVALS}
    return _tuning_runs(runs, episodes)


def _nvdp(steps: int) -> RunConfig:
    return former_preset("gp", "nvdp", "cpu", steps=steps, warmup_steps=steps // 10, architecture=USUAL_BOUND)


def _tuning_runs(configs: dict[str, RunConfig], tasks: int) -> list[PlannedRun]:
    return [PlannedRun(name, config, tasks, validation_seed=TUNING_SEED) for name, config in configs.items()]


STUDIES = (
    Experiment("attentive", "Table 1 extended: models whose targets read the context, in NVDP's seconds", attentive),
    Experiment("learning", "NVDP and CNP with the paper's architecture, trained longer", learning),
    Experiment("quarter", "The shipped models against the paper's recipe with four times their steps or more", quarter),
    Experiment("long", "NVDP by the paper's bound, CNP, NP+CNP and NP+CNP+VP, trained long by Muon", long),
    Experiment("recipes", "NVDP's recipe, one change at a time, each with the same number of tasks", recipes),
    Experiment("ablations", "KL scale, prior, rates, noise and decoder, one change at a time", ablations),
    Experiment("collapse", "Posterior collapse of NVDP-attentive, one change at a time", collapse),
    Experiment("alive", "Which objective makes plain NVDP's rates carry the uncertainty, one change at a time", alive),
    Experiment("tnp", "The GP protocol of Transformer Neural Processes, without a floor on σ", tnp),
    Experiment("rivals", "Models whose targets read the context: equal seconds, equal tricks, three seeds", rivals),
    Experiment(
        "fewshot-choices",
        "NVDP's classifier, one change at a time, on validation classes",
        fewshot_choices,
        prepare=prepare_extractors,
    ),
)
