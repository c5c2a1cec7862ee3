"""Table 3: every method in every column, regimes apart, and a page that stands beside the paper's numbers."""

import json
from dataclasses import asdict, replace

import numpy as np
import pytest
from PIL import Image
from quick_scores import in_this_process

from nvdp.data import class_pools as fewshot_folder
from nvdp.data.source import DataConfig
from nvdp.errors import InputError
from nvdp.experiments import table3
from nvdp.experiments.plan import Experiment, PlannedRun
from nvdp.experiments.queue import run_queue, selected
from nvdp.experiments.report import results_page
from nvdp.experiments.results import paper_numbers, read_result, result_path
from nvdp.experiments.table3 import METHODS, PAPER_RATES, SETTINGS, extractors_of, plan, regimes_of, run_name
from nvdp.training.config import RunConfig
from nvdp.training.presets import preset_config


def test_the_cpu_budget_has_every_column_on_features_and_omniglot_in_the_other_regimes():
    runs = plan("cpu")
    assert len({run.name for run in runs}) == len(runs) == 6 * 9 + 4 * 8
    assert all((run.tasks, run.split) == (600, "test") for run in runs)
    for run in runs:
        shape = run.config.episodes
        assert shape.regime == "features" or (run.config.task == "omniglot-fewshot" and shape.way == 5)
        if run.config.model.name == "nvdp" and shape.regime == "features":
            rates, paper = run.config.model.rates, run.name.startswith(PAPER_RATES)
            assert (rates.path, rates.sees) == (("network", "mean") if paper else ("activations", "directions"))
            hidden = max(512, 2 * run.config.model.extractor.features)
            assert run.config.model.decoder.width == (512 if paper else hidden)
        assert (run.config.model.extractor.name == "none") == (shape.regime == "features")
        of_extractors = 3 * 96 if run.config.task == "omniglot-fewshot" else 3 * 128
        assert run.config.model.extractor.features == (of_extractors if shape.regime == "features" else 256)
        if shape.regime == "features" and run.name.startswith("nvdp-") and PAPER_RATES not in run.name:
            assert run.config.steps == 2
        assert run.config.start == (next(iter(extractors_of(run.config.task, "cpu"))) if "tuned" in run.name else None)
        assert RunConfig.from_dict(json.loads(run.config.to_json())) == run.config
    assert {regimes_of(setting, "paper") for setting in SETTINGS} == {("end-to-end",)}
    assert len(plan("paper")) == 48
    extractors = {run.config.episodes.features for run in runs}
    named = [",".join(extractors_of(task, "cpu")) for task in ("omniglot-fewshot", "miniimagenet")]
    assert extractors == {None, *named}
    recipes = list(extractors_of("miniimagenet", "cpu").values())
    assert [(one.flips, one.views, one.seed) for one in recipes] == [(True, "mirrored", seed) for seed in range(3)]


def test_features_of_another_recipe_are_those_of_another_extractor(monkeypatch):
    before = extractors_of("omniglot-fewshot", "cpu")
    assert len(before) == 3
    for changes in ({"views": "moved"}, {"components": 64}):
        changed = tuple(recipe | changes for recipe in table3.RECIPES["cpu", "omniglot-fewshot"])
        monkeypatch.setitem(table3.RECIPES, ("cpu", "omniglot-fewshot"), changed)
        assert not before.keys() & extractors_of("omniglot-fewshot", "cpu").keys()


def test_only_the_extractors_of_the_chosen_runs_are_pretrained(monkeypatch):
    made = []
    monkeypatch.setattr(table3, "_prepare_extractor", lambda name, config, device: made.append((name, config.seed)))
    omniglot, mini = (
        [(name, recipe.seed) for name, recipe in extractors_of(task, "cpu").items()]
        for task in ("omniglot-fewshot", "miniimagenet")
    )
    for only, expected in (
        ("omniglot-20w", omniglot),
        ("end-to-end", []),
        ("fine-tuned", omniglot[:1]),
        (None, omniglot + mini),
    ):
        made.clear()
        table3.prepare(selected(plan("cpu"), only), "cpu", "cpu")
        assert made == expected


def test_every_column_and_method_is_in_the_papers_table():
    paper = paper_numbers()["table3"]
    assert set(METHODS.values()) == set(paper)
    for row in paper.values():
        assert {setting.paper for setting in SETTINGS} == set(row)


def result(method, setting, regime, accuracy, **more):
    episodes = {"way": setting.way, "shot": setting.shot, "queries": 5, "regime": regime}
    config = {"task": setting.task, "tasks_per_step": 8, "episodes": episodes}
    scores = {"accuracy": accuracy, "interval95": 0.004, "nll": 0.2, "ece": 0.01, "tasks": 600}
    name = run_name(method, setting, regime)
    return {"name": name, "budget": "cpu", "config": config, "steps": 10, "seconds": 5.0, "evaluation": scores | more}


