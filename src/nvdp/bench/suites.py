"""The suites of ``nvdp bench``: how the rows of each are measured, and the columns of its table."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nvdp
from nvdp.bench import adapt, fewshot, quality, real, step, tables
from nvdp.bench.timing import machine
from nvdp.errors import unknown_name
from nvdp.nn.compiled import engine_in_use
from nvdp.system import keep_freed_memory, source_commit, use_threads

Row = dict[str, Any]
Cell = Callable[[Row], str]
TABLE_METHODS = ("ours", "hierarchical", "mixed")
EMPTY = "–"
BFLOAT16 = "bfloat16, all cores"
TRAINING_SUITES = ("step", "growth", "quality")  # in which an engine computes the steps


@dataclass(frozen=True)
class Settings:
    """What a user may ask of a suite."""

    quick: bool = False
    run: Path | None = None  # a trained model, for adapt
    seconds: float | None = None  # of training, for each recipe of quality and each fit of tables
    folds: int = tables.FOLDS  # of tables: how many are fitted
    before: Path | None = None  # of step: the src folder of an earlier version
    done: tuple[Row, ...] = ()  # of quality: rows that were measured before
    save: Callable[[list[Row]], None] | None = None  # of quality: is given all rows after each new one
    say: Callable[[str], None] | None = None  # of quality: is given a line after each new row
    jobs: int = 1  # of quality: trainings side by side
    models: tuple[str, ...] = ()  # of quality: only these
    work: Path | None = None  # of tables: where each fold is kept


@dataclass(frozen=True)
class Suite:
    """How a suite's rows are measured, what its numbers mean, and the columns of its table."""

    title: str
    rows: Callable[[Settings], list[Row]]
    notes: dict[str, str]
    columns: dict[str, Cell]
    details: tuple[str, ...] = ()  # columns that a narrow console leaves out


@dataclass(frozen=True)
class Time:
    """A cell with the median milliseconds of a variant and, if wanted, their quartiles."""

    name: str

    def __call__(self, row: Row, quartiles: bool = True) -> str:
        """The text of the cell."""
        if row.get(f"{self.name}_ms") is None:
            return EMPTY
        low, high = row[f"{self.name}_quartiles_ms"]
        return f"{row[f'{self.name}_ms']:.1f}" + (f" ({low:.1f}–{high:.1f})" if quartiles else "")


def run_suite(name: str, settings: Settings = Settings(), threads: int = 1) -> dict[str, Any]:  # noqa: B008
    """Measure a suite: what ``nvdp bench --json`` writes.

    Args:
        name: Of the suite.
        settings: What is asked of it.
        threads: Of PyTorch.

    Returns:
        The rows and what they were measured on.
    """
    if name not in SUITES:
        raise unknown_name("suite", name, SUITES)
    kept = keep_freed_memory()
    use_threads(threads)
    return suite_result(name, SUITES[name].rows(settings), settings.quick, kept)


def suite_result(name: str, rows: list[Row], quick: bool = False, keeps_freed_memory: bool = True) -> dict[str, Any]:
    """A suite's rows with what they were measured on: the content of its JSON file.

    Args:
        name: Of the suite.
        rows: What was measured.
        quick: Whether with fewer cases and rounds.
        keeps_freed_memory: Whether the allocator of the process keeps freed memory.

    Returns:
        An object for JSON.
    """
    on = machine(keeps_freed_memory)
    if name in TRAINING_SUITES:
        on["engine"] = engine_in_use("compiled")
    return {
        "suite": name,
        "quick": quick,
        "commit": source_commit() or nvdp.__version__,
        "machine": on,
        "notes": SUITES[name].notes,
        "rows": rows,
    }


def measured_on(result: dict[str, Any]) -> str:
    """Machine, threads and commit of a result; what an older file does not have is left out.

    Args:
        result: Of a suite.

    Returns:
        The caption of its table.

    >>> measured_on({"machine": {"processor": "Xeon", "threads": 1, "torch": "2.13", "load_average": None}})
    'Xeon, 1 thread, torch 2.13'
    """
    on = result["machine"]
    parts = [on["processor"]] if on.get("processor") else []
    parts += [f"{on['threads']} thread" + "s" * (on["threads"] > 1), f"torch {on['torch']}"]
    parts += [f"engine {on['engine']}"] if on.get("engine") else []
    parts += [f"load average {on['load_average'][0]:.1f}"] if on.get("load_average") else []
    parts += [f"commit {result['commit']}"] if result.get("commit") else []
    return ", ".join(parts)


