"""The paper's NVDP beside ours, a row for every column of the paper's tables; README and results page begin with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nvdp.evaluation.metrics import OF_FUNCTIONS
from nvdp.experiments.claims import gate_files
from nvdp.experiments.entries import read_entries
from nvdp.experiments.report_fewshot import REGIMES, best_other, per_cent, per_cent_without_sampling, printed_accuracy
from nvdp.experiments.report_tables import IMAGE_SETTINGS, METRICS, Results, markdown_table
from nvdp.experiments.results import Result, paper_numbers
from nvdp.experiments.schemas import BENCH
from nvdp.experiments.table1 import NAMES
from nvdp.experiments.table3 import SETTINGS

FLAVOUR = "expected_log"  # the paper's formula
GP_RUNS = ("table1", "attentive", "learning", "quarter", "long")
TASKS = 2_048  # that a run on GP functions was scored on
READERS = ("nvdp-conv", "nvdp-attentive")
CLOSED = (*READERS, "convgnp", "nvdp")  # last layers of the presets on GP functions
REGIME = "features"
NOTE = """The paper's NVDP and the best pretrained models and runs here, chosen by LL. LL is the log-likelihood of all
points of a task, RLL of its context, PLL of its targets, by the paper's formula, E log p, in nats a value; higher is
better. *By its recipe*: with the networks and the objective that the paper describes. *Plain*: the same model and
bound, all weights sampled, with Fourier features, residual networks, another optimiser and other changes; names with
`mixture` predict a mixture of Gaussians. *The paper's others*: CNP, NP and their variants, with the same changes. *Best
NVDP* includes models that also read the context by attention or convolutions. On GP functions these are the models and
runs that were scored on the same 2,048 tasks. *Attainable* is the exact GP that infers the kernel from the context, as
a model must, with σ ≥ 0.1 as the models have. Steps are in brackets; the paper's runs took 500,000 on GP functions.
Seconds differ between columns, but for the row of equal seconds: there each model was trained once by its preset
`quick` (docs/speed.md)."""


@dataclass(frozen=True)
class Scored:
    """A run or a pretrained model: its name in the files, its model, its scores and, of a run, its model's settings."""

    name: str
    model: str
    evaluation: dict[str, Any]
    settings: dict[str, Any] | None = None

    @classmethod
    def of(cls, name: str, result: Result) -> "Scored":
        """A run."""
        settings = result["config"]["model"]
        return cls(name, settings["name"], result["evaluation"], settings)

    @property
    def by_the_papers_recipe(self) -> bool:
        """Whether it is a run of plain NVDP without our changes."""
        return self.model == "nvdp" and self.settings is not None and not self.settings["inputs"]["fourier"]

    @property
    def integrated(self) -> bool:
        """Whether its last layer is in closed form where E log p is taken."""
        if self.settings is None or OF_FUNCTIONS in self.evaluation:
            return OF_FUNCTIONS in self.evaluation
        likelihood = self.settings["likelihood"]
        return bool(
            (self.model in READERS and likelihood["integrate_last"])
            or (self.model == "nvdp" and likelihood.get("integrate_plain"))
            or self.model == "convgnp"
        )

    def cell(self, metrics: Sequence[str]) -> str:
        """Its scores by the paper's formula, its name and its steps."""
        scores = " / ".join(f"{self.evaluation['scores'][metric][FLAVOUR]:.2f}" for metric in metrics)
        parts = " in the last of several parts" if "training" in self.evaluation else ""
        return f"{scores}{'†' * self.integrated} `{self.name}` ({self.evaluation['steps']:,}{parts})"


COLUMNS: dict[str, Callable[[Scored], bool]] = {
    "NVDP by its recipe": lambda each: each.by_the_papers_recipe,
    "plain NVDP": lambda each: each.model == "nvdp" and not each.by_the_papers_recipe and not each.integrated,
    "best of the paper's others": lambda each: each.model in NAMES and each.model != "nvdp",
    "best NVDP": lambda each: each.model.startswith("nvdp"),
    "best other model": lambda each: not each.model.startswith("nvdp"),
}

EQUAL_SECONDS: tuple[
    Callable[[str, bool], bool], ...
] = (  # the same columns: a model's name, whether by the paper's recipe
    lambda model, by_paper: model == "nvdp" and by_paper,
    lambda model, by_paper: model == "nvdp" and not by_paper,
    lambda model, _: model in NAMES and model != "nvdp",
    lambda model, _: model.startswith("nvdp"),
    lambda model, _: not model.startswith("nvdp"),
)


