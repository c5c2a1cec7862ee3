"""What was tried, how often, and what happened: the rows of the page about trust."""

from collections import Counter
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Tally:
    """The outcomes of one kind of fault; an outcome that must not be is `wrong` and says how it came about."""

    what: str
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    numbers: dict[str, Any] = field(default_factory=dict)  # measured beside, for the page

    def saw(self, outcome: str, times: int = 1) -> None:
        """An outcome as it should be."""
        self.outcomes[outcome] += times

    def failed(self, how: str) -> None:
        """An outcome that must not be."""
        self.wrong.append(how)

    def check(self, good: bool, outcome: str, otherwise: str) -> None:
        """One or the other."""
        if good:
            self.saw(outcome)
        else:
            self.failed(otherwise)

    @property
    def tried(self) -> int:
        """How often."""
        return sum(self.outcomes.values()) + len(self.wrong)

    def record(self) -> dict[str, Any]:
        """Plain values for a JSON file."""
        return {
            "what": self.what,
            "tried": self.tried,
            "outcomes": dict(self.outcomes),
            "wrong": self.wrong,
            **({"numbers": self.numbers} if self.numbers else {}),
        }
