"""What the entries of each kind of result file are: schemas for `nvdp.experiments.entries`."""

import sys
from typing import Any

from nvdp.evaluation.metrics import FLAVOURS, OF_FUNCTIONS
from nvdp.experiments.entries import Each, Items, Schema, Value
from nvdp.models.registry import MODELS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


NUMBER = Value("a number", _is_number)
STDERR = Value("a number; null is that of one task, which has no standard error: score more", _is_number)
SECONDS = Value("a number of at least 0", lambda value: _is_number(value) and value >= 0)
COUNT = Value("a whole number of at least 0", lambda value: _is_whole(value) and value >= 0)
ONE_OR_MORE = Value("a whole number of at least 1", lambda value: _is_whole(value) and value >= 1)
TEXT = Value("a text", lambda value: isinstance(value, str))
FLAG = Value("true or false", lambda value: isinstance(value, bool))
MODEL = Value("the name of a model", lambda value: isinstance(value, str) and value in MODELS)

NUMBERS = Items(NUMBER, 1)
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
PIXELS = {"images": COUNT, "pixels": Each(Each(Each(Each(Each(NUMBER), 1), 1), 1), 1)}
FIGURES: dict[str, Schema] = {
    "figure3": ACTIVE,
    "figure4": PIXELS,
    "pretrained": {"active": ACTIVE, "digits": PIXELS},
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
