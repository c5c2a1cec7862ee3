"""Predictions of folders of Parquet files: the same as of the library, in parts, whatever file a row is in."""

import numpy as np
import pandas as pd
import pytest
from command_line import nvdp as run
from command_line import refusal

import nvdp
from nvdp.data.streams import stream_tasks
from nvdp.data.tables import Columns
from nvdp.errors import InputError
from nvdp.tables import folders
from nvdp.tables.folders import Question, predict_folder

pytest.importorskip("pyarrow")
COLUMNS = Columns("tree", ("day",), ("size",))


@pytest.fixture
def tables(tmp_path):
    """Contexts of 30 tasks and queries of 31, rows of a task in several files."""
    random = np.random.default_rng(0)

    def frame(tasks, rows):
        day = random.uniform(-2, 2, tasks * rows)
        return pd.DataFrame({"tree": np.tile(np.arange(tasks), rows), "day": day, "size": np.sin(day)})

    for name, table in {"context": frame(30, 4), "at": frame(31, 3).drop(columns="size")}.items():
        (tmp_path / name).mkdir()
        for place, rows in enumerate(np.array_split(np.arange(len(table)), 3)):
            table.iloc[rows].to_parquet(tmp_path / name / f"{place}.parquet")
    return tmp_path


def test_every_row_is_predicted_as_by_the_library(tables, monkeypatch):
    monkeypatch.setattr(folders, "PART_ROWS", 20)
    done = predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out")
    assert (done.rows, done.tasks, done.without) == (93, 31, 1)
    assert len(list((tables / "out").iterdir())) > 5
    context, at, found = (pd.read_parquet(tables / name) for name in ("context", "at", "out"))
    assert sorted(found["day"]) == sorted(at["day"])
    assert list(found.columns) == ["tree", "day", "mean", "std", "q05", "q50", "q95"]
    predictor = nvdp.load("gp-nvdp")
    for tree, rows in found.groupby("tree"):
        own = context[context["tree"] == tree]
        expected = predictor.adapt(own[["day"]].to_numpy(), own[["size"]].to_numpy()).predict(rows[["day"]].to_numpy())
        np.testing.assert_allclose(rows["mean"], expected.mean[:, 0], atol=2e-5)
        np.testing.assert_allclose(rows["q95"], expected.quantile(0.95)[:, 0], atol=2e-5)


def test_the_command_predicts_folders_and_refuses_what_it_cannot_do(tables):
    asked = ["predict", "gp-nvdp", "--task", "tree", "--x", "day", "--y", "size", "--context", tables / "context"]
    result = run(*asked, "--at", tables / "at", "--out", tables / "out")
    assert result.returncode == 0
    assert "93 predictions of 31 tasks" in result.stdout
    assert "1 task without a context" in result.stderr
    for more, words in (
        (["--at", tables / "at", "--out", tables / "out"], "choose another --out"),
        (["--at", "auto", "--out", tables / "new"], "--at is auto; expected a folder of Parquet files"),
        (["--at", tables / "at", "--out", tables / "new", "--plot", tables / "p.png"], "--plot needs files"),
        (["--at", tables / "at", "--out", tables / "new", "--executor", "slurm"], "unknown executor 'slurm'"),
        (["--at", tables / "at", "--out", tables / "new", "--address", "10.0.0.1:1"], "only --executor ray has one"),
        (["--at", tables / "at", "--out", tables / "new", "--jobs", "0"], "'0' for '--jobs'"),
        (["--at", tables / "at", "--out", tables / "new.csv"], "choose a name without '.csv'"),
    ):
        assert words in refusal(*asked, *more)


def test_several_processes_predict_the_same(tables, monkeypatch):
    monkeypatch.setattr(folders, "PART_ROWS", 70)  # 213 rows: four parts
    question = Question("gp-nvdp", COLUMNS)
    counts = [
        predict_folder(question, tables / "context", tables / "at", tables / f"out-{cpus}", cpus=cpus)
        for cpus in (1, 2)
    ]
    assert counts[0] == counts[1]
    one, two = (sorted((tables / f"out-{cpus}").iterdir()) for cpus in (1, 2))
    assert [path.name for path in one] == [path.name for path in two]
    assert len(one) > 1
    assert [path.read_bytes() for path in one] == [path.read_bytes() for path in two]


