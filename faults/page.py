"""docs/trust.md from the files of results/trust: what was tried, how often, what happened."""

import json
from pathlib import Path
from typing import Any

from faults.coverage import LEAST
from nvdp.system import write_text

ORDER = (
    "interruptions", "hostile", "numbers", "properties", "processes", "cluster", "threads", "streaming", "mutants",
    "coverage",
)  # fmt: skip
LONG = 20_000  # steps of a run that counts as one
TITLES = {
    "interruptions": "Runs that are interrupted",
    "hostile": "Files from strangers",
    "numbers": "Numbers at their ends",
    "properties": "What every model promises",
    "processes": "Several processes on one run",
    "cluster": "Many runs on a cluster",
    "threads": "Several threads on one model",
    "streaming": "Tables larger than memory",
    "mutants": "Mutants",
    "coverage": "Coverage",
}
HEAD = """# What was tried, and what happened

Each line was tried on purpose by `python -m faults` and is counted in a file of `results/trust/`, from which this page
is made. Short versions of most of it run with every `make test`. *Wrong* means a result that differs from that of an
undisturbed run, damage that goes unnoticed, a value that is not finite, or an error that is not one line. *Times*
counts checks: a run that is killed and resumed may be two. Long runs are those of `nvdp reproduce`; mutants and
coverage have commands of their own.
"""
RULES = """
## The rules behind it

- **A run is its configuration and its seed.** Every step derives its own random numbers, so nothing about randomness
  is saved, and a run that went on is the run that was never stopped.
- **Files are whole or absent**: written beside their place, flushed, renamed. What a killed process leaves half
  written is removed by the next one. Checkpoints carry a SHA-256 over names, shapes, values and step; the last two are
  kept; a damaged one is named and passed over; with none left, resuming is refused.
- **Files are read once, as a whole, before they are believed**: what is checked is what is used, even if the file
  changes a moment later. There is no pickle anywhere. Shapes that a configuration declares are compared with those in
  the file before any memory is taken for them.
- **A step whose bound or gradient is not finite is skipped**, counted in `log.csv` and, after 100 of them, ends the
  run with a reason. A bound that is not finite in one of several processes makes all skip the step.
- **One process at a time** trains in a folder; several that share one run are one in this sense.
"""


def write_page(results: Path, page: Path) -> None:
    """Write the page from what sections there are."""
    write_text(page, trust_page(results))


def trust_page(results: Path) -> str:
    """The page's text."""
    parts = [HEAD]
    for name in ORDER:
        path = results / f"{name}.json"
        if path.exists():
            parts.append(_section(name, json.loads(path.read_text())))
        if name == "numbers":
            parts += _long_runs(results.parent)
    return "\n".join([*parts, RULES.strip(), ""])


def _section(name: str, record: dict[str, Any]) -> str:
    if name == "mutants":
        return _mutants(record)
    if name == "coverage":
        return _coverage(record)
    lines = [f"## {TITLES[name]}", "", "| tried | times | what happened | wrong |", "| --- | ---: | --- | ---: |"]
    for tried in record["tried"]:
        outcomes = "; ".join(f"{count:,} × {outcome}" for outcome, count in tried["outcomes"].items())
        lines.append(f"| {tried['what']} | {tried['tried']:,} | {outcomes or '–'} | {len(tried['wrong'])} |")
    lines += [_measured(name, tried["numbers"]) for tried in record["tried"] if "numbers" in tried]
    return "\n".join([*lines, ""])


def _long_runs(results: Path) -> list[str]:
    """Steps skipped because a bound or gradient was not finite, in every long run whose result says how many."""
    rows = []
    for path in sorted(results.glob("*/cpu-*.json")):
        result = json.loads(path.read_text())
        if isinstance(result, dict) and result.get("steps", 0) >= LONG and "skipped" in result:
            name = f"`{result['config']['model']['name']}`, {result['what']}, {result['name']}"
            rows.append(f"| {name} | {result['steps']:,} | {result['skipped']} |")
    head = ["## Long runs", "", "| run | steps | skipped as not finite |", "| --- | ---: | ---: |"]
    return [*head, *rows, ""] if rows else []


def _coverage(record: dict[str, Any]) -> str:
    below = ", ".join(f"`{name}` {share:.0f} %" for name, share in record["below"].items())
    return "\n".join(
        [
            f"## {TITLES['coverage']}",
            "",
            f"`make coverage`: the tests reach {record['covered']:,} of {record['lines']:,} lines of `src/nvdp`,",
            f"{record['percent']:.1f} %. What runs in processes of its own is not counted.",
            f"Files below {LEAST:.0f} %: {below or 'none'}.",
            "",
        ]
    )


def _mutants(record: dict[str, Any]) -> str:
    lines = [
        f"## {TITLES['mutants']}",
        "",
        "`make mutants` changes these files in one place at a time (an operator, a number, an argument, a word inside",
        f"a function; mutmut {record['versions']['mutmut']}) and runs the quick tests that reach that function.",
        "A mutant is killed when one of them fails; those left alive are in `results/trust/mutants.json`.",
        "",
        "| file | mutants | killed | share |",
        "| --- | ---: | ---: | ---: |",
    ]
    for file in record["tried"]:
        killed = file["outcomes"]["killed"]
        lines.append(f"| `{file['what']}` | {file['tried']:,} | {killed:,} | {killed / file['tried']:.1%} |")
    return "\n".join([*lines, ""])


def _measured(name: str, numbers: dict[str, Any]) -> str:
    if name == "streaming":
        rows = [
            f"| {million} | {numbers['peak_mb'][million]:,.0f} | {seconds:.0f} |"
            for million, seconds in numbers["seconds"].items()
        ]
        return "\n".join(["", "| million rows | peak memory, MB | seconds |", "| ---: | ---: | ---: |", *rows])
    return (
        f"\nThe largest difference of any weight or optimiser state was {numbers['largest_difference']:.1e} "
        f"(float64; tolerance {numbers['tolerance']:.0e})."
    )
