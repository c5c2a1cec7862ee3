"""Choices are made on validation classes, by runs that differ from the shipped one in a single setting."""

from dataclasses import asdict

from nvdp.experiments.fewshot_choices import KL_WEIGHTS, MODEL, RIVALS, SHIPPED, TUNING_SEED, plan
from nvdp.experiments.report_choices import choices_section
from nvdp.experiments.table3 import plan as table3_plan
from nvdp.training.presets import NVDP_FEWSHOT_KL


def test_every_run_changes_what_its_name_says_and_sees_no_test_class():
    runs = {run.name: run for run in plan("cpu")}
    assert list(runs) == [*MODEL, *(f"kl-{weight:g}" for weight in KL_WEIGHTS), *RIVALS]
    shipped = asdict(runs[SHIPPED].config)
    for name, run in runs.items():
        assert (run.split, run.validation_seed) == ("validation", TUNING_SEED)
        config = asdict(run.config)
        if name in MODEL:
            assert config["model"] == shipped["model"] | MODEL[name]
            assert config | {"model": None} == shipped | {"model": None}
        elif name not in RIVALS:
            assert config | {"kl": None} == shipped | {"kl": None}
    assert all(weight != NVDP_FEWSHOT_KL.weight for weight in KL_WEIGHTS)


def test_the_shipped_row_is_the_classifier_of_table_3():
    (in_table,) = (run.config for run in table3_plan("cpu") if run.name == "nvdp-miniimagenet-5w1s-features")
    shipped = plan("cpu")[0].config
    assert shipped.model == in_table.model
    assert (shipped.kl, shipped.episodes) == (in_table.kl, in_table.episodes)


def test_the_section_has_a_row_a_run():
    scores = {"accuracy": 0.5, "interval95": 0.008, "nll": 1.2, "ece": 0.02, "tasks": 600, "mean_rate": 0.25}
    rows = {name: {"steps": 500, "seconds": 60.0, "evaluation": scores} for name in (SHIPPED, "kl-0")}
    rows["protonet"] = {"steps": 500, "seconds": 9.0, "evaluation": scores | {"mean_rate": None}}
    text = choices_section(rows)
    assert "| `shipped` | 50.00 ± 0.80 | 1.200 | 0.020 | 0.250 | 60 |" in text
    assert "| `protonet` | 50.00 ± 0.80 | 1.200 | 0.020 |  | 9 |" in text
    assert choices_section({}) == ""