def regression_summary(results: Results) -> str:
    """The best runs of each column of tables 1 and 2 by LL, with the paper's numbers and what is attainable."""
    paper = paper_numbers()
    rows: dict[str, tuple[list[Scored], Any, Sequence[str]]] = {
        "GP functions: LL / RLL / PLL": (_gp(results), paper["table1"]["learned variance"]["nvdp"], METRICS)
    }
    for title in IMAGE_SETTINGS:
        scored = [Scored.of(name, result) for name, result in results.table2(title).items()]
        rows[f"{title}: LL / PLL"] = scored, paper["table2"][title]["nvdp"], ("LL", "PLL")
    lines = []
    for title, (scored, printed, metrics) in rows.items():
        if not scored:
            continue
        bests = [_best(filter(of_column, scored)) for of_column in COLUMNS.values()]
        attainable = next((each.evaluation["attainable"] for each in scored if "attainable" in each.evaluation), None)
        cells = [title, " / ".join(f"{printed[metric][0]:.2f}" for metric in metrics)]
        cells += ["" if best is None else best.cell(metrics) for best in bests]
        lines.append([*cells, " / ".join(f"{attainable[metric]:.2f}" for metric in metrics) if attainable else ""])
    if equal := _equal_seconds(results):
        lines.insert(1, equal)
    return markdown_table(["", "paper's NVDP", *COLUMNS, "attainable"], lines) if lines else ""


def _gp(results: Results) -> list[Scored]:
    """Pretrained models and runs on the paper's GP functions with learned variance."""
    scored = [Scored(name, each["model"], each) for name, each in gate_files(results).items()]
    scored += [Scored.of(name, row) for what in GP_RUNS for name, row in results.runs(what).items()]
    wanted = ("gp", "learned", TASKS)
    return [each for each in scored if tuple(each.evaluation[key] for key in ("task", "variance", "tasks")) == wanted]


def _best(scored: Iterable[Scored]) -> Scored | None:
    return max(scored, key=lambda each: each.evaluation["scores"]["LL"][FLAVOUR], default=None)


def _equal_seconds(results: Results) -> list[str]:
    """LL of the best rows of the suite quality, for the longest training that all of its models had."""
    path = results.folder / "bench" / "quality.json"
    rows = read_entries(path, BENCH["quality"], "rows")["rows"] if path.exists() else []
    trained: dict[float, dict[tuple[str, str], dict[str, Any]]] = {}
    for row in rows:
        trained.setdefault(row["budget"], {})[row["model"], row["recipe"]] = row
    everything = set().union(*trained.values())
    if not (seconds := max((each for each, models in trained.items() if set(models) == everything), default=0.0)):
        return []
    cells = []
    for chosen in EQUAL_SECONDS:
        found = [row for (model, recipe), row in trained[seconds].items() if chosen(model, recipe == "paper")]
        best = max(found, key=lambda row: row["LL_expected_log"], default=None)
        closed = best is not None and best["recipe"] != "paper" and best["model"] in CLOSED
        cells.append("" if best is None else f"{best['LL_expected_log']:.2f}{'†' * closed} `{best['model']}`")
    attainable = f"{next(iter(trained[seconds].values()))['attainable_LL']:.2f}"
    return [f"GP functions, {seconds:g} s of one core each: LL", "", *cells, attainable]


def of_functions_in_words(results: Results) -> str:
    """E log p of whole functions of the models that are marked, and of the exact GP."""
    found = {name: each for name, each in gate_files(results).items() if OF_FUNCTIONS in each}
    if not found:
        return ""
    ours = ", ".join(f"`{name}` {each[OF_FUNCTIONS]['LL']:.2f}" for name, each in found.items())
    for title in IMAGE_SETTINGS:
        scored = {name: result["evaluation"] for name, result in results.table2(title).items()}
        ours += "".join(
            f", on {title} `{name}` {each[OF_FUNCTIONS]['LL']:.2f}"
            for name, each in scored.items()
            if OF_FUNCTIONS in each
        )
    exact = next(iter(found.values()))[f"oracle_{OF_FUNCTIONS}"]["LL"]
    return (
        "† Hidden layers are sampled, the last layer is in closed form. With whole functions sampled, as in the paper, "
        f"LL is {ours}. The exact GP that knows the kernel then has {exact:.2f} (σ = 0.1): this formula favours "
        "functions that do not differ, even where the data leave open which is right."
    )


def fewshot_summary(results: Results) -> str:
    """NVDP on features beside the paper's NVDP and the best other method."""
    lines = []
    for setting in SETTINGS:
        rows = results.table3(setting, REGIME)
        best = best_other(rows)
        if "nvdp" not in rows or best is None:
            continue
        ways = [per_cent] + [per_cent_without_sampling] * ("without_sampling" in rows["nvdp"]["evaluation"])
        cells = [f"{measure(rows['nvdp'])[0]:.2f}" for measure in ways] + ["–"] * (2 - len(ways))
        printed = printed_accuracy(paper_numbers()["table3"]["NVDP"][setting.paper])
        lines.append([setting.paper, printed, *cells, f"{per_cent(rows[best])[0]:.2f} `{best}`"])
    head = [f"accuracy in per cent, {REGIMES[REGIME]}", "paper's NVDP, end to end", "NVDP, 10 samples"]
    return markdown_table([*head, "NVDP, without sampling", "best other method"], lines) if lines else ""


def summary(results: Results) -> str:
    """Both tables with what their columns mean; "" without results."""
    regression, fewshot = regression_summary(results), fewshot_summary(results)
    parts = [NOTE, regression, of_functions_in_words(results)] if regression else []
    return "\n\n".join(part for part in (*parts, fewshot) if part)
