"""The page docs/trust.md, made from the files in results/trust."""

import json
from pathlib import Path
from typing import Any

from faults.coverage import LEAST
from nvdp.system import write_text

ORDER = (
    "interruptions", "files", "memory", "stored", "postgres", "services", "hostile", "service", "numbers", "properties",
    "processes", "cluster", "queue", "scale", "threads", "streaming", "mutants", "coverage",
)  # fmt: skip
LONG = 20_000  # steps of a run that counts as one
TITLES = {
    "interruptions": "Interrupted runs",
    "files": "Tables and outputs",
    "memory": "Large tables",
    "stored": "Stores of tasks",
    "service": "The server and its visitors",
    "hostile": "Damaged and malicious files",
    "numbers": "Extreme numbers",
    "properties": "Properties of all models",
    "processes": "Several processes for one run",
    "cluster": "Many runs on a cluster",
    "queue": "The command for many runs, on two nodes",
    "scale": "Commands of the page about several machines, on two nodes",
    "postgres": "A store on a PostgreSQL server",
    "services": "Services that share a store",
    "threads": "Several threads with one model",
    "streaming": "Tables larger than memory",
    "mutants": "Mutation tests",
    "coverage": "Coverage",
}
HEAD = """# Fault tests

`python -m faults` makes these tests and writes the counts to `results/trust/`. This page is generated from those files.
`make test` runs short versions of most of them. *Failed* counts results that differ from an undisturbed run, undetected
damage, values that are not finite, and errors that are not one line. *Checks* counts checks: a run that is killed and
resumed may be two. Long runs are those of `nvdp reproduce`. Mutation tests and coverage have their own commands.
"""
RULES = """
## Rules in the code

- **Configuration and seed determine a run.** Every step derives its own random numbers. So no random state is saved,
  and a resumed run equals an uninterrupted one.
- **A file is complete or absent.** It is written to a temporary name, flushed and renamed. The next process removes
  incomplete files of a killed one. Checkpoints carry a SHA-256 checksum of names, shapes, values and step. The last two
  are kept. A damaged checkpoint is reported and skipped; if none is left, `--resume` is refused.
- **A file is read once and completely, then checked.** So the checked bytes are the used bytes, even if the file
  changes later. No file is a pickle. Shapes in a file are compared with the configuration before memory is allocated.
- **A step whose bound or gradient is not finite is skipped** and counted in `log.csv`. After 100 skipped steps the run
  stops with a reason. If the bound is not finite in one of several processes, all processes skip the step.
- **Nothing that exists is overwritten** without `--force`; a file that a command reads is never overwritten. A fitted
  model is written to a folder beside its own, loaded once, and renamed.
- **A row of a table fits its header** or is refused with its line. A file is taken into a store whole or not at all.
- **A state in a store** has a checksum of its name, count and sums. Where a task is not found, the index is compared
  with the rows once, so that damage never makes a known task look new.
- **A request** has ten seconds to arrive. Large requests have their own threads, a lower priority and a bounded queue;
  the work of a visitor who has gone is dropped, and stopped if it is running.
- **A point has one answer**, asked alone or among others, up to the rounding of its precision: matrix products of other
  sizes add in another order. `tests/test_one_answer.py` allows 2e-5 in float32 and 1e-9 in float64.
- **Data far from training is told** with the numbers: by the library, commands, stores, estimators and the server.
- **One process at a time** trains in a folder. Several processes that share one run count as one.
"""


def write_page(results: Path, page: Path) -> None:
    """Write the page with the sections that have a result file."""
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
    lines = [f"## {TITLES[name]}", "", "| test | checks | outcome | failed |", "| --- | ---: | --- | ---: |"]
    for tried in record["tried"]:
        outcomes = "; ".join(f"{n:,} × {said.rpartition(chr(10))[2]}" for said, n in tried["outcomes"].items())
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
    head = ["## Long runs", "", "| run | steps | skipped steps |", "| --- | ---: | ---: |"]
    return [*head, *rows, ""] if rows else []


def _coverage(record: dict[str, Any]) -> str:
    below = ", ".join(f"`{name}` {share:.0f} %" for name, share in record["below"].items())
    return "\n".join(
        [
            f"## {TITLES['coverage']}",
            "",
            f"`make coverage`: the tests reach {record['covered']:,} of {record['lines']:,} lines of `src/nvdp`,",
            f"{record['percent']:.1f} %. Lines that run in separate processes are not counted.",
            f"Files below {LEAST:.0f} %: {below or 'none'}.",
            "",
        ]
    )


def _mutants(record: dict[str, Any]) -> str:
    lines = [
        f"## {TITLES['mutants']}",
        "",
        "`make mutants` changes these files in one place at a time: an operator, a number, an argument or a word",
        f"inside a function (mutmut {record['versions']['mutmut']}). It then runs the quick tests of that function. A",
        "mutant is killed if one of them fails. The surviving mutants are in `results/trust/mutants.json`.",
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
    if name in ("service", "scale", "memory"):
        words = (f"{key.replace('_', ' ').replace(' mb', ' MB')}: {value:,g}" for key, value in numbers.items())
        return f"\n{'; '.join(words)}."
    return (
        f"\nThe largest difference of any weight or optimiser state was {numbers['largest_difference']:.1e} "
        f"(float64; tolerance {numbers['tolerance']:.0e})."
    )
