"""What sections of the results page share: the table of scores in three flavours."""

from collections.abc import Iterator
from typing import Any

from nvdp.evaluation.metrics import FLAVOURS
from nvdp.experiments.results import Result

METRICS = ("LL", "RLL", "PLL")


def score_table(rows: dict[str, Result], paper: dict[str, Any] | None = None) -> Iterator[str]:
    """A row of scores for each result, beside the paper's where there are any, and the ceiling below."""
    head = ["model"] + [f"{m} {f}" for m in METRICS for f in ("mean", "E log", "log E")]
    follows = any(row["evaluation"].get("spread_follows_oracle") is not None for row in rows.values())
    head += (
        ["± LL", "spread"] + (["spread ~ exact std"] if follows else []) + ["rate", "90 % covers", "steps", "seconds"]
    )
    head += ["paper LL / RLL / PLL"] if paper else []
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for name, result in rows.items():
        evaluation = result["evaluation"]
        cells = [f"`{name}`"]
        for metric in METRICS:
            scores = evaluation["scores"][metric]
            cells += [f"{scores[flavour]:.3f}" for flavour in FLAVOURS]
        cells.append(f"{evaluation['scores']['LL']['stderr']:.3f}")
        cells.append(f"{evaluation['spread']:.3f}")
        if follows:
            correlation = evaluation.get("spread_follows_oracle")
            cells.append("" if correlation is None else f"{correlation:.2f}")
        cells.append("" if evaluation["mean_rate"] is None else f"{evaluation['mean_rate']:.3f}")
        cells.append(f"{evaluation['coverage']['90%']:.1%}")
        cells += [f"{result['steps']:,}", f"{result['seconds']:.0f}"]
        if paper:
            printed = paper.get(name)
            cells.append(" / ".join(f"{printed[metric][0]:.2f}" for metric in METRICS) if printed else "")
        yield "| " + " | ".join(cells) + " |"
    oracle = next(iter(rows.values()))["evaluation"].get("oracle")
    if oracle:
        ceiling = [cell for metric in METRICS for cell in (f"**{oracle[metric]:.3f}**", "", "")]
        yield "| " + " | ".join(["ceiling (exact GP)", *ceiling, *[""] * (len(head) - 10)]) + " |"


def runs_section(results: dict[str, Result], title: str, text: str) -> str:
    """A section of one table, the best run first."""
    if not results:
        return ""
    best_first = sorted(results, key=lambda name: -results[name]["evaluation"]["scores"]["LL"]["mean_parameters"])
    table = "\n".join(score_table({name: results[name] for name in best_first}))
    tasks = next(iter(results.values()))["evaluation"]["tasks"]
    return f"## {title}\n\n{text} Scored on {tasks:,} tasks.\n\n{table}"


def steps_of(results: dict[str, Result]) -> str:
    """The different numbers of steps, as text."""
    return ", ".join(f"{steps:,}" for steps in sorted({result["steps"] for result in results.values()}))
