"""Tables as people have them: what is read, what is left out and what is refused, with its line."""

import gzip

import numpy as np
import pandas as pd
import pytest

from nvdp.data.table_files import read_frame
from nvdp.data.tables import Columns, read_tasks, split_tasks
from nvdp.errors import InputError

COLUMNS = Columns("tree", ("day",), ("size",))


@pytest.fixture
def table(tmp_path):
    """A function (text) -> the tasks of a CSV file with that text."""

    def read(text, columns=COLUMNS):
        path = tmp_path / "table.csv"
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return read_tasks(path, columns)

    return read


def test_tasks_come_in_order_with_their_rows_however_mixed(table):
    read = table("tree,day,size\nb,2,20\na,1,10\nb,1,15\n")
    assert [(task.name, task.x[:, 0].tolist(), task.rows.tolist()) for task in read.tasks] == [
        ("b", [2.0, 1.0], [0, 2]),
        ("a", [1.0], [1]),
    ]
    assert read.note is None


def test_a_name_that_looks_like_a_number_is_kept_as_it_is(table):
    assert [task.name for task in table("tree,day,size\n007,1,1\n7,1,1\n").tasks] == ["007", "7"]


def test_rows_with_an_empty_cell_are_left_out_and_counted(table):
    read = table("tree,day,size\na,1,10\na,,3\na,2,NA\n,3,4\na,4,nan\na,5,50\n")
    assert read.tasks[0].y[:, 0].tolist() == [10.0, 50.0]
    assert (read.rows, read.dropped) == (6, 4)


def test_spaces_a_mark_of_order_and_scientific_notation_are_read(table):
    read = table(b"\xef\xbb\xbftree,day,size\n a , 1e1, -2.5E-3 \n")
    assert (read.tasks[0].name, read.tasks[0].x.item(), read.tasks[0].y.item()) == ("a", 10.0, -0.0025)


def test_a_frame_of_numbers_is_read_like_a_file():
    frame = pd.DataFrame({"tree": [1, 1, 2], "day": [0.0, np.nan, 2.0], "size": [1, 2, 3]}, index=[7, 7, 9])
    read = split_tasks(frame, COLUMNS)
    assert [(task.name, task.rows.tolist()) for task in read.tasks] == [("1", [0]), ("2", [2])]


def test_parquet_keeps_types_and_is_told_about_like_a_csv(tmp_path):
    frame = pd.DataFrame({"tree": [7, 7, 8], "day": [1, 2, 3], "size": [1.5, None, 2.5]})
    frame.to_parquet(tmp_path / "table.parquet")
    read = read_tasks(tmp_path / "table.parquet", COLUMNS)
    assert [(task.name, task.y[:, 0].tolist()) for task in read.tasks] == [("7", [1.5]), ("8", [2.5])]
    frame.assign(size=["small", "tall", "tall"]).to_parquet(tmp_path / "words.parquet")
    with pytest.raises(InputError, match="holds 'small' in line 2"):
        read_tasks(tmp_path / "words.parquet", COLUMNS)
    (tmp_path / "text.parquet").write_text("tree,day,size\n")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_tasks(tmp_path / "text.parquet", COLUMNS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tree,day\na,1\n", "unknown column 'size'"),
        ("tree,dya,size\na,1,2\n", "unknown column 'day'; did you mean 'dya'"),
        ("tree,day,size\na,1,2\na,2,tall\n", "column 'size' holds 'tall' in line 3; expected a number"),
        ("tree,day,size\na,1,inf\n", "column 'size' holds inf in line 2"),
        ("tree,day,size\na,-Infinity,2\n", "column 'day' holds -inf in line 2"),
        ("tree,day,size\n", "0 rows"),
        ("", "is empty"),
        ("tree,day,size\na,,1\nb,1,\n", "each of its 2 rows has an empty cell"),
        ("tree,day,size\na,1,\nb,1,\n", "column 'size' is empty; nothing is left"),
        ("\n \n\n", "is empty"),
        (
            'tree,day,size\na,1,"1,234.5"\n',
            "holds '1,234.5' in line 2; expected a number without a thousands",
        ),
        ('tree,day,size\na,1,"1,5"\n', "holds '1,5' in line 2; expected a number with a decimal point"),
        ("tree;day;size\na;1;2,5\na;2;1.234\n", "holds '1.234' in line 3, in a file with decimal commas"),
        ("tree;day;size\na;1;1.234,5\n", "holds '1.234,5' in line 2; expected a number without a thousands"),
        ("tree,day,size\na,1,2024-03-01\n", "expected a number; dates are for columns of --x"),
        ("tree,day,size\na,\0,1\n", "holds '\\x00' in line 2"),
        ("tree,day,size\n\xe9,1,1\n".encode("latin-1"), "byte 0xe9 is not UTF-8 text; save it as CSV UTF-8"),
        (b"\xd0\xcf\x11\xe0 and more", "it is an old Excel file; save it as .xlsx or CSV"),
        ("tree,day,size\na,1,2\na,1,2,3,4\n", "cannot be read as a table"),
        (b"\xff\xfe\x00\x01,\x80\n", "cannot be read as a table"),
    ],
)
def test_a_bad_table_is_one_line(table, text, words):
    with pytest.raises(InputError) as caught:
        table(text)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_columns_have_one_part_each(tmp_path):
    with pytest.raises(InputError, match="'day' is named 2 times"):
        Columns("tree", ("day",), ("day",))
    with pytest.raises(InputError, match="does not exist"):
        read_tasks(tmp_path / "absent.csv", COLUMNS)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("tree,day,size\na,1,2,9\nb,1,2,9\n", "line 2 has 4 cells and the header has 3"),
        ("tree,day,size\na,1,2\n\n\nb,1\n", "line 5 has 2 cells and the header has 3"),
        ('tree,day,size\na,1,2\n"b\nc",1,2\nd,1,2,3\n', "line 5 has 4 cells"),
        ("tree,day,size,day\na,1,2,3\n", "2 columns are named 'day'"),
        ('tree,day,size\na,1,2\n"b,1,2\n', "unexpected end of data"),
        ("tree,day,size\n\na,1,2\n\na,1,tall\n", "holds 'tall' in line 5"),
        (b"PK\3\4\0\0", "it is a zip archive; unpack it first"),
    ],
    ids=["shifted", "short", "line break in a cell", "doubled name", "open quote", "blank lines", "zip"],
)
def test_rows_that_do_not_fit_the_header_are_refused_with_their_line(table, text, words):
    with pytest.raises(InputError) as caught:
        table(text)
    assert words in str(caught.value)


