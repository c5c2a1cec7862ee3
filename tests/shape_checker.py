"""beartype as jaxtyping's import hook needs it, leaving out the two kinds of hints that it cannot check there."""

from typing import Any, Self

from beartype import BeartypeConf, beartype

NUMBERS_WIDEN = BeartypeConf(is_pep484_tower=True)  # an int is a float, as for the static checker


def _cannot_be_checked(hint: object) -> bool:
    # Methods are decorated one by one, where Self has no meaning; protocols are for the static checker.
    is_static_protocol = getattr(hint, "_is_protocol", False) and not getattr(hint, "_is_runtime_protocol", False)
    return hint is Self or is_static_protocol


def check(function: Any) -> Any:
    """Check the arguments and the result of a function at every call."""
    hints = getattr(function, "__annotations__", {})
    if any(map(_cannot_be_checked, hints.values())):
        function.__annotations__ = {name: Any if _cannot_be_checked(hint) else hint for name, hint in hints.items()}
    return beartype(function, conf=NUMBERS_WIDEN)
