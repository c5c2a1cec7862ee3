"""Ctrl-C and SIGTERM as a request: the step in hand is finished and saved before the run ends."""

import signal
import threading
from types import FrameType, TracebackType
from typing import Any, Self


class StopRequest:
    """While active, remembers the first SIGINT or SIGTERM instead of dying of it; a second one is obeyed at once.

    A `patient` one goes on remembering: one of several processes, which end together.
    """

    def __init__(self, patient: bool = False) -> None:
        self.signal: int | None = None
        self._patient = patient
        self._before: dict[int, Any] = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        if not self._patient:
            self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._remember)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()
