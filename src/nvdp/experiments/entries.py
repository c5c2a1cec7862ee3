"""Entries of result files: what is missing or of a wrong type is refused in one line with the file and the entry.

What a file must hold is said by a schema (`nvdp.experiments.schemas`): a `Value`, `Each` or `Items`, a dictionary of
entries by name, or None for anything. A schema says what entries are where there are any; a missing one is refused when
it is asked for.
"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nvdp.errors import InputError
from nvdp.system import read_json

SHOWN = 40  # letters of a wrong entry


@dataclass(frozen=True)
class Value:
    """A number, a text or another single value: what it is in words, and whether something is one."""

    words: str
    accepts: Callable[[Any], bool]

    def or_null(self) -> "Value":
        """The same, or null."""
        return Value(f"{self.words} or null", lambda value: value is None or self.accepts(value))


@dataclass(frozen=True)
class Each:
    """An object with any names: the kind of its entries, or their kind by name, and those that must be there."""

    of: "Schema | Callable[[str], Schema]"
    least: int = 0
    needs: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Items:
    """A list, whose items are all of one kind."""

    of: "Schema"
    least: int = 0


Schema = Value | Each | Items | dict[str, Any] | None


class Entries(dict[str, Any]):
    """An object of a result file, which refuses to be asked for an entry that it does not have.

    >>> Entries({"LL": 0.5}, Path("a.json"), "scores")["PLL"]
    Traceback (most recent call last):
    nvdp.errors.InputError: a.json has no entry 'scores.PLL'
    """

    def __init__(self, values: dict[str, Any], path: Path, place: str) -> None:
        super().__init__(values)
        self.path, self.place = path, place

    def __missing__(self, name: str) -> Any:
        raise InputError(f"{self.path} has no entry '{_inside(self.place, name)}'")


def _inside(place: str, name: object) -> str:
    return f"{place}.{name}" if place else str(name)


def checked(value: Any, schema: Schema, path: Path, place: str = "") -> Any:
    """What a file holds, refused where it is not as a schema says.

    Args:
        value: What was read.
        schema: What is expected.
        path: The file, for the error.
        place: Which entry of the file the value is, with points between names.

    Returns:
        The same, with `Entries` for objects that the schema describes.
    """
    if schema is None:
        return value
    if isinstance(schema, Value):
        if not schema.accepts(value):
            raise _wrong(value, schema.words, path, place)
        return value
    if isinstance(schema, Items):
        if not isinstance(value, list) or len(value) < schema.least:
            raise _wrong(value, f"a list of at least {schema.least}" if schema.least else "a list", path, place)
        return [checked(item, schema.of, path, _inside(place, number)) for number, item in enumerate(value)]
    least = schema.least if isinstance(schema, Each) else 0
    if not isinstance(value, dict) or len(value) < least:
        raise _wrong(value, f"an object with at least {least}" if least else "an object", path, place)
    if isinstance(schema, Each):
        if missing := [name for name in schema.needs if name not in value]:
            raise InputError(f"{path} has no entry '{_inside(place, missing[0])}'")
        of = schema.of
        schema = {name: of(name) if callable(of) else of for name in value} | schema.needs
    inner = {name: checked(item, schema.get(name), path, _inside(place, name)) for name, item in value.items()}
    return Entries(inner, path, place)


def _wrong(value: Any, words: str, path: Path, place: str) -> InputError:
    text = json.dumps(value)
    shown = text if len(text) <= SHOWN else f"{text[:SHOWN]}…"
    return InputError(f"{path}: {f'entry {place!r}' if place else 'the file'} is {shown}; expected {words}")


def read_entries(path: Path, schema: Schema, *names: str) -> Any:
    """What a JSON file holds, refused in one line if it has not these entries or is not as a schema says."""
    return checked(read_json(path, *names), schema, path)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Refuse a file in one line if what is made of it inside this context fails, e.g. as lists differ in length.

    Entries of a wrong type are not told here, but by the file's schema: a TypeError inside is a fault of the code.

    >>> with reading(Path("a.json")):
    ...     {"LL": 0.5}["PLL"]
    Traceback (most recent call last):
    nvdp.errors.InputError: a.json has no entry 'PLL'
    """
    try:
        yield
    except InputError:
        raise
    except KeyError as error:
        raise InputError(f"{path} has no entry {error}") from error
    except (IndexError, ValueError) as error:
        raise InputError(f"{path} cannot be used: {' '.join(str(error).split())}") from error
