"""A store of tasks: what went in comes out, after a kill, beside another process, and not from a damaged file."""

import json
import os
import signal
import sqlite3
import subprocess
import sys

import numpy as np
import pytest
import torch
from command_line import nvdp, refusal

from faults.stored import flipped_bits
from nvdp.errors import FarNote, InputError
from nvdp.loading import load
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.models.state import TaskState
from nvdp.store import TaskStore, store_stats
from nvdp.tables import NVDPRegressor


@pytest.fixture
def model(small_config):
    return build_model(small_config("nvdp")).eval().requires_grad_(False)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "tasks.db"


def test_a_store_predicts_as_the_model_does_from_all_points(model, path, make_task):
    task, other = make_task(6, 4), make_task(3, 4)
    with TaskStore(path, model) as store:
        for x, y in zip(task.x_context, task.y_context, strict=True):
            store.observe("a", x[None], y[None])
        assert store.observe("b", other.x_context, other.y_context) == 3
    with TaskStore(path, model) as store:
        assert (list(store), len(store), store.count("a"), store.count("c")) == (["a", "b"], 2, 6, 0)
        ours, theirs = store.predict("a", task.x_target, 8), model.adapt(task.x_context, task.y_context)
        torch.testing.assert_close(ours.functions, theirs.predict(task.x_target, 8).functions, atol=1e-5, rtol=1e-5)
        assert ours.mean.shape == (4, 1)


def test_batches_equal_calls_one_by_one(model, tmp_path, make_task):
    tasks = {f"t{index}": make_task(index % 5 + 1, 1) for index in range(30)}
    names = [*tasks, "t3", "t3"]  # a task may come more than once
    xs, ys = ([getattr(tasks[name], part) for name in names] for part in ("x_context", "y_context"))
    with TaskStore(tmp_path / "many.db", model) as many, TaskStore(tmp_path / "single.db", model) as single:
        counts = many.observe_many(names, xs, ys)
        for name, x, y in zip(names, xs, ys, strict=True):
            single.observe(name, x, y)
        assert counts[-1] == single.count("t3") == 12
        x = torch.linspace(-1, 1, 5)
        together = many.predict_many(list(tasks), x)
        for index, name in enumerate(tasks):
            torch.testing.assert_close(together.mean[index], single.predict(name, x).mean, atol=1e-5, rtol=1e-5)
        each_its_own = torch.randn(2, 3, 1)
        assert many.predict_many(["t1", "t2"], each_its_own, samples=2).mean.shape == (2, 3, 1)


def test_an_unknown_task_has_the_prior_prediction(model, path):
    with TaskStore(path, model) as store:
        prior = TaskState.empty(model).posterior().predict([0.5])
        assert torch.equal(store.predict("nobody", [0.5]).mean, prior.mean)


def test_forgetting_takes_points_out_and_no_more_than_there_are(model, path):
    with TaskStore(path, model) as store:
        store.observe("a", [0.0, 1.0], [1.0, 2.0])
        before = store.predict("a", [0.5]).mean
        store.observe("a", [2.0], [3.0])
        assert store.forget("a", [2.0], [3.0]) == 2
        torch.testing.assert_close(store.predict("a", [0.5]).mean, before, atol=1e-5, rtol=1e-5)
        with pytest.raises(InputError, match="cannot forget 3 points of 'a', which has seen 2"):
            store.forget("a", [0.0, 1.0, 2.0], [1.0, 2.0, 3.0])
        assert store.count("a") == 2


def test_bad_points_change_nothing(model, path):
    with TaskStore(path, model) as store:
        store.observe("a", [0.0], [1.0])
        for x, y in (([0.0, 1.0], [1.0]), ([float("inf")], [1.0]), ([[0.0, 1.0]], [[1.0]])):
            with pytest.raises(InputError):
                store.observe("a", x, y)
            with pytest.raises(InputError):
                store.observe_many(["b", "a"], [[0.5], x], [[0.5], y])
        assert (len(store), store.count("a")) == (1, 1)
        with pytest.raises(InputError, match="named by a text"):
            store.observe("", [0.0], [1.0])


@pytest.mark.parametrize("value", [np.float64(1e30), np.float64(1e38), np.float64(1e200)])
def test_a_huge_value_is_refused_and_poisons_nothing(model, path, value):
    with TaskStore(path, model) as store:
        store.observe("anna", [0.5], [1.0])
        before = store.state(["anna"]).sums
        for x, y in ((np.array([1.2]), np.array([value])), (np.array([value]), np.array([0.0]))):
            with pytest.raises(InputError, match="task 'anna': the point"):
                store.observe("anna", x, y)
            with pytest.raises(InputError, match="task 'bert': the point"):
                store.observe_many(["anna", "bert"], [[0.1], x], [[0.1], y])
            with pytest.raises(InputError, match="too far"):
                model.adapt([0.5], [1.0]).update(x, y)
        assert torch.equal(store.state(["anna"]).sums, before)
        assert (len(store), store.count("anna")) == (1, 1)


