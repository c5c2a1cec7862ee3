"""Dates in a column of a table: the form that they are written in, and their days since 1970.

With slashes the order of day and month is not known from one date. It is known from a column in which one of them is
above 12 somewhere.
"""

import re
from typing import Any

EMPTY = frozenset({"", "na", "n/a", "#n/a", "nan", "<na>", "nat", "null", "none", "-"})  # in any case
ISO, DAY_FIRST, MONTH_FIRST, COMPACT = "ISO8601", "%d/%m/%Y", "%m/%d/%Y", "%Y%m%d"
TIME = r"(?: (\d{1,2}:\d{2}(?::\d{2})?))?"
SLASHES = r"(\d{1,2}/\d{1,2}/\d{4})" + TIME
FORMS = (
    (r"(\d{4}-\d{2}-\d{2}.*)()", ISO),
    (r"(\d{4}-\d{2})()", "%Y-%m"),
    (r"(\d{4}/\d{1,2}/\d{1,2})" + TIME, "%Y/%m/%d"),
    (r"(\d{1,2}\.\d{1,2}\.\d{4})" + TIME, "%d.%m.%Y"),
    (r"(\d{1,2}/\d{4})()", "%m/%Y"),
    (r"((?:19|20)\d{2}(?:0[1-9]|1[0-2])(?:0[1-9]|[12]\d|3[01]))()", COMPACT),
    (SLASHES, DAY_FIRST),
    (SLASHES, MONTH_FIRST),
)
PATTERNS = {form: pattern for pattern, form in FORMS}
LIKE_DATE = re.compile(r"\d{1,4}[./-]\d{1,2}([./-]\d{1,4}.*)?")
YEARS = 1700, 2200  # others are typing errors, or stand for no date
HOW = "write dates as 2024-03-31"


def known_words(cells: Any) -> Any:
    """The cells of a column that are not empty, as stripped text."""
    words = cells.astype(str).str.strip()
    return words[cells.notna() & ~words.str.lower().isin(EMPTY)]


def date_form(cells: Any) -> str | None:
    """The form of a column of dates; None if it has none, or if the order of day and month is not known.

    Args:
        cells: A column of a table.

    Returns:
        A format of `strptime`, or ISO8601.

    >>> import pandas as pd
    >>> [date_form(pd.Series(cells)) for cells in (["31/3/2024", "1/4/2024"], ["3/4/2024"], ["2024-03"], ["3.5"])]
    ['%d/%m/%Y', None, '%Y-%m', None]
    """
    import pandas as pd

    types = pd.api.types
    whole = types.is_integer_dtype(cells) and cells.dropna().between(19_000_101, 20_991_231).all()
    if types.is_numeric_dtype(cells) and not whole:  # of numbers only such as 20240331 are dates
        return None
    words = known_words(cells)
    if not len(words):
        return None
    likely = [(pattern, form) for pattern, form in FORMS if re.fullmatch(pattern, words.iloc[0])]
    found = [form for _, form in likely if days(words, form) is not None]
    return found[0] if len(found) == 1 else None


def days(cells: Any, form: str) -> Any:
    """A column of dates of one form as days since 1970, empty cells as NaN; None if a cell has another form.

    >>> import pandas as pd
    >>> days(pd.Series(["1970-01-03", "", "1970-01-01T12:00"]), ISO).tolist()
    [2.0, nan, 0.5]
    >>> days(pd.Series(["3.1.1970 6:00"]), "%d.%m.%Y").tolist()
    [2.25]
    """
    words = known_words(cells)
    when = _parsed(words, form)
    return None if when.isna().any() else when.reindex(cells.index) if cells.index.is_unique else None


def odd_date(cells: Any) -> tuple[int, str] | None:
    """In a column that is mostly dates of one form, the place of the first other cell, and an example of the form."""
    words = known_words(cells)
    if not len(words):
        return None
    for pattern, form in FORMS:
        if 2 * int(words.str.fullmatch(pattern).sum()) > len(words):
            right = _parsed(words, form).notna()
            if right.any() and not right.all():
                place = cells.index.get_indexer_for([words.index[(~right).argmax()]])[0]
                return int(place), str(words[right].iloc[0])
    return None


def _parsed(words: Any, form: str) -> Any:
    """Days since 1970 of each word; NaN if it has another form."""
    import pandas as pd

    parts = words.str.extract(f"^(?:{PATTERNS[form]})$")
    when = pd.to_datetime(parts[0], format=form, errors="coerce", utc=True)
    if PATTERNS[form].endswith(TIME):
        clock = parts[1].fillna("0:00")
        when += pd.to_timedelta(clock.where(clock.str.count(":") > 1, clock + ":00"), errors="coerce")
    when = when.where(when.dt.year.between(*YEARS))
    return (when - pd.Timestamp(0, tz="UTC")) / pd.Timedelta(days=1)
