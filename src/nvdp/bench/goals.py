"""What was aimed at in speed, what was reached, and which command measures it: from the committed files alone."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdp.evaluation.metrics import OF_FUNCTIONS
from nvdp.experiments.results import paper_numbers
from nvdp.system import read_json

Row = dict[str, Any]
NP_FAMILY = ("cnp", "np", "np+vp", "np+cnp", "np+cnp+vp")
STEP_GOALS: tuple[tuple[str, float, Callable[[Row], bool]], ...] = (
    ("`nvdp-attentive`", 1.6, lambda row: row["model"] == "nvdp-attentive"),
    ("`nvdp-conv`", 1.4, lambda row: row["model"] == "nvdp-conv"),
    ("`nvdp` at the paper's GP shape", 1.3, lambda row: (row["model"], row["shape"]) == ("nvdp", "gp")),
    ("CNP and NP family, GP functions", 1.2, lambda row: row["model"] in NP_FAMILY and row["shape"] == "gp"),
    ("CNP and NP family, images", 1.2, lambda row: row["model"] in NP_FAMILY and row["shape"] in ("mnist", "celeba")),
)
PEER_LEAD, MOST_IMPORT = 0.05, 1.1  # nats; seconds of `import nvdp` over those of torch alone
START_GOALS = {"nvdp --help": 0.3, "nvdp --version": 0.3, "nvdp serve": 3.0}
UNTIL = {"nvdp serve": " until its first answer"}
START = "`python benchmarks/start.py`"


@dataclass(frozen=True)
class Goal:
    """A line of the table."""

    what: str
    aim: str
    measured: str
    met: bool
    command: str

    def __str__(self) -> str:
        return (
            f"| {self.what} | {self.aim} | {self.measured} | {'met' if self.met else '**missed**'} | {self.command} |"
        )


def goals_table(folder: Path) -> str:
    """The goals as a table, from the files that are there.

    Args:
        folder: With the files of ``nvdp bench`` and of benchmarks/.

    Returns:
        Markdown; empty if none of the files exists.
    """
    goals = [goal for part in (_steps, _peer, _demo, _start) for goal in part(folder)]
    lines = [str(goal) for goal in goals]
    met = f"{sum(goal.met for goal in goals)} of {len(goals)} are met. Of a range the largest value decides.\n"
    head = [met, "| what | goal | measured | outcome | command |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *lines]) if lines else ""


def _rows(folder: Path, name: str) -> list[Row]:
    path = folder / f"{name}.json"
    rows: list[Row] = read_json(path, "rows")["rows"] if path.exists() else []
    return rows


def _steps(folder: Path) -> Iterator[Goal]:
    for path in sorted(folder.glob("step*.json")):
        result = read_json(path, "machine", "rows")
        on = result["machine"].get("processor", "processor not recorded")
        for name, most, chosen in STEP_GOALS:
            if ratios := [row["ours_over_floor"] for row in result["rows"] if chosen(row)]:
                measured = f"{_between(ratios, '.2f')} ×"
                what = f"step / floor, {name}, {on}"
                yield Goal(what, f"≤ {most} ×", measured, round(max(ratios), 2) <= most, "`nvdp bench --suite step`")


def _between(values: Sequence[float], form: str) -> str:
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return low if low == high else f"{low} to {high}"


def _peer(folder: Path) -> Iterator[Goal]:
    if not (path := folder / "peer.json").exists():
        return
    found = read_json(path, "seconds", "models")
    scores = {name: row["PLL"] for name, row in found["models"].items()}
    ours = {name: score for name, score in scores.items() if name[0].islower()}
    best, rival = max(ours, key=lambda name: ours[name]), scores["ConvGNP"]
    command, equal = "`python benchmarks/peer.py --work DIR`", f"PLL after {found['seconds']:g} s"
    lead = f"{_signed(ours[best] - rival)} (`{best}`)"
    what = f"{equal}, best of ours − ConvGNP of neuralprocesses"
    yield Goal(what, f"≥ {PEER_LEAD:+}", lead, ours[best] - rival >= PEER_LEAD, command)
    for name, other in (("nvdp-attentive", "ConvCNP"), ("nvdp-conv", "ConvCNP"), ("nvdp", "cnp")):
        ahead = scores[name] - scores[other]
        shown = "ConvCNP of neuralprocesses" if other == "ConvCNP" else f"our `{other}`"
        yield Goal(f"{equal}, `{name}` − {shown}", "above 0", _signed(ahead), ahead > 0, command)


def _signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")


def _demo(folder: Path) -> Iterator[Goal]:
    paper = {name: scores[0] for name, scores in paper_numbers()["table1"]["learned variance"]["nvdp"].items()}
    for row in _rows(folder, "start"):
        if row["what"] == "demo":
            found = {"last layer in closed form": {name: row["scores"][name]["expected_log"] for name in paper}}
            if OF_FUNCTIONS in row:
                found["whole functions sampled"] = row[OF_FUNCTIONS]
            for how, scores in found.items():
                aim, measured = (" / ".join(f"{each[name]:.2f}" for name in paper) for each in (paper, scores))
                met = all(scores[name] > paper[name] for name in paper)
                what = f"demo, LL / RLL / PLL by E log, {how}"
                yield Goal(what, f"above {aim}", measured.replace("-", "−"), met, START)
            seconds = row["processor_seconds"]
            yield Goal("demo, processor seconds of training", "≤ 120", f"{seconds:.0f}", seconds <= 120, START)


def _start(folder: Path) -> Iterator[Goal]:
    seconds = {row["what"]: row["seconds"] for row in _rows(folder, "start")}
    for name, most in START_GOALS.items():
        if name in seconds:
            what = f"seconds of `{name}`{UNTIL.get(name, '')}"
            yield Goal(what, f"≤ {most:g}", f"{seconds[name]:.2f}", seconds[name] <= most, START)
    if "import nvdp, with torch" in seconds:
        ratio = seconds["import nvdp, with torch"] / seconds["import torch"]
        what = "`import nvdp` with the first name used / `import torch`"
        yield Goal(what, f"≤ {MOST_IMPORT} ×", f"{ratio:.2f} ×", ratio <= MOST_IMPORT, START)