def test_data_far_from_training_are_told_with_the_numbers():
    gp = load("gp-nvdp")
    with pytest.warns(FarNote, match="y goes from 470 to 510; the model has learned from values around 0"):
        gp.adapt([0.0, 1.0], [470.0, 510.0])
    with pytest.warns(FarNote, match=r"1 of 2 points lie outside the inputs of training, \[-2, 2\]"):
        gp.adapt([0.0, 9.0], [0.1, 0.2])
    with pytest.warns(FarNote, match="y goes from 100000 to 100000"), TaskStore(":memory:", gp) as store:
        store.observe("anna", [0.5], [1e5])
    with pytest.warns(FarNote, match="y goes from"):
        NVDPRegressor.from_pretrained("gp").fit([[0.5]], [40.0])


@pytest.mark.parametrize("batch", [2, 1_000])
def test_a_file_is_taken_in_whole_or_not_at_all(tmp_path, monkeypatch, batch):
    monkeypatch.setattr("nvdp.store.TASKS_AT_ONCE", batch)
    table, db = tmp_path / "new.csv", tmp_path / "tasks.db"
    rows = [f"t{number % 5},0.5,0.1" for number in range(9)]
    table.write_text("\n".join(["tree,day,size", *rows[:4], "", *rows[4:], "bad,0.5,1e30"]) + "\n")
    common = ["--model", "gp-nvdp", "--task", "tree", "--x", "day", "--y", "size"]
    said = refusal("store", "observe", db, table, *common)
    assert "line 12, task 'bad': the point x = 0.5, y = 1e+30" in said
    assert "nothing of the file was taken in" in said
    assert json.loads(nvdp("store", "stats", db, "--json").stdout)["points"] == 0
    table.write_text(table.read_text().replace("bad,0.5,1e30", "good,0.5,0.3"))
    assert "observed 10 points of 6 tasks" in nvdp("store", "observe", db, table, *common).stdout


def test_half_a_character_in_a_name_is_one_line(model, path):
    with TaskStore(path, model) as store:
        for call in (lambda: store.observe("\ud800", [0.0], [1.0]), lambda: store.predict("a\udfff", [0.0])):
            with pytest.raises(InputError, match="half a character"):
                call()


LOOP = """
import sys, torch
from nvdp.models.config import ModelConfig
from nvdp.models.registry import build_model
from nvdp.store import TaskStore
small = {"decoder.width": 8, "decoder.layers": 1, "encoder.size": 8, "encoder.layers": 1}
model = build_model(ModelConfig("nvdp").updated(small)).eval()
with TaskStore(sys.argv[1], model) as store:
    for number in range(10**9):
        store.observe(f"t{number % 7}", [float(number % 5)], [1.0])
        print(number, flush=True)
"""
BATCH = 50
BATCHES = LOOP.replace(
    """store.observe(f"t{number % 7}", [float(number % 5)], [1.0])""",
    f"""store.observe_many([f"b{{i}}" for i in range({BATCH})], [[0.5]] * {BATCH}, [[1.0]] * {BATCH})""",
)


def small_nvdp():
    return build_model(
        ModelConfig("nvdp").updated({"decoder.width": 8, "decoder.layers": 1, "encoder.size": 8, "encoder.layers": 1})
    ).eval()


@pytest.mark.parametrize("acknowledged", [1, 137])
def test_a_kill_loses_no_acknowledged_observation(path, acknowledged):
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", LOOP, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        for line in process.stdout:
            if int(line) >= acknowledged:
                # While it runs, another process may read.
                with TaskStore(path, small_nvdp()) as reader:
                    assert store_stats(path)["points"] >= acknowledged
                    assert torch.isfinite(reader.predict("t0", [0.5]).mean).all()
                process.send_signal(signal.SIGKILL)
                break
        last = max([acknowledged, *[int(line) for line in process.stdout if line.strip().isdigit()]])
    with TaskStore(path, small_nvdp()) as store:
        points = store_stats(path)["points"]
        assert last + 1 <= points <= last + 2  # one more may have been written and not yet said
        assert store._states.db.execute("PRAGMA integrity_check").fetchone() == ("ok",)
        alone = TaskState.empty(store.model)
        for number in range(points):
            if number % 7 == 0:
                alone = alone.update([float(number % 5)], [1.0])
        torch.testing.assert_close(store.state(["t0"]).sums, alone.sums, atol=1e-5, rtol=1e-5)