def test_a_row_without_a_task_is_kept_and_changes_no_name(tables):
    question = Question("gp-nvdp", COLUMNS)
    predict_folder(question, tables / "context", tables / "at", tables / "before")
    for kind in ("context", "at"):  # as pandas writes whole numbers beside an empty cell
        file = tables / kind / "0.parquet"
        frame = pd.read_parquet(file).astype({"tree": "float64"})
        extra = {"tree": np.nan, "day": 0.0, "size": 0.0} if kind == "context" else {"tree": np.nan, "day": 0.0}
        pd.concat([frame, pd.DataFrame([extra])]).to_parquet(file)
    done = predict_folder(question, tables / "context", tables / "at", tables / "out")
    before, found = pd.read_parquet(tables / "before"), pd.read_parquet(tables / "out")
    assert (len(found), done.left_out, done.without) == (len(before) + 1, 2, 1)
    assert found.loc[found["tree"].isna(), "mean"].isna().all()
    both = before.merge(found.dropna(subset="tree"), on=["tree", "day"])
    assert len(both) == len(before)
    np.testing.assert_allclose(both["mean_x"], both["mean_y"], atol=1e-6)
    assert len(stream_tasks(tables / "context", COLUMNS).tasks) == 30


def test_a_file_without_a_column_is_named(tables):
    file = tables / "context" / "1.parquet"
    pd.read_parquet(file).rename(columns={"day": "hour"}).to_parquet(file)
    with pytest.raises(InputError, match=r"1\.parquet: unknown column 'day'"):
        predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out")
    with pytest.raises(InputError, match=r"1\.parquet: unknown column 'day'"):
        stream_tasks(tables / "context", COLUMNS)


def test_columns_of_some_files_and_types_that_differ_are_kept(tables):
    file = tables / "at" / "1.parquet"
    at = pd.read_parquet(file)
    at.assign(day=at["day"].astype("float32"), place=pd.Categorical(["north"] * len(at))).to_parquet(file)
    for kind, comment in enumerate((1, "late")):  # a column that nobody reads may be of any type
        context = tables / "context" / f"{kind}.parquet"
        pd.read_parquet(context).assign(comment=comment).to_parquet(context)
    done = predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out")
    found = pd.read_parquet(tables / "out")
    assert (found["place"] == "north").sum() == len(at)
    assert (done.rows, done.without) == (93, 1)
    at.assign(place=3).to_parquet(tables / "at" / "2.parquet")
    with pytest.raises(InputError, match=r"2\.parquet: column 'place' holds int64, in .*1\.parquet string; expected"):
        predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "again")


def test_notes_of_different_kinds_are_all_told(tables, monkeypatch):
    monkeypatch.setattr(folders, "PART_ROWS", 20)
    for kind, column, value in (("context", "size", 510.0), ("at", "day", 5.0)):
        for path in (tables / kind).iterdir():
            frame = pd.read_parquet(path)
            frame.loc[frame["tree"] == 3 + len(column), column] = value  # of tasks 6 and 7
            frame.to_parquet(path)
    done = predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out")
    far, beyond = done.in_words()
    assert far.startswith("contexts: size goes from")
    assert beyond.startswith("rows to predict: 3 of ")
    for note in (far, beyond):
        assert note.endswith(f"(in one part; such notes on 1 of {done.parts} parts)")


def test_a_note_on_all_parts_is_told_once(tables, monkeypatch):
    monkeypatch.setattr(folders, "PART_ROWS", 70)
    for path in (tables / "at").iterdir():
        pd.read_parquet(path).assign(mean=0.0).to_parquet(path)
    done = predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out", cpus=2)
    (note,) = done.in_words()
    assert note.startswith("the table has a column 'mean' already")
    assert "in one part" not in note