def table_cells(result: dict[str, Any], quartiles: bool = True) -> dict[str, list[str]]:
    """The cells of each column; columns that are empty in all rows are left out.

    Args:
        result: Of a suite.
        quartiles: Whether times have their quartiles in parentheses.

    Returns:
        For each header the cells of its column, in the order of the rows.
    """
    columns = {}
    for name, cell in SUITES[result["suite"]].columns.items():
        cells = [cell(row, quartiles) if isinstance(cell, Time) else cell(row) for row in result["rows"]]
        if set(cells) != {EMPTY}:
            columns[name] = cells
    return columns


def _step(settings: Settings) -> list[Row]:
    rounds, warmup = (4, 1) if settings.quick else (10, 2)
    return step.step_rows(rounds, warmup=warmup, before=settings.before)


def _adapt(settings: Settings) -> list[Row]:
    if settings.quick:
        return adapt.adapt_rows(settings.run, 4, 4.0, adapt.QUICK_CONTEXTS, adapt.QUICK_MANY)
    return adapt.adapt_rows(settings.run, 30, 15.0)


def _growth(settings: Settings) -> list[Row]:
    if settings.quick:
        return step.growth_rows(3, 5.0, step.QUICK_AXES)
    return step.growth_rows(9, 15.0)


def _quality(settings: Settings) -> list[Row]:
    seconds = (settings.seconds,) if settings.seconds else (1.0, 3.0) if settings.quick else quality.SECONDS
    tasks = quality.QUICK_TASKS if settings.quick else quality.VALIDATION_TASKS
    for name in settings.models:
        if name not in (known := dict(quality.RECIPES)):
            raise unknown_name("model of the suite quality", name, known)
    recipes = [recipe for recipe in quality.RECIPES if not settings.models or recipe[0] in settings.models]
    return quality.quality_rows(seconds, tasks, recipes, settings.done, settings.save, settings.say, settings.jobs)


def _fewshot(settings: Settings) -> list[Row]:
    if settings.quick:
        return fewshot.fewshot_rows(5, 10.0, fewshot.QUICK_SHAPES)
    return fewshot.fewshot_rows(30, 60.0)


def _tables(settings: Settings) -> list[Row]:
    if settings.quick:
        return tables.table_rows(settings.seconds or 6.0, 5, tables.QUICK_TABLES, folds=1)
    return tables.table_rows(settings.seconds or 150.0, 20, folds=settings.folds, work=settings.work)


def _real(settings: Settings) -> list[Row]:
    return real.real_rows(settings.quick, model=str(settings.run or "general"))


def _real_scores(metric: str, form: str) -> Cell:
    def cell(row: Row) -> str:
        methods = [name for name in ("ours", "sklearn", "gpytorch", "forest", "spline") if name in row["scores"]]
        return " / ".join(f"{row['scores'][name][metric]:{form}}" for name in methods)

    return cell


def _text(key: str) -> Cell:
    return lambda row: str(row[key])


def _number(key: str, form: str = ".1f", unit: str = "", scale: float = 1.0) -> Cell:
    return lambda row: EMPTY if row.get(key) is None else f"{row[key] * scale:{form}}{unit}"


def _scores(metric: str) -> Cell:
    form = ".3g" if metric == "RMSE" else ".3f" if metric == "LL" else ".2f"
    return lambda row: " / ".join(f"{row[f'{name}_{metric}']:{form}}" for name in TABLE_METHODS)


def _memory(row: Row) -> str:
    skipped = row["autograd_skipped"]
    size = row["autograd_estimated_bytes"] if skipped else row["autograd_peak_bytes"]
    return ("≈ " if skipped else "") + f"{size / 2**20:,.0f}"


def _axis(row: Row) -> str:
    return "base" if row["axis"] == "base" else f"{row['axis']} = {row[row['axis']]}"


def _peers(kind: str, cell: Callable[[str], Cell]) -> dict[str, Cell]:
    return {f"{name} {kind}": cell(f"{name}") for name in adapt.NAMES}


