"""What the entries of each kind of result file are: schemas for `nvdp.experiments.entries`."""

import sys
from typing import Any

from nvdp.evaluation.metrics import FLAVOURS, OF_FUNCTIONS
from nvdp.experiments.entries import Each, Items, Schema, Value
from nvdp.models.registry import MODELS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _are_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_number, value))


def _is_array(value: Any) -> bool:
    return _is_number(value) or (isinstance(value, list) and all(map(_is_array, value)))


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


NUMBER = Value("a number", _is_number)
STDERR = Value("a number; null is that of one task, which has no standard error: score more", _is_number)
SECONDS = Value("a number of at least 0", lambda value: _is_number(value) and value >= 0)
POSITIVE = Value("a number above 0", lambda value: _is_number(value) and value > 0)
COUNT = Value("a whole number of at least 0", lambda value: _is_whole(value) and value >= 0)
ONE_OR_MORE = Value("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
TEXT = Value("a text", lambda value: isinstance(value, str))
FLAG = Value("true or false", lambda value: isinstance(value, bool))
MODEL = Value("the name of a model", lambda value: isinstance(value, str) and value in MODELS)

NUMBERS = Items(NUMBER, 1)
NUMBERS_OR_NULL = Value("a list of numbers", _are_numbers).or_null()
ACCURACY: dict[str, Schema] = dict.fromkeys(("accuracy", "nll", "ece"), NUMBER)
ACCURACY |= dict.fromkeys(("interval95", "stderr"), STDERR)
SCORES: dict[str, Schema] = {**dict.fromkeys(FLAVOURS, NUMBER), "stderr": STDERR}
OWN_CONTEXTS: dict[str, Schema] = dict.fromkeys(("together", "fed_back", "ceiling"), NUMBER)
OWN_CONTEXTS |= dict.fromkeys(("stderr", "fed_back_stderr"), STDERR)
TOGETHER: dict[str, Schema] = dict.fromkeys(("gaussian", "closed_form", "fed_back", "spread", "exact_std"), NUMBER)
EVALUATION: dict[str, Schema] = ACCURACY | {
    "task": TEXT,
    "variance": TEXT,
    "tasks": COUNT,
    "steps": COUNT,
    "scores": Each(SCORES),
    "oracle": Each(NUMBER),
    "attainable": Each(NUMBER),
    "spread": NUMBER,
    "spread_follows_oracle": NUMBER.or_null(),
    "mean_rate": NUMBER.or_null(),
    "coverage": Each(NUMBER),
    "joint": {
        "fed_back_targets": COUNT,
        "spread_follows_oracle": NUMBER.or_null(),
        "by_context": Each(TOGETHER | {"ceiling": Each(NUMBER)}),
    },
    "own_contexts": OWN_CONTEXTS,
    "without_sampling": ACCURACY,
    "nearest_mean": ACCURACY,
    "nearest_mean_accuracy": NUMBER.or_null(),
    "extractors": Items({"steps": COUNT, "seconds": SECONDS.or_null()}),
}
CONFIG: dict[str, Schema] = {
    "task": TEXT,
    "start": TEXT.or_null(),
    "model": {"name": MODEL, "inputs": {}, "likelihood": {"variance": TEXT}},
    "tasks_per_step": ONE_OR_MORE,
}
RESULT: dict[str, Schema] = {
    "name": TEXT,
    "steps": ONE_OR_MORE,
    "seconds": SECONDS,
    "config": CONFIG,
    "evaluation": EVALUATION,
    "evaluations": Each(EVALUATION),
    "transductive": ACCURACY,
}
EPISODES = dict.fromkeys(("way", "shot", "queries"), ONE_OR_MORE) | {"regime": TEXT, "features": TEXT.or_null()}
FEWSHOT_RESULT = RESULT | {"config": CONFIG | {"episodes": EPISODES}}
WITH_RATES = RESULT | {"evaluation": EVALUATION | {"rates": NUMBERS}}
RESULTS = {"table3": FEWSHOT_RESULT, "alive": WITH_RATES}  # by experiment, where they are not `RESULT`

GATES = EVALUATION | {
    "model": TEXT,
    "rates": NUMBERS,
    "verdict": TEXT,
    "gates": Each({"value": NUMBER, "stderr": NUMBER.or_null(), "passed": FLAG}),
    OF_FUNCTIONS: Each(NUMBER),
    f"oracle_{OF_FUNCTIONS}": Each(NUMBER),
}
LIMITS = {
    "inference": Each(NUMBER),
    "choice": {"tasks": COUNT, "gain_over_random": Each(Each(NUMBER)), "smallest_distance": Each(NUMBER)},
}
CURVE = {"mean": NUMBERS, "stderr": NUMBERS}
ACTIVE = {
    **dict.fromkeys(("tasks", "candidates", "steps"), COUNT),
    "curves": Each(Each({"sizes": Items(COUNT, 1), "LL": CURVE})),
    "gain": Each(CURVE | {"sizes": Items(COUNT, 1)}),
}
PICTURE = Value("lists of numbers", _is_array)
PIXELS = {
    "images": COUNT,
    "grids": Items(
        {"title": TEXT, "columns": Items(TEXT), "rows": Items({"label": TEXT, "cells": Items(PICTURE, 1)}, 1)}, 1
    ),
    "pixels": Each(Each(Each(Each(Each(NUMBER), 1), 1), 1), 1),
}
FUNCTIONS: dict[str, Schema] = {
    **dict.fromkeys(("title", "row"), TEXT),
    **dict.fromkeys(("x", "truth", "x_context", "y_context", "mean"), Items(NUMBER)),
    "functions": Items(Items(NUMBER)),
    "std": NUMBERS_OR_NULL,
}
RATES = {
    "kinds": Items({"function": FUNCTIONS, "keep": Items(Items(Items(NUMBER)))}, 1),
    "shared": {"x": NUMBERS, "curves": Each(Items(NUMBERS)), "theta": Items(Items(Items(NUMBER)))},
}
FIGURES: dict[str, Schema] = {
    "figure2": Items(FUNCTIONS, 1),
    "figure3": ACTIVE,
    "figure4": PIXELS,
    "figure9": Each(RATES),
    "pretrained": {"functions": Items(FUNCTIONS, 1), "active": ACTIVE, "digits": PIXELS},
}
PIXEL_ROWS = {
    "rows": Items({"task": TEXT, "model": TEXT, "sizes": Items(COUNT), "PSNR": Each(NUMBERS), "stderr": Each(NUMBERS)})
}
VIEW_ROWS = {"rows": Items({"task": TEXT, "way": COUNT, "scores": Each(Each(ACCURACY))})}
STEP_ROWS = {
    "rows": Items(
        ACCURACY
        | dict.fromkeys(("column", "row", "features"), TEXT)
        | {"steps": COUNT, "episodes": COUNT, "seconds": SECONDS}
    )
}


def _bench_entry(name: str) -> Schema:
    """What an entry of a row of ``nvdp bench`` is, by its name."""
    if name in ("model", "shape", "axis", "table", "kind", "recipe", "folds", "commit"):
        return TEXT
    if name == "before_commit":
        return TEXT.or_null()
    if "quartiles" in name:
        return Items(NUMBER, 2)
    if name in ("steps", "recipes", "network_shares"):  # of tables: one for each fold
        return None
    if name.endswith("skipped"):
        return FLAG
    return NUMBER if name.endswith(("LL", "RMSE")) else NUMBER.or_null()


def _bench(suite: str, needs: dict[str, Any]) -> dict[str, Schema]:
    """The file of a suite, whose rows need some entries for its table and its figure."""
    return {
        "suite": Value(f'"{suite}"', lambda value: value == suite),
        "commit": TEXT.or_null(),
        "machine": {
            "processor": TEXT.or_null(),
            "threads": ONE_OR_MORE,
            "load_average": NUMBERS_OR_NULL,
        },
        "rows": Items(Each(_bench_entry, needs=needs), 1),
    }


PEER: dict[str, Schema] = {"seconds": POSITIVE, "models": Each(Each(NUMBER, needs=dict.fromkeys(("PLL",), NUMBER)), 1)}
START: dict[str, Schema] = {
    "rows": Items(
        {
            "what": TEXT,
            **dict.fromkeys(("seconds", "processor_seconds"), POSITIVE),
            "scores": Each(SCORES),
            OF_FUNCTIONS: Each(NUMBER),
        },
        1,
    )
}
EARLIER_QUALITY = "quality-before.json"  # rows of the suite quality by an earlier version
BENCH = {
    "step": _bench(
        "step", dict.fromkeys(("tasks", "points"), COUNT) | dict.fromkeys(("floor_ms", "ours_over_floor"), POSITIVE)
    ),
    "adapt": _bench("adapt", {"tasks": COUNT, "context": COUNT, "mean_weights_ms": NUMBER}),
    "fewshot": _bench("fewshot", {}),
    "growth": _bench(
        "growth",
        dict.fromkeys(("tasks", "points", "width", "layers"), ONE_OR_MORE)
        | dict.fromkeys(("ours_peak_bytes", "predict_peak_bytes", "autograd_estimated_bytes"), NUMBER)
        | {"autograd_skipped": FLAG},
    ),
    "quality": _bench(
        "quality",
        {"steps": COUNT, "recipe": TEXT}
        | dict.fromkeys(("budget", "seconds", "LL", "LL_expected_log", "ceiling_LL", "attainable_LL"), NUMBER),
    ),
    "tables": _bench(
        "tables",
        {"kind": TEXT, "table": TEXT, "context": COUNT}
        | {
            f"{name}_{score}": NUMBER
            for name in ("ours", "hierarchical", "mixed", "gp", "mean_curve", "last_value")
            for score in ("LL", "RMSE", "coverage90", "coverage50")
        },
    ),
}
