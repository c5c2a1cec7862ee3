"""Settings of a model: parts that check themselves, and how nested ones are changed and listed by dotted names."""

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import fields, replace
from typing import Any, Self

from nvdp.errors import InputError, unknown_name


class Part:
    """A group of settings, with the checks that groups make of their values."""

    def _check_sizes(self, part: str, *names: str, least: int = 1) -> None:
        for name in names:
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < least:
                raise InputError(
                    f"model setting '{part}.{name}' is {value!r}; expected a whole number of at least {least}"
                )

    def _check_between(self, name: str, low: float, high: float, part: str) -> None:
        value = getattr(self, name)
        if not isinstance(value, int | float) or not low < value < high:
            bounds = "a positive number" if high == math.inf else f"a number between {low:g} and {high:g}"
            raise InputError(f"model setting '{part}.{name}' is {value!r}; expected {bounds}")

    def _check_choice(self, part: str, name: str, choices: tuple[str | None, ...]) -> None:
        value = getattr(self, name)
        if value not in choices:
            expected = " or ".join(repr(choice) for choice in choices)
            raise InputError(f"model setting '{part}.{name}' is {value!r}; expected {expected}")


class NestedConfig:
    """What `ModelConfig` and `ClassifierConfig` share."""

    def updated(self, changes: Mapping[str, Any]) -> Self:
        """The configuration with some settings changed.

        Args:
            changes: New values by dotted name, such as ``{"encoder.layers": 3, "x_dim": 2}``.

        Returns:
            A new configuration; an unknown name is refused.

        >>> from nvdp.models.config import ModelConfig
        >>> ModelConfig("cnp").updated({"decoder.width": 8, "x_dim": 2}).decoder.width
        8
        """
        parts: dict[str, dict[str, Any]] = {}
        plain: dict[str, Any] = {}
        for name, value in changes.items():
            part, _, leaf = name.partition(".")
            owner = getattr(self, part, None)
            known = [item.name for item in fields(owner)] if leaf and dataclasses.is_dataclass(owner) else []
            if (leaf and leaf not in known) or (not leaf and part not in [item.name for item in fields(self)]):  # type: ignore[arg-type]
                raise unknown_name("model setting", name, self.setting_names())
            if leaf:
                parts.setdefault(part, {})[leaf] = value
            else:
                plain[part] = value
        new = {part: replace(getattr(self, part), **values) for part, values in parts.items()}
        return replace(self, **plain, **new)  # type: ignore[type-var]

    @property
    def normalises_tasks(self) -> bool:
        """Whether a part is normalised over the tasks of a batch."""
        return False

    def setting_names(self) -> list[str]:
        """All dotted names."""
        return list(self.flat())

    def flat(self) -> dict[str, Any]:
        """Every setting by its dotted name."""
        values: dict[str, Any] = {}
        for item in fields(self):  # type: ignore[arg-type]
            value = getattr(self, item.name)
            if dataclasses.is_dataclass(value):
                values |= {f"{item.name}.{leaf.name}": getattr(value, leaf.name) for leaf in fields(value)}
            else:
                values[item.name] = value
        return values


def check_config_kind(given: str, expected: str) -> None:
    """Raise an error unless a configuration is of the kind that its class describes."""
    if given != expected:
        raise InputError(f"model setting 'kind' is '{given}'; expected '{expected}'")
