"""A suite as it is asked for: its rows with the machine they were measured on, and the table that people read."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from nvdp.bench import adapt, fewshot, growth, quality, step
from nvdp.bench.timing import machine
from nvdp.errors import unknown_name
from nvdp.system import keep_freed_memory, use_threads

Row = dict[str, Any]
Cell = Callable[[Row], str]


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a suite."""

    quick: bool = False
    run: Path | None = None  # a trained model, for adapt
    seconds: float | None = None  # of training for each recipe, for quality


@dataclass(frozen=True)
class Suite:
    """How a suite's rows are measured, what its numbers mean, and the columns of its table."""

    title: str
    rows: Callable[[Settings], list[Row]]
    notes: dict[str, str]
    columns: dict[str, Cell]


def run_suite(name: str, settings: Settings = Settings(), threads: int = 1) -> dict[str, Any]:  # noqa: B008
    """Measure a suite: what ``nvdp bench --json`` writes."""
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    kept = keep_freed_memory()
    use_threads(threads)
    rows = SUITES[name].rows(settings)
    return {
        "suite": name,
        "quick": settings.quick,
        "machine": machine(kept),
        "notes": SUITES[name].notes,
        "rows": rows,
    }


def table(result: dict[str, Any]) -> Table:
    """The rows of a result for people."""
    suite = SUITES[result["suite"]]
    load = result["machine"]["load_average"]
    caption = f"{result['machine']['threads']} thread(s), torch {result['machine']['torch']}"
    caption += f", load average {load[0]:.1f}" if load else ""
    grid = Table(title=suite.title, caption=caption)
    for column in suite.columns:
        grid.add_column(column, justify="right")
    for row in result["rows"]:
        grid.add_row(*[cell(row) for cell in suite.columns.values()])
    return grid


def _step(settings: Settings) -> list[Row]:
    return step.step_rows(rounds=5, warmup=1) if settings.quick else step.step_rows(rounds=40, warmup=3)


def _adapt(settings: Settings) -> list[Row]:
    return adapt.adapt_rows(settings.run, *((6, 6.0) if settings.quick else (100, 300.0)))


def _growth(settings: Settings) -> list[Row]:
    if settings.quick:
        return growth.growth_rows(3, 5.0, growth.QUICK_AXES)
    return growth.growth_rows(9, 15.0)


def _quality(settings: Settings) -> list[Row]:
    if settings.quick:
        return quality.quality_rows(settings.seconds or 5.0, (0.25, 1.0))
    return quality.quality_rows(settings.seconds or 600.0)


def _fewshot(settings: Settings) -> list[Row]:
    if settings.quick:
        return fewshot.fewshot_rows(5, 10.0, fewshot.QUICK_SHAPES)
    return fewshot.fewshot_rows(30, 60.0)


def _text(key: str) -> Cell:
    return lambda row: str(row[key])


def _number(key: str, form: str = ".1f", unit: str = "", scale: float = 1.0) -> Cell:
    return lambda row: "–" if row.get(key) is None else f"{row[key] * scale:{form}}{unit}"


def _time(name: str) -> Cell:
    def cell(row: Row) -> str:
        if row.get(f"{name}_ms") is None:
            return "–"
        low, high = row[f"{name}_quartiles_ms"]
        return f"{row[f'{name}_ms']:.1f} ({low:.1f}–{high:.1f})"

    return cell


def _memory(row: Row) -> str:
    skipped = row["autograd_skipped"]
    size = row["autograd_estimated_bytes"] if skipped else row["autograd_peak_bytes"]
    return ("≈ " if skipped else "") + f"{size / 2**20:,.0f}" + (" (not run)" if skipped else "")


def _axis(row: Row) -> str:
    return "base" if row["axis"] == "base" else f"{row['axis']} = {row[row['axis']]}"


def _peers(kind: str, cell: Callable[[str], Cell]) -> dict[str, Cell]:
    return {f"{name} {kind}": cell(f"{name}") for name in adapt.NAMES}


SUITES: dict[str, Suite] = {
    "step": Suite(
        "Training step: milliseconds (quartiles) and ratios",
        _step,
        step.NOTES,
        {
            "shape": _text("shape"),
            "model": _text("model"),
            "ours": _time("ours"),
            "autograd": _time("autograd"),
            "floor": _time("floor"),
            "ours / floor": _number("ours_over_floor", ".2f", " ×"),
            "autograd / ours": _number("autograd_over_ours", ".2f", " ×"),
            "default malloc / ours": _number("autograd_default_malloc_over_ours", ".2f", " ×"),
            "tasks (images) / s": _number("tasks_per_second", ".0f"),
        },
    ),
    "adapt": Suite(
        "Adapt and predict: milliseconds, ratio to ours, mean log-likelihood of the targets",
        _adapt,
        adapt.NOTES,
        {
            "case": _text("shape"),
            **_peers("ms", lambda name: _number(f"{name}_ms")),
            "ours, first call ms": _number("ours_first_ms"),
            "fastest ms": _number("fastest_ms"),
            **{f"{name} / ours": _number(f"{name}_over_ours", ".1f", " ×") for name in adapt.NAMES[1:]},
            "sklearn / fastest": _number("sklearn_over_fastest", ".1f", " ×"),
            **_peers("LL", lambda name: _number(f"{name}_ll", ".2f")),
            "fastest LL": _number("fastest_ll", ".2f"),
            "oracle LL": _number("oracle_ll", ".2f"),
        },
    ),
    "fewshot": Suite(
        "Few-shot classifiers: milliseconds (quartiles) for a new task",
        _fewshot,
        fewshot.NOTES,
        {
            "task": _text("shape"),
            "method": _text("model"),
            "adapt": _time("adapt"),
            f"/ {fewshot.BASE}": _number(f"adapt_over_{fewshot.BASE}", ".2f", " ×"),
            "predict": _time("predict"),
            f"/ {fewshot.BASE}'s": _number(f"predict_over_{fewshot.BASE}", ".2f", " ×"),
        },
    ),
    "growth": Suite(
        "Growth of NVDP's training step: milliseconds, and MiB at the peak",
        _growth,
        growth.NOTES,
        {
            "case": _axis,
            "ours": _time("ours"),
            "autograd": _time("autograd"),
            "autograd / ours": _number("autograd_over_ours", ".2f", " ×"),
            "ours MiB": _number("ours_peak_bytes", ",.0f", scale=2**-20),
            "autograd MiB": _memory,
            "ours / autograd memory": _number("ours_memory_over_autograd", ".2f", " ×"),
        },
    ),
    "quality": Suite(
        "Log-likelihood against seconds of training",
        _quality,
        quality.NOTES,
        {
            "model": _text("model"),
            "recipe": _text("recipe"),
            "seconds": _number("seconds", ".0f"),
            "steps": _text("steps"),
            "ms a step": _number("ours_ms"),
            **{name: _number(name, ".3f") for name in ("LL", "RLL", "PLL")},
        },
    ),
}