def test_the_page_keeps_the_regimes_apart_and_prints_the_papers_numbers(tmp_path):
    omniglot, mini = SETTINGS[0], SETTINGS[-1]
    used = {"extractors": [{"steps": 9_000, "seconds": 2_400.0}], "nearest_mean_accuracy": 0.44}
    other = {"transductive": {"accuracy": 0.98, "interval95": 0.003}}
    rows = [
        result("nvdp", omniglot, "end-to-end", 0.97) | other,
        result("nvdp", omniglot, "features", 0.91, **used),
        result("maml", mini, "features", 0.6, **used),
    ]
    (tmp_path / "table3").mkdir()
    for row in rows:
        result_path(tmp_path, "table3", "cpu", row["name"]).write_text(json.dumps(row))
    text = results_page(tmp_path)
    heads = [line for line in text.splitlines() if line.startswith("###")]
    assert heads[-1:] == ["### Cost of the paper's training"]
    assert heads[:-1] == [
        "### Omniglot 5-way 1-shot, end to end",
        "### Omniglot 5-way 1-shot, features of pretrained extractors",
        "### MiniImageNet 5-way 5-shot, features of pretrained extractors",
    ]
    assert "| `nvdp` | 99.7 ± 0.12 | 97.00 ± 0.40 | 0.200 | 0.010 | 98.00 ± 0.30 | 10 | 5 |" in text
    assert "| `maml` | 63.11 ± 0.92 | 60.00 ± 0.40 | 0.200 | 0.010 | 10 | 5 |" in text
    assert "extractor by extractor: 9,000 more steps and 2,400 more seconds. The nearest" in text
    other = result("cnp", mini, "features", 0.6, **(used | {"nearest_mean_accuracy": 0.45}))
    place = result_path(tmp_path, "table3", "cpu", other["name"])
    renamed = result("cnp", mini, "features", 0.6, **used)
    renamed["config"]["episodes"]["features"] = "another"
    for row in (other, renamed):
        place.write_text(json.dumps(row))
        with pytest.raises(InputError, match="MiniImageNet 5-way 5-shot come from different extractors"):
            results_page(tmp_path)
    place.unlink()
    # 240 images a step, 10 steps in 5 seconds; the paper's run: 80,000 steps of 16 episodes of 80 images.
    assert "| Omniglot 5-way 1-shot | 102 | 480 | 2.5 | 0.6 |" in text


def test_accuracies_without_sampling_have_columns_of_their_own_and_are_compared_with_their_like(tmp_path):
    mini = SETTINGS[-1]
    other = {"without_sampling": {"accuracy": 0.7, "interval95": 0.005, "ece": 0.02}}
    (tmp_path / "table3").mkdir()

    def page(**rows):
        for name, row in rows.items():
            result_path(tmp_path, "table3", "cpu", f"{name}-{mini.short}-features").write_text(json.dumps(row))
        return results_page(tmp_path)

    nvdp, cnp = result("nvdp", mini, "features", 0.6, **other), result("cnp", mini, "features", 0.65)
    text = page(nvdp=nvdp, cnp=cnp)
    assert "| `nvdp` | 68.12 ± 1.04 | 70.00 ± 0.50 | 0.020 | 60.00 ± 0.40 | 0.200 | 0.010 | 10 | 5 |" in text
    assert "| – | – | 65.00 ± 0.40 | 0.200 | 0.010 | 10 | 5 |" in text
    untrained = result("nvdp", mini, "features", 0.6, **other, nearest_mean={"accuracy": 0.58, "interval95": 0.004})
    assert "| nearest class mean |  | 58.00 ± 0.40 |  |  |  |  | 0 | 0 |" in page(nvdp=untrained)
    words = next(line for line in text.splitlines() if "`nvdp` minus `cnp`" in line)
    assert "-5.00" in words
    assert "without sampling" not in words  # cnp is of an earlier version
    exact = {"accuracy": 0.65, "interval95": 0.004, "ece": 0.01}
    text = page(cnp=result("cnp", mini, "features", 0.65, without_sampling=exact))
    words = next(line for line in text.splitlines() if "`nvdp` minus `cnp`" in line)
    assert "+5.00 ± 0.33 (15.3 standard errors) without sampling; `nvdp` minus `cnp`" in words


@pytest.fixture
def pictures(tmp_path, monkeypatch):
    monkeypatch.setenv("NVDP_CACHE", str(tmp_path / "cache"))
    fewshot_folder._split.cache_clear()
    random = np.random.default_rng(0)
    for c in range(14):
        (tmp_path / "classes" / str(c)).mkdir(parents=True)
        for k in range(4):
            pixels = random.integers(0, 256, (16, 16), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / "classes" / str(c) / f"{k}.png")
    return tmp_path / "classes"


def test_the_queue_trains_scores_and_writes_both_kinds_of_batch_norm(pictures, tmp_path):
    data = DataConfig(str(pictures), 16)
    config = preset_config("folder-of-classes", "protonet", "quick", way=2, shot=1, data=data, queries=3, steps=2)
    run = PlannedRun("protonet-omniglot-5w1s-end-to-end", replace(config, tasks_per_step=2), 3, split="test")
    out = tmp_path / "results"
    run_queue(
        Experiment("table3", "a test", lambda budget: [run]),
        "quick",
        out,
        tmp_path / "runs",
        device="cpu",
        executor=in_this_process,
    )
    written = read_result(result_path(out, "table3", "quick", run.name))
    assert written["config"] == json.loads(json.dumps(asdict(run.config)))
    assert (written["evaluation"]["tasks"], written["evaluation"]["transductive"]) == (3, False)
    assert written["transductive"]["transductive"]
    assert "### Omniglot 5-way 1-shot, end to end" in results_page(out, "quick")
