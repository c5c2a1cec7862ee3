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
    by_machine = [goal for path in steps for goal in _steps(path)] or list(_steps(None))
    goals = [*by_machine, *_peer(folder / "peer.json"), *_start(folder / "start.json")]
    missing = sum(goal.met is None for goal in goals)
    without = f", {missing} not measured" if missing else ""
    counted = f"{sum(goal.met is True for goal in goals)} of {len(goals)} lines are met{without}."
    head = ["| what | goal | measured | outcome | command |", "| --- | --- | --- | --- | --- |"]
    return "\n".join([*head, *map(str, goals), f"\n{counted} The numbers as shown decide, of a range the largest."])


def _steps(path: Path | None) -> Iterator[Goal]:
    result = read_entries(path, BENCH["step"], "machine", "rows") if path else {"machine": {}, "rows": []}
    on = f", {result['machine'].get('processor') or 'processor not recorded'}" if path else ""
    ratios = {(row["model"], row["shape"]): row["ours_over_floor"] for row in result["rows"]}
    for name, most, cases in STEP_GOALS:
        found = [ratios[case] for case in cases if case in ratios]
        measured, met = "–", None
        if len(found) == len(cases) and not result.get("quick"):
            measured, met = f"{_between(found)} ×", round(max(found), 2) <= most
        yield Goal(f"step / floor, {name}{on}", f"≤ {most} ×", measured, met, STEP_COMMAND)


def _between(values: list[float]) -> str:
    low, high = f"{min(values):.2f}", f"{max(values):.2f}"
    return low if low == high else f"{low} to {high}"


def _peer(path: Path) -> Iterator[Goal]:
    found = read_entries(path, PEER, "seconds", "models") if path.exists() else {"models": {}}
    scores = {name: row["PLL"] for name, row in found["models"].items()}
    ours = {name: score for name, score in scores.items() if name[0].islower()}
    equal = f"PLL after {found['seconds']:g} s" if path.exists() else "PLL after equal seconds"
    best = max(ours, key=lambda name: ours[name], default="")
    shown, met = "–", None
    if best and "ConvGNP" in scores:
        lead = round(ours[best] - scores["ConvGNP"], 3)
        shown, met = f"{_signed(lead)} (`{best}`)", lead >= PEER_LEAD
    yield Goal(f"{equal}, best of ours − ConvGNP of neuralprocesses", f"≥ {PEER_LEAD:+}", shown, met, PEER_COMMAND)
    for name, other in PEER_PAIRS:
        shown, met = "–", None
        if {name, other} <= scores.keys():
            ahead = round(scores[name] - scores[other], 3)
            shown, met = _signed(ahead), ahead > 0
        rival = "ConvCNP of neuralprocesses" if other == "ConvCNP" else f"our `{other}`"
        yield Goal(f"{equal}, `{name}` − {rival}", "above 0", shown, met, PEER_COMMAND)


def _signed(difference: float) -> str:
    return f"{difference:+.3f}".replace("-", "−")


def _start(path: Path) -> Iterator[Goal]:
    rows = {row["what"]: row for row in (read_entries(path, START, "rows")["rows"] if path.exists() else ())}
    demo, seconds = rows.get("demo"), {name: row["seconds"] for name, row in rows.items()}
    paper = {name: scores[0] for name, scores in paper_numbers()["table1"]["learned variance"]["nvdp"].items()}
    closed = demo and {name: demo["scores"][name]["expected_log"] for name in paper}
    yield _demo("last layer in closed form", closed, paper)
    yield _demo("whole functions sampled", demo and demo.get(OF_FUNCTIONS), paper)
    yield _at_most("demo, processor seconds of training", demo and demo["processor_seconds"], 120, ".0f")
    for name, most in START_GOALS.items():
        yield _at_most(f"seconds of `{name}`{UNTIL.get(name, '')}", seconds.get(name), most, ".2f")
    ours, alone = (seconds.get(name) for name in ("import nvdp, with torch", "import torch"))
    what = "`import nvdp` with the first name used / `import torch`"
    yield _at_most(what, ours / alone if ours and alone else None, MOST_IMPORT, ".2f", " ×")


def _at_most(what: str, value: float | None, most: float, form: str, unit: str = "") -> Goal:
    shown = "–" if value is None else f"{value:{form}}"
    met = None if value is None else float(shown) <= most
    return Goal(what, f"≤ {most:g}{unit}", shown + unit * (value is not None), met, START_COMMAND)


def _demo(how: str, scores: dict[str, float] | None, paper: dict[str, float]) -> Goal:
    shown, met = "–", None
    if scores is not None:
        shown = _in_a_row(scores, list(paper))
        met = all(round(scores[name], 2) > paper[name] for name in paper)
    aim = f"above {_in_a_row(paper, list(paper))}"
    return Goal(f"demo, LL / RLL / PLL by E log, {how}", aim, shown, met, START_COMMAND)


def _in_a_row(scores: dict[str, float], names: list[str]) -> str:
    return " / ".join(f"{scores[name]:.2f}" for name in names).replace("-", "−")