def test_empty_files_and_rows_without_values_do_not_stop_the_others(tables, monkeypatch):
    monkeypatch.setattr(folders, "PART_ROWS", 10)  # a few tasks in each part
    for kind, empty in (("context", "size"), ("at", "day")):
        for path in (tables / kind).iterdir():
            frame = pd.read_parquet(path)
            frame.loc[frame["tree"] < 20, empty] = np.nan
            frame.to_parquet(path)
        frame.iloc[:0].to_parquet(tables / kind / "none.parquet")
    question = Question("gp-nvdp", COLUMNS)
    done = predict_folder(question, tables / "context", tables / "at", tables / "out")
    found = [pd.read_parquet(path) for path in (tables / "out").iterdir()]
    assert any(part["mean"].isna().all() for part in found)  # of which no row can be predicted
    assert sum(map(len, found)) == 93
    assert sum(part["mean"].notna().sum() for part in found) == done.rows == 33
    assert (done.context_rows, done.left_out) == (40, 140)
    for kind, empty in (("context", "size"), ("at", "day")):
        for path in (tables / kind).iterdir():
            pd.read_parquet(path).assign(**{empty: np.nan}).to_parquet(path)
        with pytest.raises(InputError, match="context: each of its rows has an empty cell"):
            predict_folder(question, tables / "context", tables / "at", tables / "nothing")
    for path in (tables / "context").iterdir():
        pd.read_parquet(path).iloc[:0].to_parquet(path)
    with pytest.raises(InputError, match="context has 0 rows"):
        predict_folder(question, tables / "context", tables / "at", tables / "nothing")
    assert not (tables / "nothing").exists()


def test_the_output_is_not_read_as_input(tables):
    for out in (tables / "at", tables / "at" / "deep" / "out", tables / "context" / "out"):
        with pytest.raises(InputError, match=r"is inside .*, whose files are read; choose another --out"):
            predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", out)
    (tables / "real").mkdir()
    (tables / "at" / "0.parquet").rename(tables / "real" / "0.parquet")
    (tables / "at" / "linked").symlink_to(tables / "real")
    with pytest.raises(InputError, match="whose files are read"):
        predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "real" / "out")
    hidden = tables / "at" / ".out.123.part"
    hidden.mkdir()
    pd.read_parquet(tables / "context" / "0.parquet").to_parquet(hidden / "left.parquet")
    done = predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out")
    assert done.rows == 93


def test_folders_that_are_linked_and_an_index_are_read(tables):
    (tables / "at" / "1.parquet").rename(tables / "more.parquet")
    (tables / "elsewhere").mkdir()
    (tables / "more.parquet").rename(tables / "elsewhere" / "1.parquet")
    (tables / "at" / "linked").symlink_to(tables / "elsewhere")
    (tables / "elsewhere" / "round").symlink_to(tables / "at")
    file = tables / "context" / "0.parquet"
    pd.read_parquet(file).set_index("tree").to_parquet(file)
    assert predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out").rows == 93


def test_dates_of_contexts_are_dates_of_queries_too(tables):
    for kind in ("context", "at"):
        for path in (tables / kind).iterdir():
            frame = pd.read_parquet(path)
            day = pd.Timestamp("2024-02-13") + pd.to_timedelta(frame["day"] * 100, "D")
            frame.assign(day=day.dt.strftime("%d/%m/%Y")).to_parquet(path)
    first = tables / "context" / "0.parquet"
    pd.read_parquet(first).assign(day="").to_parquet(first)  # says nothing about dates
    question = Question("general", COLUMNS)
    assert predict_folder(question, tables / "context", tables / "at", tables / "out").rows == 93
    last = tables / "at" / "2.parquet"
    pd.read_parquet(last).assign(day="1.5").to_parquet(last)
    with pytest.raises(InputError, match="expected a date"):
        predict_folder(question, tables / "context", tables / "at", tables / "again")


def test_lists_are_no_names_of_tasks(tables):
    file = tables / "at" / "1.parquet"
    frame = pd.read_parquet(file)
    for path in (tables / "at").iterdir():
        frame.assign(tree=[[1]] * len(frame)).to_parquet(path)
    with pytest.raises(InputError, match=r"at: column 'tree' holds list<.*expected numbers, dates or words"):
        predict_folder(Question("gp-nvdp", COLUMNS), tables / "context", tables / "at", tables / "out")


def test_a_column_that_is_missing_is_named_and_nothing_is_left(tables):
    with pytest.raises(InputError, match="unknown column 'hour'"):
        predict_folder(
            Question("gp-nvdp", Columns("tree", ("hour",), ("size",))),
            tables / "context",
            tables / "at",
            tables / "out",
        )
    assert sorted(path.name for path in tables.iterdir()) == ["at", "context"]
