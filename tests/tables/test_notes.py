"""What a user is told about a table before a fit, and about contexts that seem to have another unit."""

import numpy as np
import pandas as pd
import pytest

from nvdp.data.tables import Columns, split_tasks
from nvdp.tables.notes import column_ranges, copy_notes, table_notes, unit_notes
from nvdp.units import Units

COLUMNS = Columns("tree", ("day",), ("size",))


def growth(tasks=12, rows=6, seed=0):
    random = np.random.default_rng(seed)
    day = random.uniform(0, 10, (tasks, rows))
    size = random.normal(5, 1, (tasks, 1)) * day + random.normal(0, 0.1, day.shape)
    return pd.DataFrame({"tree": np.repeat(np.arange(tasks), rows), "day": day.ravel(), "size": size.ravel()})


def notes(frame, columns=COLUMNS):
    columns = columns.learned(frame, "t.csv")
    table = split_tasks(frame, columns)
    return table_notes(table, [(task.x, task.y) for task in table.tasks if len(task.x) > 1], columns, 10_000)


def with_cell(frame, row, name, value):
    frame = frame.copy()
    frame.loc[row, name] = value
    return frame


def test_a_good_table_has_no_notes():
    assert notes(growth()) == []
    heavy = growth().assign(size=np.random.default_rng(0).lognormal(0, 2, 72))
    assert not any("check it" in note for note in notes(heavy))  # orders of magnitude are no outliers


@pytest.mark.parametrize(
    ("frame", "words"),
    [
        (with_cell(growth(), 17, "size", 1e6), "column 'size' holds 1e+06 in line 19; half of its values are from"),
        (with_cell(growth(), 17, "day", -1e6), "column 'day' holds -1e+06 in line 19"),
        (growth().assign(day=4.0), "column 'day' is constant; nothing can depend on it"),
        (growth().assign(size=4.0), "column 'size' is constant; there is nothing to learn about it"),
        (growth().assign(day=1.7e9 + 1e-6 * growth()["day"]), "column 'day' is constant up to rounding; subtract"),
        (pd.concat([growth(), growth()]), "72 rows are copies of another row of their task"),
        (with_cell(growth(), [3, 9, 20], "size", -99), "column 'size' holds -99 in line 5, and 2 values like it"),
        (growth().assign(tree=lambda t: [f"{'tT'[k % 2]}{k // 12}" for k in t.index]), "'t0' and 'T0' are two tasks"),
        (growth().assign(day=[f"{1 + n % 28}/3/2024" for n in range(72)]), "the day first: the first is 2024-03-01"),
        (growth().assign(day=20240301 + np.arange(72) % 28), "dates without separators: the first is 2024-03-01"),
        (growth().assign(size=10.0 ** (np.arange(72) / 18)), "column 'size' goes from 1 to 8799.23: try --log size"),
        (with_cell(growth(), 17, "size", np.nan), "left out 1 of 72 rows"),
    ],
)
def test_what_is_odd_about_a_table_is_told_once(frame, words):
    assert [words in note for note in notes(frame)] == [True]


def test_a_word_of_each_task_alone_and_outputs_that_are_missing_are_told():
    frame = growth().assign(plot=lambda each: "p" + each["tree"].astype(str))
    (told,) = notes(frame, Columns("tree", ("day",), ("size",), given=("plot",)))
    assert "column 'plot' has another word in each task" in told
    assert column_ranges([(np.array([[0.0], [1.5]]), np.array([[2.0], [np.nan]]))], COLUMNS) == {
        "day": ["0", "1.5"],
        "size": ["2", "2"],
    }


def test_contexts_a_thousand_times_smaller_than_the_fitted_table_are_told():
    table = split_tasks(growth(), COLUMNS)
    units = Units.of([task.x for task in table.tasks], [task.y for task in table.tasks])

    def told(**changed):
        return list(unit_notes(units, split_tasks(growth(2, seed=1).assign(**changed), COLUMNS).tasks, COLUMNS))

    assert told() == []
    assert told(day=3.0) == []  # one visit of each task is no other unit
    assert "check its unit" in told(size=growth(2, seed=1)["size"] / 1000)[0]
    assert "day of the contexts is from" in told(day=growth(2, seed=1)["day"] / 1000)[0]


def test_contexts_of_copied_rows_are_told():
    frame = growth(tasks=1)
    once, thrice = (split_tasks(pd.concat([frame] * times), COLUMNS).tasks for times in (1, 3))
    assert not list(copy_notes(once))
    assert next(iter(copy_notes(thrice))).startswith("12 rows of the contexts are copies of another row")
