"""Studies: each run differs from the base in what its name says, and no test class is used to choose settings."""

from dataclasses import asdict, replace

from nvdp.experiments.plan import TUNING_SEED
from nvdp.experiments.studies import (
    FEWSHOT_CHANGES,
    FEWSHOT_KL_WEIGHTS,
    FEWSHOT_RIVALS,
    SHIPPED,
    fewshot_choices,
)
from nvdp.experiments.table3 import plan as table3_plan
from nvdp.models.registry import NVDP_KL_WEIGHTS


def test_every_run_changes_what_its_name_says_and_sees_no_test_class():
    runs = {run.name: run for run in fewshot_choices("cpu")}
    assert list(runs) == [*FEWSHOT_CHANGES, *(f"kl-{weight:g}" for weight in FEWSHOT_KL_WEIGHTS), *FEWSHOT_RIVALS]
    shipped = asdict(runs[SHIPPED].config)
    for name, run in runs.items():
        assert (run.split, run.validation_seed) == ("validation", TUNING_SEED)
        config = asdict(run.config)
        if name in FEWSHOT_CHANGES:
            assert run.config.model.flat() == runs[SHIPPED].config.model.flat() | FEWSHOT_CHANGES[name]
            assert config | {"model": None} == shipped | {"model": None}
        elif name not in FEWSHOT_RIVALS:
            assert config | {"kl": None} == shipped | {"kl": None}
    assert all(weight != NVDP_KL_WEIGHTS["classification"] for weight in FEWSHOT_KL_WEIGHTS)


def test_the_shipped_row_is_the_classifier_of_table_3():
    (in_table,) = (run.config for run in table3_plan("cpu") if run.name == "nvdp-miniimagenet-5w1s-features")
    shipped = fewshot_choices("cpu")[0].config
    first, *others = in_table.episodes.features.split(",")
    assert len(others) == 2
    wider = {"extractor.features": 3 * 128, "decoder.width": 2 * 3 * 128}  # features of three extractors
    assert shipped.model.updated(wider) == in_table.model
    assert (shipped.kl, shipped.episodes) == (in_table.kl, replace(in_table.episodes, features=first))
