"""Files of tables: CSV (also with semicolons or tabs), Parquet and Excel, read as they are within bounds of memory.

Cells of text files stay text: a task named 007 keeps its name, and a word among numbers can be told with its line.
"""

import bz2
import codecs
import csv
import gzip
import itertools
import lzma
import re
import zipfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nvdp.errors import InputError

if TYPE_CHECKING:
    import pandas as pd

MOST_CELLS = 20_000_000  # of a file that is read at once
MOST_LINE = 1_000_000  # characters
IN_PARTS = "write it as a folder of Parquet files, which is read in parts"
PACKED: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open, ".xz": lzma.open}
LINE = "line of the file"  # the name of an index
DOTTED = "cells with a point in a file with decimal commas"  # by column, the line and cell of the first
DECIMAL_COMMA = re.compile(r"^\s*([+-]?\d*),(\d+)\s*$")
THOUSANDS = re.compile(r"^\s*[+-]?\d{1,3}(\.\d{3})+\s*$")
SEPARATORS = (",", ";", "\t")
SEPARATOR_LINE = re.compile(r"^\W?sep=(.)\W*$")  # what Excel writes above a header
OLD_EXCEL = b"\xd0\xcf\x11\xe0"
SUFFIXES = (".parquet", ".pq")
EXCEL = ".xlsx"
MOST_UNPACKED = 500_000_000  # bytes of a workbook


def read_frame(path: Path) -> "pd.DataFrame":
    """A CSV, Parquet or Excel file, cells of CSV and Excel as text; a CSV may be packed as .gz, .bz2 or .xz.

    A row with more or fewer cells than the header is refused with its line. The index of a CSV file are its lines.
    """
    import pandas as pd

    try:
        if path.suffix.lower() == EXCEL:
            return _read_excel(path)
        return _read_parquet(path) if path.suffix.lower() in SUFFIXES else _read_csv(path)
    except FileNotFoundError:
        raise InputError(f"{path} does not exist") from None
    except ImportError:
        package = "openpyxl" if path.suffix.lower() == EXCEL else "pyarrow"
        raise InputError(f"{path}: reading it needs {package}; pip install {package}, or give a CSV file") from None
    except InputError:
        raise
    except (
        pd.errors.ParserError,
        csv.Error,
        UnicodeError,
        OSError,
        EOFError,
        ValueError,
        KeyError,
        zlib.error,
        zipfile.BadZipFile,
    ) as error:
        reason = (str(error).strip() or type(error).__name__).splitlines()[-1]
        if isinstance(error, UnicodeDecodeError):
            reason = f"byte {error.object[error.start]:#04x} is not UTF-8 text; save it as CSV UTF-8"
        raise InputError(f"{path} cannot be read as a table: {reason}") from None


def _read_parquet(path: Path) -> "pd.DataFrame":
    import pandas as pd
    from pyarrow import parquet

    about = parquet.read_metadata(path)
    cells = about.num_rows * about.num_columns
    if cells > MOST_CELLS:
        raise InputError(f"{path} holds {cells:,} cells; {MOST_CELLS:,} are read at once: {IN_PARTS}")
    return pd.read_parquet(path)


def _read_excel(path: Path) -> "pd.DataFrame":
    """The first sheet of a workbook, every cell as text."""
    import pandas as pd

    with zipfile.ZipFile(path) as archive:
        size = sum(each.file_size for each in archive.infolist())
    if size > MOST_UNPACKED:
        raise InputError(f"{path} holds {size:,} bytes unpacked; {MOST_UNPACKED:,} are read at once: {IN_PARTS}")
    frame = pd.read_excel(path, dtype=str, engine="openpyxl").fillna("")
    frame.columns = [str(name).strip() for name in frame.columns]
    return frame


def _read_csv(path: Path) -> "pd.DataFrame":
    import pandas as pd

    opener = PACKED.get(path.suffix.lower(), open)
    with path.open("rb") as file:
        start = file.read(4)
    if start == b"PK\3\4":
        raise InputError(f"{path} cannot be read as a table: it is a zip archive; unpack it first")
    if start == OLD_EXCEL:
        raise InputError(f"{path} cannot be read as a table: it is an old Excel file; save it as .xlsx or CSV")
    with opener(path, "rb") as file:
        wide = file.read(2) in (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
    rows: list[list[str]] = []
    lines: list[int] = []
    dotted: dict[str, tuple[int, str]] = {}
    commas = False
    with opener(path, "rt", encoding="utf-16" if wide else "utf-8-sig", newline="") as file:
        text = _lines(file, path)
        separator, first = _separator(text)
        reader = csv.reader(itertools.chain(first, text), delimiter=separator, skipinitialspace=True, strict=True)
        header = [name.strip() for name in next((row for row in reader if any(map(str.strip, row))), [])]
        if not header:
            raise InputError(f"{path} is empty; expected a line of column names and rows")
        twice = next((name for name in header if header.count(name) > 1), None)
        if twice is not None:
            raise InputError(f"{path} cannot be read as a table: {header.count(twice)} columns are named '{twice}'")
        line, width = reader.line_num + 1, len(header)
        for row in reader:
            if len(row) > width and not any(cell.strip() for cell in row[width:]):
                row = row[:width]
            if row and len(row) != width:
                raise InputError(
                    f"{path} cannot be read as a table: line {line} has {len(row)} cells and the header has {width}"
                )
            if row and separator != ",":
                for name, cell in zip(header, row, strict=True):
                    if THOUSANDS.match(cell):
                        dotted.setdefault(name, (line, cell.strip()))
                plain = [DECIMAL_COMMA.sub(r"\1.\2", cell) for cell in row]
                commas, row = commas or plain != row, plain
            if row:
                rows.append(row)
                lines.append(line)
            line = reader.line_num + 1
            if len(rows) * width > MOST_CELLS:
                raise InputError(f"{path} holds more than {MOST_CELLS:,} cells; {IN_PARTS}")
    frame = pd.DataFrame(rows, columns=header, index=pd.Index(lines, name=LINE), dtype=str)
    frame.attrs[DOTTED] = dotted if commas else {}  # 1.234 may be more than a thousand there
    return frame


def _separator(text: Iterator[str]) -> tuple[str, list[str]]:
    """What separates the cells, and the lines that were read to find it; a line such as sep=; counts as empty."""
    read: list[str] = []
    for line in text:
        told = SEPARATOR_LINE.match(line.strip())
        read.append("\n" if told else line)
        if told:
            return told.group(1), read
        if line.strip():
            return max(SEPARATORS, key=line.count), read
    return ",", read


def _lines(file: Any, path: Path) -> Iterator[str]:
    """The lines of a file; a packed one may hold a line that is longer than memory."""
    for number in itertools.count(1):
        line = file.readline(MOST_LINE)
        if len(line) == MOST_LINE:
            raise InputError(f"{path} cannot be read as a table: line {number} has more than {MOST_LINE:,} characters")
        if not line:
            return
        yield line