def test_empty_cells_behind_the_last_column_shift_nothing(table):
    assert table("tree,day,size\na,1,2,,\n").tasks[0].y.item() == 2.0


def test_packed_tables_are_read_and_never_unpacked_without_end(tmp_path, monkeypatch):
    path = tmp_path / "table.csv.gz"
    with gzip.open(path, "wt") as file:
        file.write("tree,day,size\n" + "a,1,2\n" * 1_000)
    assert len(read_tasks(path, COLUMNS).tasks[0].x) == 1_000
    monkeypatch.setattr("nvdp.data.table_files.MOST_CELLS", 600)
    with pytest.raises(InputError, match="holds more than 600 cells; write it as a folder of Parquet files"):
        read_tasks(path, COLUMNS)
    pd.DataFrame({"tree": ["a"] * 300, "day": 1.0, "size": 2.0}).to_parquet(tmp_path / "table.parquet")
    with pytest.raises(InputError, match="holds 900 cells; 600 are read at once"):
        read_tasks(tmp_path / "table.parquet", COLUMNS)
    monkeypatch.undo()
    monkeypatch.setattr("nvdp.data.table_files.MOST_LINE", 50)
    with gzip.open(path, "at") as file:
        file.write("a,1," + "2" * 100)
    with pytest.raises(InputError, match="line 1002 has more than 50 characters"):
        read_tasks(path, COLUMNS)
    monkeypatch.undo()
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_tasks(path, COLUMNS)


def test_semicolons_decimal_commas_dates_and_groups_are_read(tmp_path):
    rows = ["\ufefftree;day;size;site", "a;2024-01-01;1,5;north", "a;2024-01-03;2;north", "b, c;2024-01-02;-0,25;south"]
    (tmp_path / "t.csv").write_text("\n".join(rows), encoding="utf-8")
    table = read_tasks(tmp_path / "t.csv", Columns("tree", ("day",), ("size",), "site"))
    assert [(task.name, task.group) for task in table.tasks] == [("a", "north"), ("b, c", "south")]
    assert table.tasks[0].y[:, 0].tolist() == [1.5, 2.0]
    assert table.tasks[1].y[:, 0].tolist() == [-0.25]
    first, third = table.tasks[0].x[:, 0]
    assert third - first == 2.0
    assert first == 19723.0


def test_given_columns_are_numbers_or_indicators_and_constant_within_a_task(tmp_path):
    (tmp_path / "t.csv").write_text("cow,week,milk,diet,age\na,1,2,hay,3\na,2,3,hay,3\nb,1,2,oats,4.5\nc,1,2,,5\n")
    frame = read_frame(tmp_path / "t.csv")
    columns = Columns("cow", ("week",), ("milk",), None, ("diet", "age")).learned(frame, "t.csv")
    assert columns.levels == (("hay", "oats"), ())
    table = split_tasks(frame, columns)
    assert [task.x[0].tolist() for task in table.tasks] == [[1.0, 0.0, 3.0], [1.0, 1.0, 4.5]]
    assert table.dropped == 1
    frame.loc[frame.index[1], "diet"] = "oats"
    with pytest.raises(InputError, match="column 'diet' changes within task 'a'; name such a column in --x"):
        split_tasks(frame, columns)


