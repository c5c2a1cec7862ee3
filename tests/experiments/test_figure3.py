"""Figure 3: the runs of table 1, curves of every learner and every way to choose, and a page that tells them."""

import json
from dataclasses import replace

import pytest

from nvdp.errors import InputError
from nvdp.experiments import figure3
from nvdp.experiments.plan import PlannedRun
from nvdp.experiments.report import results_page
from nvdp.experiments.table1 import paper_rows
from nvdp.models.registry import build_model
from nvdp.training.run_folder import save_model, start_run


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Curves of two small models that have learned nothing."""
    folders = {}
    for run in figure3.plan("quick"):
        if run.config.model.name not in ("nvdp", "cnp"):
            continue
        small = {
            "decoder.width": 8,
            "decoder.layers": 2,
            "encoder.size": 8,
            "encoder.layers": 2,
            "rates.width": 8,
            "rates.layers": 2,
        }
        config = replace(run.config, model=run.config.model.updated(small))
        folders[run.name] = PlannedRun(run.name, config, 1).folder(tmp_path_factory.mktemp("runs"))
        start_run(folders[run.name], config, resume=False)
        save_model(folders[run.name], build_model(config.model), 1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(figure3.TASKS, "quick", 6)
        return json.loads(json.dumps(figure3.collect(folders), allow_nan=False))


def test_the_runs_are_those_of_table_1_and_some_beyond():
    table, ours = {run.name: run for run in paper_rows("cpu")}, {run.name: run for run in figure3.plan("cpu")}
    paper = {name: run for name, run in ours.items() if name.removesuffix(figure3.VARIANCE) not in figure3.BEYOND}
    assert {run.config.model.name for run in paper.values()} == {"nvdp", "np", "np+vp", "np+cnp", "np+cnp+vp", "cnp"}
    assert all(table[name] == run for name, run in paper.items())
    assert all(run.config.model.likelihood.variance == "learned" for run in ours.values())


def test_every_learner_has_a_curve_for_every_way_to_choose(data):
    assert (data["tasks"], data["candidates"]) == (6, 100)
    assert list(data["curves"]) == ["exact GP", "NVDP", "CNP"]
    for name, ways in data["curves"].items():
        assert set(ways) == {"own", "random"} | ({"oracle"} if name != "exact GP" else set())
        assert ways["own"]["sizes"] == list(range(1, 21))
        begin = {way: curve["LL"]["mean"][0] for way, curve in ways.items()}
        assert len(set(begin.values())) == 1  # all begin with the same random point
    assert data["curves"]["exact GP"]["own"]["LL"]["mean"][-1] > 0.7


def test_one_task_has_no_standard_error_and_is_refused():
    with pytest.raises(InputError, match="at least 2 tasks; got 1"):
        figure3.learned({}, 1)


def test_the_gain_is_own_less_random(data):
    for name, ways in data["curves"].items():
        own = ways["own"]["LL"]["mean"][19]
        expected = own - ways["random"]["LL"]["mean"][-1]
        assert data["gain"][name]["mean"][-1] == pytest.approx(expected, abs=2e-4)


def test_the_figure_is_drawn_and_the_page_tells_its_numbers(data, tmp_path):
    (tmp_path / "figure3").mkdir()
    (tmp_path / "figure3" / "cpu-figure.json").write_text(json.dumps(data))
    written = figure3.draw(data, tmp_path / "figure3.png")
    assert [path.suffix for path in written] == [".png", ".pdf"]
    assert all(path.stat().st_size > 5_000 for path in written)
    page = results_page(tmp_path)
    assert "## Figure 3: active learning" in page
    assert "(figures/figure3.png)" in page
    row = next(line for line in page.splitlines() if line.startswith("| `nvdp` | own choice"))
    assert f"{data['curves']['NVDP']['own']['LL']['mean'][-1]:.2f} ±" in row
