"""Timing in turns: every round runs each variant once, so that whatever else the machine does meets all alike."""

import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

Span = tuple[float, float]  # milliseconds of wall clock and of processor
Variant = Callable[[int], Span | None]
"""Does its work for the round of that number; one that works in another process returns the time it took there."""


@dataclass(frozen=True)
class Timings:
    """The spans of each variant, one a round: entry i of two variants was measured in the same round."""

    spans: dict[str, list[Span]]

    def median(self, name: str) -> float:
        """Median wall-clock milliseconds.

        >>> Timings({"a": [(2.0, 1.0), (9.0, 1.0), (3.0, 1.0)]}).median("a")
        3.0
        """
        return statistics.median(wall for wall, _ in self.spans[name])

    def ratio(self, name: str, base: str, processor: bool = False) -> float:
        """Median over rounds of the ratio within a round: robust against a machine that slows down half-way.

        With ``processor`` of processor time, which other processes on a busy machine do not stretch.

        >>> Timings({"a": [(4.0, 1.0), (40.0, 1.0)], "b": [(2.0, 1.0), (20.0, 1.0)]}).ratio("a", "b")
        2.0
        """
        pairs = zip(self.spans[name], self.spans[base], strict=True)
        return statistics.median(own[processor] / other[processor] for own, other in pairs)

    def columns(self, scale: Mapping[str, float] | None = None) -> dict[str, Any]:
        """Medians, quartiles and processor time of every variant, as entries of a row; some multiplied by a scale."""
        row: dict[str, Any] = {}
        for name, spans in self.spans.items():
            factor = (scale or {}).get(name, 1.0)
            walls = [wall * factor for wall, _ in spans]
            low, _, high = statistics.quantiles(walls, n=4, method="inclusive") if len(walls) > 1 else walls * 3
            row[f"{name}_ms"] = statistics.median(walls)
            row[f"{name}_quartiles_ms"] = [low, high]
            row[f"{name}_cpu_ms"] = statistics.median(cpu * factor for _, cpu in spans)
        return row | {"rounds": len(next(iter(self.spans.values())))}


def measured(work: Callable[[], object]) -> Span:
    """How long one call takes, by the wall clock and in this process's own processor time."""
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return 1e3 * (time.perf_counter() - wall), 1e3 * (time.process_time() - cpu)


def interleaved(
    variants: Mapping[str, Variant], rounds: int, warmup: int = 1, seconds: float = float("inf")
) -> Timings:
    """Time the variants in turns for that many rounds, or until the seconds are over; at least one round.

    Odd rounds go backwards through the variants, so that none always runs in the wake of the same other.
    """
    for index in range(warmup):
        for variant in variants.values():
            variant(index)
    spans: dict[str, list[Span]] = {name: [] for name in variants}
    began = time.monotonic()
    for index in range(rounds):
        if index and time.monotonic() - began > seconds:
            break
        order = list(variants)[:: -1 if index % 2 else 1]
        for name in order:
            spans[name].append(_once(variants[name], index))
    return Timings(spans)


def _once(variant: Variant, index: int) -> Span:
    elsewhere: list[Span] = []

    def work() -> None:
        span = variant(index)
        if span is not None:
            elsewhere.append(span)

    here = measured(work)
    return elsewhere[0] if elsewhere else here


def machine(keeps_freed_memory: bool) -> dict[str, Any]:
    """What the numbers were measured on."""
    return {
        "cores": os.cpu_count(),
        "processor": _processor(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "keeps_freed_memory": keeps_freed_memory,
        "load_average": list(os.getloadavg()) if hasattr(os, "getloadavg") else None,
    }


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            return next(line.split(":", 1)[1].strip() for line in file if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor()