def test_an_excel_file_is_read_like_a_csv(tmp_path):
    frame = pd.DataFrame(
        {"tree": ["007", "007"], "day": pd.to_datetime(["2024-01-01", "2024-01-03"]), "size": [1.5, None]}
    )
    frame.to_excel(tmp_path / "t.xlsx", index=False)
    table = read_tasks(tmp_path / "t.xlsx", COLUMNS)
    assert (table.tasks[0].name, table.tasks[0].x[0, 0], table.tasks[0].y.item()) == ("007", 19723.0, 1.5)
    assert table.dropped == 1
    (tmp_path / "t.xlsx").write_bytes(b"PK no workbook")
    with pytest.raises(InputError, match="cannot be read as a table"):
        read_tasks(tmp_path / "t.xlsx", COLUMNS)


@pytest.mark.parametrize(
    "text",
    [
        "tree\tday\tsize\na\t1,5\t2\n",
        "sep=;\ntree;day;size\na;1,5;2\n",
        "\n\ntree;day;size\na;1,5;2\n",
        "tree,day,size\na,1.5,2\n".encode("utf-16"),
    ],
    ids=["tabs", "Excel's first line", "blank lines first", "UTF-16"],
)
def test_what_spreadsheets_write_is_read(table, text):
    (task,) = table(text).tasks
    assert (task.name, task.x.item(), task.y.item()) == ("a", 1.5, 2.0)


def test_a_point_is_decimal_where_no_comma_is(table):
    assert table("tree;day;size\na;1;1.234\n").tasks[0].y.item() == 1.234
    assert table("tree;day;size;code\na;1;2,5;1.234\n").tasks[0].y.item() == 2.5  # a column that is not used


@pytest.mark.parametrize(
    ("cells", "days"),
    [
        (["2024-01-01", "2024-01-03"], [19723, 19725]),
        (["2024-01-01 06:00", "2024-01-03 12:00"], [19723.25, 19725.5]),
        (["1.1.2024", "03.01.2024"], [19723, 19725]),
        (["13.1.2024 18:00", "14.1.2024 0:00"], [19735.75, 19736]),
        (["13/1/2024", "3/1/2024"], [19735, 19725]),
        (["1/13/2024 12:00", "1/3/2024 0:00"], [19735.5, 19725]),
        (["2024/1/13", "2024/01/03"], [19735, 19725]),
        (["2024-01", "2024-02"], [19723, 19754]),
        (["1/2024", "02/2024"], [19723, 19754]),
        (["20240101", "20240103"], [19723, 19725]),
    ],
    ids=lambda each: str(each[0]),
)
def test_dates_in_many_forms_are_days(table, cells, days):
    rows = "".join(f"a,{cell},1\n" for cell in [*cells, "NA"])
    assert table(f"tree,day,size\n{rows}").tasks[0].x[:, 0].tolist() == days


@pytest.mark.parametrize(
    ("cells", "words"),
    [
        (["3/4/2024", "5/6/2024"], "'3/4/2024' in line 2; expected a number; the order of day and month is not known"),
        (["13/4/2024", "4/13/2024"], "holds '4/13/2024' in line 3; expected a date such as 13/4/2024"),
        (["2024-01-01", "2024-01-02", "soon"], "holds 'soon' in line 4; expected a date such as 2024-01-01"),
        (["2024-01-01", "2024-02-30", "2024-03-01"], "holds '2024-02-30' in line 3; expected a date such as"),
        (["1.4.24", "1.5.24"], "holds '1.4.24' in line 2; expected a number; write dates as 2024-03-31"),
        (["2024-03-01", "2024-03-02", "9999-12-31"], "'9999-12-31' in line 4; expected a date such as 2024-03-01"),
    ],
    ids=["ambiguous", "contradictory", "word", "no such day", "two digits", "no such year"],
)
def test_dates_that_are_not_clear_are_refused_with_their_line(table, cells, words):
    with pytest.raises(InputError) as caught:
        table("tree,day,size\n" + "".join(f"a,{cell},1\n" for cell in cells))
    assert words in str(caught.value)


def test_the_fitted_table_says_whether_an_input_is_a_date_and_which_order_it_has():
    def frame(*cells):
        return pd.DataFrame({"tree": "a", "day": cells, "size": 1.0})

    dates = COLUMNS.learned(frame("3/25/2024", "3/1/2024"), "t.csv")
    assert (dates.dates, dates.date_forms) == (("day",), ("%m/%d/%Y",))
    assert split_tasks(frame("3/4/2024"), dates).tasks[0].x.item() == 19786.0  # 4 March
    assert split_tasks(frame("2024-03-04"), dates).tasks[0].x.item() == 19786.0
    for cells, words in (
        (("25/3/2024",), "holds '25/3/2024' in line 2; expected a date"),
        ((19786,), "holds '19786' in line 2; expected a date"),
        (("2024-03-04", "x", "2024-03-04"), "holds 'x' in line 3; expected a date"),
    ):
        with pytest.raises(InputError, match=words):
            split_tasks(frame(*cells), dates)
    numbers = COLUMNS.learned(frame(1.0, 2.0), "t.csv")
    with pytest.raises(InputError, match="holds '2024-03-04' in line 2; expected a number, as in the fitted table"):
        split_tasks(frame("2024-03-04"), numbers)
