"""The section of table 3 on the results page: accuracy on test classes beside the paper's, regime by regime."""

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from nvdp.experiments.results import Result
from nvdp.experiments.table3 import METHODS, SETTINGS, Setting, extractor_config, run_name
from nvdp.training.presets import preset_config

TEXT = """Accuracy in per cent on {tasks} episodes of test classes, 15 queries a class, ± the 95 % interval over
episodes; probabilities are averaged over 10 samples before the top class is taken. NLL is in nats, ECE with 15 bins.
The two regimes are separate tables: *end to end*, every method trains its own extractor on episodes; *features*, all
methods train on the features of one extractor that was pretrained by ordinary classification of the training classes.
The paper's numbers are end to end at its own length of training. *Transductive* lets batch norm use the statistics of
an episode's images, queries included; all other numbers do not."""
WHY_TEXT = """**Why these differ from the paper's.** End to end, a method here has minutes of training where the
paper gives it 60,000 to 100,000 steps of twice as many episodes with three times the queries. On features all methods
stand on one extractor, whose nearest class mean is most of what they reach; it is four blocks of 64 channels at 28×28
and five at 84×84, as the paper's, but was trained for little more than an hour at most."""
COST_TEXT = """**What the paper's length would cost.** Images through the extractor in one training run at the paper's
settings, at the best speed among the runs above (miniImageNet: that of the pretraining), one core of a busy machine.
The last column supposes a GPU as fast as {factor} such cores; none was here to measure."""
GPU_FACTOR = 100
REGIMES = {"end-to-end": "end to end", "features": "features of a pretrained extractor"}


def table3_section(results: dict[str, Result], paper: dict[str, Any], budget: str = "cpu") -> str:
    """The section as Markdown; empty if there are no results."""
    if not results:
        return ""
    tasks = ", ".join(str(count) for count in sorted({result["evaluation"]["tasks"] for result in results.values()}))
    blocks = ["## Table 3: few-shot classification", "", TEXT.format(tasks=tasks)]
    for regime, title in REGIMES.items():
        for setting in SETTINGS:
            rows = {name: results.get(run_name(name, setting, regime)) for name in METHODS}
            present = {name: row for name, row in rows.items() if row is not None}
            if present:
                blocks += ["", f"### {setting.paper}, {title}", "", *_table(present, setting, paper)]
                if missing := [f"`{name}`" for name in METHODS if name not in present]:
                    blocks += ["", f"Not run: {', '.join(missing)}."]
                blocks += list(_extractor(next(iter(present.values()))))
    return "\n".join([*blocks, *(["", WHY_TEXT, *_costs(results)] if budget == "cpu" else [])])


def _table(rows: dict[str, Result], setting: Setting, paper: dict[str, Any]) -> Iterator[str]:
    transductive = any("transductive" in row for row in rows.values())
    head = ["method", "paper", "ours", "NLL", "ECE", *(["transductive"] if transductive else []), "steps", "seconds"]
    yield "| " + " | ".join(head) + " |"
    yield "|" + " --- |" * len(head)
    for name, row in rows.items():
        evaluation = row["evaluation"]
        cells = [f"`{name}`", _paper(paper[METHODS[name]].get(setting.paper)), _accuracy(evaluation)]
        cells += [f"{evaluation['nll']:.3f}", f"{evaluation['ece']:.3f}"]
        if transductive:
            cells.append(_accuracy(row["transductive"]) if "transductive" in row else "")
        cells += [f"{row['steps']:,}", f"{row['seconds']:.0f}"]
        yield "| " + " | ".join(cells) + " |"


def _extractor(row: Result) -> Iterator[str]:
    extractor = row["evaluation"].get("extractor")
    if extractor:
        yield ""
        accuracy = extractor["nearest_mean_accuracy"]
        yield (
            f"The extractor took {extractor['steps']:,} steps, {extractor['seconds']:,.0f} seconds on top; its nearest "
            f"class mean, 5-way 1-shot on validation classes, is {100 * accuracy:.1f}."
        )


def _costs(results: dict[str, Result]) -> Iterator[str]:
    speeds: dict[str, float] = {}
    for result in results.values():
        task, config = result["config"]["task"], result["config"]
        if config["episodes"]["regime"] == "end-to-end":
            speed = result["steps"] * images_a_step(config) / result["seconds"]
        elif task == "miniimagenet":
            extractor = result["evaluation"]["extractor"]
            speed = extractor["steps"] * extractor_config(task, result["budget"]).batch / extractor["seconds"]
        else:
            continue
        speeds[task] = max(speed, speeds.get(task, 0.0))
    settings = [setting for setting in SETTINGS if setting.task in speeds]
    if not settings:
        return
    yield "\n" + COST_TEXT.format(factor=GPU_FACTOR) + "\n"
    yield f"| one run | million images | images a second here | days of a core | hours of {GPU_FACTOR} cores |"
    yield "| --- | --- | --- | --- | --- |"
    for setting in settings:
        config = asdict(preset_config(setting.task, "protonet", "paper", way=setting.way, shot=setting.shot))
        images, speed = config["steps"] * images_a_step(config), speeds[setting.task]
        cells = [f"{images / 1e6:,.0f}", f"{speed:,.0f}", f"{images / speed / 86_400:.1f}"]
        yield f"| {setting.paper} | " + " | ".join([*cells, f"{images / speed / 3_600 / GPU_FACTOR:.1f}"]) + " |"


def images_a_step(config: dict[str, Any]) -> int:
    """Support and query images of all episodes of a step.

    >>> images_a_step({"tasks_per_step": 8, "episodes": {"way": 5, "shot": 1, "queries": 15}})
    640
    """
    episodes = config["episodes"]
    return int(config["tasks_per_step"] * episodes["way"] * (episodes["shot"] + episodes["queries"]))


def _accuracy(evaluation: dict[str, Any]) -> str:
    return f"{100 * evaluation['accuracy']:.2f} ± {100 * evaluation['interval95']:.2f}"


def _paper(value: Any) -> str:
    """The paper's number, with its interval where it prints one.

    >>> _paper([54.06, 1.86]), _paper(98.1), _paper(None)
    ('54.06 ± 1.86', '98.1', '–')
    """
    if value is None:
        return "–"
    return f"{value[0]} ± {value[1]}" if isinstance(value, list) else str(value)
