"""Every way to say no: {"detail": one line that quotes what was wrong}, in ASCII, whatever the request held."""

import json
from typing import Any

from starlette.responses import Response

LONGEST = 300  # characters of a reason


def refusal(status: int, reason: str, headers: dict[str, str] | None = None) -> Response:
    """An error answer; lone surrogates, control characters and not-a-numbers of a request cannot break it.

    >>> refusal(422, "x is \\ud800").body
    b'{"detail": "x is \\\\ud800"}'
    """
    line = " ".join(reason.split())
    line = line if len(line) <= LONGEST else line[: LONGEST - 1] + "…"
    return Response(json.dumps({"detail": line}), status, headers, "application/json")


def first_fault(errors: list[dict[str, Any]]) -> str:
    """Pydantic's first fault as one line: where, what, and what was given.

    >>> first_fault([{"loc": ("body", "x", 0), "msg": "Input should be a valid list", "input": "a"}])
    "x[0]: input should be a valid list; got 'a'"
    """
    fault = errors[0]
    if fault.get("type") == "json_invalid":
        return f"the body is not JSON, at character {fault['loc'][-1]}"
    place = ""
    for part in fault["loc"]:
        place += f"[{part}]" if isinstance(part, int) else f".{part}"
    place = place.removeprefix(".body").lstrip(".") or "the body"
    message = fault["msg"][:1].lower() + fault["msg"][1:]
    given = fault.get("input")
    if isinstance(given, dict | list):
        given = f"{type(given).__name__} of {len(given)}"
    elif isinstance(given, str):
        given = repr(given[:60])
    elif isinstance(given, int | float):
        given = _short(given)
    return f"{place[:80]}: {message}; got {given}"


def _short(number: float) -> str:
    try:
        return f"{number!r:.40}"
    except ValueError:  # a whole number of too many digits to print
        return "a whole number of thousands of digits"
