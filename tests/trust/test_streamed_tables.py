"""A folder of Parquet files is read once and sampled fairly, whatever its size, order and number of files."""

import numpy as np
import pandas as pd
import pytest

from nvdp.data.streams import stream_tasks
from nvdp.data.tables import Columns, read_tasks, split_tasks
from nvdp.errors import InputError

COLUMNS = Columns("tree", ("day",), ("size",))


def table(tasks, points, seed=0):
    """Rows of all tasks in random order."""
    chance = np.random.default_rng(seed)
    name = np.repeat([f"t{number}" for number in range(tasks)], points)
    frame = pd.DataFrame({"tree": name, "day": chance.normal(size=len(name)), "size": chance.normal(size=len(name))})
    return frame.sample(frac=1, random_state=seed).reset_index(drop=True)


def written(folder, frame, files):
    folder.mkdir(exist_ok=True)
    for number, part in enumerate(np.array_split(np.arange(len(frame)), files)):
        frame.iloc[part].to_parquet(folder / f"part-{number:02d}.parquet")
    return folder


def contents(tasks):
    return {task.name: sorted(zip(task.x[:, 0], task.y[:, 0], strict=True)) for task in tasks}


def test_a_small_folder_gives_the_tasks_of_its_one_table(tmp_path):
    frame = table(30, 7)
    streamed = read_tasks(written(tmp_path / "parts", frame, 4), COLUMNS)
    assert contents(streamed.tasks) == contents(split_tasks(frame, COLUMNS).tasks)
    assert (streamed.rows, streamed.dropped, streamed.sampled_from) == (210, 0, None)


def test_a_sample_holds_whole_tasks_and_does_not_depend_on_files_or_order(tmp_path):
    frame = table(500, 6)
    samples = [
        stream_tasks(written(tmp_path / name, rows, files), COLUMNS, most_tasks=50, most_rows=400)
        for name, rows, files in (("a", frame, 1), ("b", frame[::-1].reset_index(drop=True), 9))
    ]
    whole = contents(split_tasks(frame, COLUMNS).tasks)
    for sample in samples:
        assert 20 <= len(sample.tasks) <= 50
        assert all(rows == whole[name] for name, rows in contents(sample.tasks).items())
        assert sample.sampled_from == pytest.approx(500, rel=0.6)
    assert contents(samples[0].tasks) == contents(samples[1].tasks)


def test_a_long_task_keeps_a_fair_sample_of_its_rows(tmp_path):
    frame = pd.DataFrame({"tree": "a", "day": np.arange(20_000.0), "size": 0.0})
    sample = stream_tasks(written(tmp_path / "long", frame, 3), COLUMNS, most_points=200, most_rows=1_000)
    days = sample.tasks[0].x[:, 0]
    assert len(days) == 200
    assert days.mean() == pytest.approx(10_000, abs=4 * 5_774 / 200**0.5)
    assert (np.diff(days) > 0).all()  # in the order of the table


def test_empty_cells_are_counted_and_odd_ones_told(tmp_path):
    frame = table(4, 5)
    frame.loc[3, "size"] = np.nan
    frame.loc[7, "tree"] = " "
    assert stream_tasks(written(tmp_path / "holes", frame, 2), COLUMNS).dropped == 2
    frame.loc[5, "size"] = np.inf
    with pytest.raises(InputError, match="holds inf"):
        stream_tasks(written(tmp_path / "holes", frame, 2), COLUMNS)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda folder: None, "holds no Parquet file"),
        (lambda folder: (folder / "a.parquet").write_text("no such thing"), "cannot be read as Parquet"),
        (lambda folder: table(2, 2)[["tree", "day"]].to_parquet(folder / "a.parquet"), "unknown column 'size'"),
        (lambda folder: table(2, 2)[:0].to_parquet(folder / "a.parquet"), "has 0 rows"),
    ],
)
def test_a_folder_that_is_no_table_is_one_line(tmp_path, make, words):
    make(tmp_path)
    with pytest.raises(InputError, match=words):
        stream_tasks(tmp_path, COLUMNS)
