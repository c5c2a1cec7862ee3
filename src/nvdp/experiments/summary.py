"""The paper's NVDP beside ours, a row for every column of the paper's tables; README and results page begin with it."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from nvdp.experiments.claims import gate_files
from nvdp.experiments.report_fewshot import REGIMES, nvdp_ahead, per_cent, per_cent_without_sampling, printed_accuracy
from nvdp.experiments.report_tables import IMAGE_SETTINGS, METRICS, Results, markdown_table
from nvdp.experiments.results import paper_numbers
from nvdp.experiments.table3 import SETTINGS

FLAVOUR = "expected_log"  # the paper's formula
GP_RUNS = ("table1", "attentive", "learning", "quarter")
FEWEST_TASKS = 2_048  # that a run on GP functions was scored on
WAYS: dict[str, Callable[[str], bool]] = {
    "plain NVDP": lambda model: model == "nvdp",
    "best NVDP": lambda model: model.startswith("nvdp"),
    "best other model": lambda model: not model.startswith("nvdp"),
}
REGIME = "features"
NOTE = """The paper's NVDP and the best runs here, chosen by LL. LL is the log-likelihood of all points of a task, RLL
of its context, PLL of its targets, by the paper's formula: E log p over sampled functions, in nats a value; higher is
better. *Plain* NVDP is the model `nvdp`; other NVDPs also read the context by attention or convolutions. Names with
`mixture` predict a mixture of Gaussians, all others one Gaussian, as the paper. *Attainable* is the exact GP that
infers the kernel from the context, as a model must. The second table has accuracies of few-shot classification.
Trainings differ: the paper's took up to 500,000 steps, ours minutes to an hour of one core."""


@dataclass(frozen=True)
class Scored:
    """A run or a pretrained model: its name in the files, its model, and its scores."""

    name: str
    model: str
    evaluation: dict[str, Any]

    def cell(self, metrics: Sequence[str]) -> str:
        """Its scores by the paper's formula."""
        scores = " / ".join(f"{self.evaluation['scores'][metric][FLAVOUR]:.2f}" for metric in metrics)
        return f"{scores} `{self.name}`"


def regression_summary(results: Results) -> str:
    """The best runs of each column of tables 1 and 2 by LL, with the paper's numbers and what is attainable."""
    columns: dict[str, tuple[list[Scored], Any, Sequence[str]]] = {}
    paper = paper_numbers()
    columns["GP functions: LL / RLL / PLL"] = _gp(results), paper["table1"]["learned variance"]["nvdp"], METRICS
    for title in IMAGE_SETTINGS:
        rows = results.table2(title)
        scored = [Scored(name, row["config"]["model"]["name"], row["evaluation"]) for name, row in rows.items()]
        columns[f"{title}: LL / PLL"] = scored, paper["table2"][title]["nvdp"], ("LL", "PLL")
    lines = []
    for title, (scored, printed, metrics) in columns.items():
        if not scored:
            continue
        bests = [_best(each for each in scored if way(each.model)) for way in WAYS.values()]
        attainable = next((each.evaluation["attainable"] for each in scored if "attainable" in each.evaluation), None)
        cells = [title, " / ".join(f"{printed[metric][0]:.2f}" for metric in metrics)]
        cells += ["" if best is None else best.cell(metrics) for best in bests]
        lines.append([*cells, " / ".join(f"{attainable[metric]:.2f}" for metric in metrics) if attainable else ""])
    return markdown_table(["nats a value", "paper's NVDP", *WAYS, "attainable"], lines) if lines else ""


def _gp(results: Results) -> list[Scored]:
    """Pretrained models and runs on the paper's GP functions with learned variance."""
    scored = [Scored(name, each["model"], each) for name, each in gate_files(results).items()]
    for name, row in (pair for what in GP_RUNS for pair in results.runs(what).items()):
        scored.append(Scored(name, row["config"]["model"]["name"], row["evaluation"]))
    return [
        each
        for each in scored
        if (each.evaluation["task"], each.evaluation["variance"]) == ("gp", "learned")
        and each.evaluation["tasks"] >= FEWEST_TASKS
    ]


def _best(scored: Iterable[Scored]) -> Scored | None:
    return max(scored, key=lambda each: each.evaluation["scores"]["LL"][FLAVOUR], default=None)


def fewshot_summary(results: Results) -> str:
    """NVDP on features beside the paper's NVDP and the best other method, both with 10 samples."""
    lines = []
    for setting in SETTINGS:
        rows = results.table3(setting, REGIME)
        if "nvdp" not in rows or len(rows) < 2:
            continue
        best, _ = nvdp_ahead(rows)
        cells = [setting.paper, printed_accuracy(paper_numbers()["table3"]["NVDP"][setting.paper])]
        cells += [f"{measure(rows['nvdp'])[0]:.2f}" for measure in (per_cent, per_cent_without_sampling)]
        lines.append([*cells, f"{per_cent(rows[best])[0]:.2f} `{best}`"])
    head = [f"per cent, {REGIMES[REGIME]}", "paper's NVDP, end to end", "NVDP, 10 samples", "without sampling"]
    return markdown_table([*head, "best other method"], lines) if lines else ""


def summary(results: Results) -> str:
    """Both tables with what their columns mean; "" without results."""
    tables = [table for table in (regression_summary(results), fewshot_summary(results)) if table]
    return "\n\n".join([NOTE, *tables]) if tables else ""