SUITES: dict[str, Suite] = {
    "step": Suite(
        "Training step: milliseconds (quartiles) and ratios",
        _step,
        step.STEP_NOTES,
        {
            "shape": _text("shape"),
            "model": _text("model"),
            "ours ms": Time("ours"),
            "autograd ms": Time("autograd"),
            "floor ms": Time("floor"),
            "ours / floor": _number("ours_over_floor", ".2f", " ×"),
            "autograd / ours": _number("autograd_over_ours", ".2f", " ×"),
            "default malloc / ours": _number("autograd_default_malloc_over_ours", ".2f", " ×"),
            "before / ours": _number("before_over_ours", ".2f", " ×"),
            "tasks (images) / s": _number("tasks_per_second", ".0f"),
        },
        details=("tasks (images) / s",),
    ),
    "adapt": Suite(
        "Adapt and predict: milliseconds, ratio to ours, mean log-likelihood of the targets",
        _adapt,
        adapt.NOTES,
        {
            "case": _text("shape"),
            **_peers("ms", lambda name: _number(f"{name}_ms")),
            "ours, first call ms": _number("ours_first_ms"),
            f"{BFLOAT16} ms": _number("fastest_ms"),
            **{f"{name} / ours": _number(f"{name}_over_ours", ".1f", " ×") for name in adapt.NAMES[1:]},
            f"sklearn / {BFLOAT16}": _number("sklearn_over_fastest", ".1f", " ×"),
            **_peers("LL", lambda name: _number(f"{name}_ll", ".2f")),
            f"{BFLOAT16} LL": _number("fastest_ll", ".2f"),
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
            "adapt ms": Time("adapt"),
            f"adapt / {fewshot.BASE}": _number(f"adapt_over_{fewshot.BASE}", ".2f", " ×"),
            "predict ms": Time("predict"),
            f"predict / {fewshot.BASE}": _number(f"predict_over_{fewshot.BASE}", ".2f", " ×"),
        },
    ),
    "growth": Suite(
        "Growth of NVDP's training step and prediction: milliseconds, and MiB at the peak",
        _growth,
        step.GROWTH_NOTES,
        {
            "case": _axis,
            "ours ms": Time("ours"),
            "autograd ms": Time("autograd"),
            "autograd / ours": _number("autograd_over_ours", ".2f", " ×"),
            "ours MiB": _number("ours_peak_bytes", ",.0f", scale=2**-20),
            "autograd MiB": _memory,
            "ours / autograd memory": _number("ours_memory_over_autograd", ".2f", " ×"),
            "predict ms": Time("predict"),
            "predict MiB": _number("predict_peak_bytes", ",.0f", scale=2**-20),
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
            "jobs": _number("jobs", ".0f"),
            "LL before": _number("before_LL", ".3f"),
            "LL": _number("LL", ".3f"),
            "±": _number("LL_stderr", ".3f"),
            "RLL": _number("RLL", ".3f"),
            "PLL": _number("PLL", ".3f"),
            "LL E log": _number("LL_expected_log", ".3f"),
            "attainable LL": _number("attainable_LL", ".3f"),
        },
        details=("ms a step", "jobs"),
    ),
    "tables": Suite(
        "Tables: scores of `nvdp fit` on new tasks beside what an expert would use",
        _tables,
        tables.NOTES,
        {
            "table": _text("shape"),
            "folds": _text("folds"),
            "fit s": _number("fit_seconds", ".0f"),
            **{
                f"{metric}: ours / hierarchical / mixed": _scores(metric)
                for metric in ("LL", "RMSE", "coverage90", "coverage50")
            },
        },
    ),
    "real": Suite(
        "Real data: scores of ours / scikit-learn GP / GPyTorch / forest / spline of one input",
        _real,
        real.NOTES,
        {
            "set": _text("set"),
            "part": _text("part"),
            "points": _text("context"),
            "LL": _real_scores("LL", ".2f"),
            "RMSE": _real_scores("RMSE", ".2f"),
            "in 90 %": _real_scores("coverage90", ".2f"),
            "in 50 %": _real_scores("coverage50", ".2f"),
            "ours ms": _number("ours_ms"),
        },
    ),
}
