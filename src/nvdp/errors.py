"""The one error a user can cause: bad input, told in one line with the number at fault."""

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """Input that cannot be used; the message is one line that says what was given and what was expected.

    The command line prints it and exits with code 2; in Python it is an ordinary ``ValueError``.
    """


def unknown_name(kind: str, name: str, known: Iterable[str]) -> InputError:
    """The error for a name that is not there, with the nearest one that is.

    >>> print(unknown_name("model", "nvpd", ["nvdp", "cnp"]))
    unknown model 'nvpd'; did you mean 'nvdp'? There are: nvdp, cnp
    """
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.4)
    hint = f"did you mean '{near[0]}'? There are" if near else "there are"
    return InputError(f"unknown {kind} '{name}'; {hint}: {', '.join(names)}")


def counted(number: int, noun: str) -> str:
    """A number of things.

    >>> counted(1, "task"), counted(1_200, "task")
    ('1 task', '1,200 tasks')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


class Note(UserWarning):
    """Something that a user should know about what was given; the command line prints it as one line."""


class NameNote(Note):
    """A note about how a name is understood."""


class NothingLeftError(InputError):
    """Each row of a table lacks a value that is needed."""


class FarNote(Note):
    """A context or a query is unlike the data that a model has learned from."""


def check_format(what: object, version: object, expected: int, remedy: str) -> None:
    """Refuse a file of another format version; format 1 is that of version 0.1.

    >>> check_format("fit.json", 1, 2, "fit again")
    Traceback (most recent call last):
    nvdp.errors.InputError: fit.json was written by version 0.1, which this version does not read; fit again
    """
    if version == 1 != expected:
        raise InputError(f"{what} was written by version 0.1, which this version does not read; {remedy}")
    if version != expected:
        raise InputError(f"{what} has format version {version}; this nvdp reads {expected}")
