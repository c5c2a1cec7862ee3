"""What was aimed at in speed, what was reached, and which command measures it: from the committed files alone."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nvdp.evaluation.metrics import OF_FUNCTIONS
from nvdp.experiments.entries import read_entries
from nvdp.experiments.results import paper_numbers
from nvdp.experiments.schemas import BENCH, PEER, START

Row = dict[str, Any]
NP_FAMILY = ("cnp", "np", "np+vp", "np+cnp", "np+cnp+vp")
Cases = tuple[tuple[str, str], ...]  # models and shapes
STEP_GOALS: tuple[tuple[str, float, Cases], ...] = (
    ("`nvdp-attentive`", 1.6, (("nvdp-attentive", "gp, as shipped"),)),
    ("`nvdp-conv`", 1.4, (("nvdp-conv", "gp, as shipped"),)),
    ("`nvdp` at the paper's GP shape", 1.3, (("nvdp", "gp"),)),
    ("CNP and NP family, GP functions", 1.2, tuple((name, "gp") for name in NP_FAMILY)),
    ("CNP and NP family, images", 1.2, tuple((name, shape) for shape in ("mnist", "celeba") for name in NP_FAMILY)),
)
PEER_LEAD, MOST_IMPORT = 0.05, 1.1  # nats; seconds of `import nvdp` over those of torch alone
PEER_PAIRS = (("nvdp-attentive", "ConvCNP"), ("nvdp-conv", "ConvCNP"), ("nvdp", "cnp"))
START_GOALS = {"nvdp --help": 0.3, "nvdp --version": 0.3, "nvdp serve": 3.0}
UNTIL = {"nvdp serve": " until its first answer"}
STEP_COMMAND, PEER_COMMAND = "`nvdp bench --suite step`", "`python benchmarks/peer.py --work DIR`"
START_COMMAND = "`python benchmarks/start.py`"
OUTCOMES = {True: "met", False: "**missed**", None: "not measured"}


@dataclass(frozen=True)
class Goal:
    """A line of the table; `met` is None where not all that it needs was measured."""

    what: str
    aim: str
    measured: str
    met: bool | None
    command: str

    def __str__(self) -> str:
        return f"| {self.what} | {self.aim} | {self.measured} | {OUTCOMES[self.met]} | {self.command} |"


def goals_table(folder: Path, steps: list[Path]) -> str:
    """The goals as a table, from the files that are there.

    Args:
        folder: With the files of benchmarks/.
        steps: Files of the suite step, one for each machine.

    Returns:
        Markdown. What was not measured, or only in part, is called so.
    """
    goals = [*_steps(steps), *_peer(folder / "peer.json"), *_start(folder / "start.json")]
    missing = sum(goal.met is None for goal in goals)
    without = f", {missing} not measured" if missing else ""
    counted = f"{sum(goal.met is True for goal in goals)} of {len(goals)} are met{without}."
    head = ["| what | goal | measured | outcome | command |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([f"{counted} Of a range the largest value decides.\n", *head, *map(str, goals)])


def _steps(paths: list[Path]) -> Iterator[Goal]:
    for path in paths:
        result = read_entries(path, BENCH["step"], "machine", "rows")
        on, of_all = result["machine"].get("processor") or "processor not recorded", not result.get("quick")
        ratios = {(row["model"], row["shape"]): row["ours_over_floor"] for row in result["rows"]}
        for name, most, cases in STEP_GOALS:
            found = [ratios[case] for case in cases if case in ratios]
            complete = of_all and len(found) == len(cases)
            met = round(max(found), 2) <= most if complete else None
            measured = f"{_between(found)} ×" if found else "–"
            yield Goal(f"step / floor, {name}, {on}", f"≤ {most} ×", measured, met, STEP_COMMAND)


def _between(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _peer(path: Path) -> Iterator[Goal]:
    found: dict[str, Any] = {"seconds": 240, "models": {}}
    if path.exists():
        found = read_entries(path, PEER, "seconds", "models")
    scores = {name: row["PLL"] for name, row in found["models"].items()}
    ours = {name: score for name, score in scores.items() if name[0].islower()}
    equal = f"PLL after {found['seconds']:g} s"
    best = max(ours, key=lambda name: ours[name], default="")
    lead = ours[best] - scores["ConvGNP"] if best and "ConvGNP" in scores else None
    shown = "–" if lead is None else f"{_signed(lead)} (`{best}`)"
    what = f"{equal}, best of ours − ConvGNP of neuralprocesses"
    yield Goal(what, f"≥ {PEER_LEAD:+}", shown, None if lead is None else lead >= PEER_LEAD, PEER_COMMAND)
    for name, other in PEER_PAIRS:
        ahead = scores[name] - scores[other] if {name, other} <= scores.keys() else None
        rival = "ConvCNP of neuralprocesses" if other == "ConvCNP" else f"our `{other}`"
        shown, met = ("–", None) if ahead is None else (_signed(ahead), ahead > 0)
        yield Goal(f"{equal}, `{name}` − {rival}", "above 0", shown, met, PEER_COMMAND)


def _signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")


def _start(path: Path) -> Iterator[Goal]:
    rows = {row["what"]: row for row in (read_entries(path, START, "rows")["rows"] if path.exists() else ())}
    yield from _demo(rows.get("demo"))
    seconds = {name: row["seconds"] for name, row in rows.items()}
    for name, most in START_GOALS.items():
        took = seconds.get(name)
        shown, met = ("–", None) if took is None else (f"{took:.2f}", took <= most)
        yield Goal(f"seconds of `{name}`{UNTIL.get(name, '')}", f"≤ {most:g}", shown, met, START_COMMAND)
    ours, alone = (seconds.get(name) for name in ("import nvdp, with torch", "import torch"))
    ratio = ours / alone if ours and alone else None
    shown, met = ("–", None) if ratio is None else (f"{ratio:.2f} ×", round(ratio, 2) <= MOST_IMPORT)
    what = "`import nvdp` with the first name used / `import torch`"
    yield Goal(what, f"≤ {MOST_IMPORT} ×", shown, met, START_COMMAND)


def _demo(row: Row | None) -> Iterator[Goal]:
    paper = {name: scores[0] for name, scores in paper_numbers()["table1"]["learned variance"]["nvdp"].items()}
    ways: dict[str, dict[str, float] | None] = {"last layer in closed form": None, "whole functions sampled": None}
    if row is not None:
        closed = {name: row["scores"][name]["expected_log"] for name in paper}
        ways = dict(zip(ways, (closed, row.get(OF_FUNCTIONS)), strict=True))
    aim = f"above {_in_a_row(paper, list(paper))}"
    for how, scores in ways.items():
        shown, met = "–", None
        if scores is not None:
            shown, met = _in_a_row(scores, list(paper)), all(scores[name] > paper[name] for name in paper)
        yield Goal(f"demo, LL / RLL / PLL by E log, {how}", aim, shown, met, START_COMMAND)
    took = None if row is None else row["processor_seconds"]
    shown, met = ("–", None) if took is None else (f"{took:.0f}", took <= 120)
    yield Goal("demo, processor seconds of training", "≤ 120", shown, met, START_COMMAND)


def _in_a_row(scores: dict[str, float], names: list[str]) -> str:
    return " / ".join(f"{scores[name]:.2f}" for name in names).replace("-", "−")