def test_a_kill_leaves_batches_whole_and_loses_none_that_was_acknowledged(path):
    command = [sys.executable, "-c", BATCHES, str(path)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        last = next(int(line) for line in process.stdout if int(line) >= 20)
        process.send_signal(signal.SIGKILL)
        last = max([last, *[int(line) for line in process.stdout if line.strip().isdigit()]])
    with TaskStore(path, small_nvdp()) as store:
        counts = {store.count(name) for name in store}
        assert len(store) == BATCH
        assert len(counts) == 1  # no batch is there in part
        assert last + 1 <= counts.pop() <= last + 2


def test_another_model_is_refused(model, path, small_config):
    TaskStore(path, model).close()
    with pytest.raises(InputError, match="this model's is"):
        TaskStore(path, build_model(small_config("nvdp"), seed=1).eval())


def test_damage_is_one_line(model, path, tmp_path):
    (tmp_path / "text.db").write_text("not a database, but a text that is long enough to look at\n" * 50)
    with pytest.raises(InputError, match="not a database"):
        TaskStore(tmp_path / "text.db", model)
    with pytest.raises(InputError, match="not a database"):
        store_stats(tmp_path / "text.db")
    with pytest.raises(InputError, match="cannot be used"):
        TaskStore(tmp_path / "absent" / "tasks.db", model)
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    with pytest.raises(InputError, match="songs"):
        TaskStore(tmp_path / "other.db", model)
    with TaskStore(path, model) as store:
        store.observe("a", [0.0], [1.0])
        store._states.db.execute("UPDATE task SET sums = zeroblob(length(sums))")
        with pytest.raises(InputError, match="the state of task 'a' is damaged"):
            store.predict("a", [0.0])


def test_a_flipped_bit_is_noticed_or_harmless(tmp_path):
    tally = flipped_bits(tmp_path, 60)
    assert tally.wrong == []
    assert tally.tried == 60


def test_a_file_of_another_version_or_of_something_else_is_left_as_it_is(model, path, tmp_path):
    TaskStore(path, model).close()
    db = sqlite3.connect(path)
    db.execute("UPDATE store SET value = 99 WHERE key = 'version'")
    db.commit()
    db.close()
    for use in (lambda: TaskStore(path, model), lambda: store_stats(path)):
        with pytest.raises(InputError, match="format version 99; this nvdp reads 3"):
            use()
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE songs (title TEXT)")
    other.close()
    before = (tmp_path / "other.db").read_bytes()
    for use in (lambda: TaskStore(tmp_path / "other.db", model), lambda: store_stats(tmp_path / "other.db")):
        with pytest.raises(InputError, match="songs"):
            use()
    assert (tmp_path / "other.db").read_bytes() == before
    assert not list(tmp_path.glob("other.db-*"))


def test_a_file_with_a_damaged_middle_is_one_line(model, path, make_task):
    task = make_task(2, 1)
    names = [f"t{index}" for index in range(2_000)]
    with TaskStore(path, model) as store:
        store.observe_many(names, [task.x_context] * 2_000, [task.y_context] * 2_000)
    data = bytearray(path.read_bytes())
    data[len(data) // 4 : len(data) // 2] = os.urandom(len(data) // 2 - len(data) // 4)
    path.write_bytes(data)
    with pytest.raises(InputError), TaskStore(path, model) as store:
        store.state(names)


def test_the_commands_observe_predict_and_tell(tmp_path):
    table, grid, db, out = (tmp_path / name for name in ("new.csv", "grid.csv", "tasks.db", "out.csv"))
    table.write_text("tree,day,size\noak,0.5,0.1\nash,0.2,0.3\noak,1.0,0.4\noak,,0.4\n")
    grid.write_text("tree,day,remark\nash,0.1,x\nelm,0.1,y\noak,0.7,z\n")
    common = ["--model", "gp-nvdp", "--task", "tree", "--x", "day"]
    first = nvdp("store", "observe", db, table, *common, "--y", "size")
    assert first.stdout.strip() == f"observed 3 points of 2 tasks; {db} holds 2 tasks", first.stderr
    assert "left out 1 of 4 rows" in first.stderr
    second = nvdp("store", "predict", db, grid, *common, "--out", out)
    assert second.returncode == 0, second.stderr
    assert "the first is 'elm'" in second.stderr
    rows = out.read_text().splitlines()
    assert rows[0] == "tree,day,remark,mean,std,q05,q50,q95"
    assert [row.split(",")[0] for row in rows[1:]] == ["ash", "elm", "oak"]
    assert json.loads(nvdp("store", "stats", db, "--json").stdout)["points"] == 3
    absent = tmp_path / "absent.db"
    assert f"{absent} does not exist; `nvdp store observe` makes it" in refusal("store", "stats", absent)
    assert "unknown column 'height'" in refusal("store", "observe", db, table, *common, "--y", "height")
