"""A clean stop on Ctrl-C: finish the step, save, say how to go on."""

from __future__ import annotations

import signal
import threading
from types import FrameType


class StopRequest:
    """While active, a first SIGINT or SIGTERM only sets `requested`; a second one interrupts at once."""

    def __init__(self) -> None:
        self.requested = False
        self._before: dict[int, object] = {}

    def __enter__(self) -> StopRequest:
        # Only the main thread may set handlers; elsewhere (a notebook's worker, a server) signals stay as they are.
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self._before[number] = signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)  # type: ignore[arg-type]
