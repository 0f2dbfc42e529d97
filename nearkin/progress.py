"""One progress bar for all long work: a live bar on a terminal, a line now and then in a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from typing import Self, TypeVar

T = TypeVar("T")

_LOG_SECONDS = 15.0


class Progress:
    """A bar of `total` steps; use as a context manager and call `advance`.

    Args:
        title: what is being done.
        total: how many steps there are.
        enabled: False draws nothing.
    """

    def __init__(self, title: str, total: int, enabled: bool = True) -> None:
        self.title = title
        self.total = total
        self.enabled = enabled
        self.done = 0
        self.note = ""
        self._live = enabled and sys.stderr.isatty()

    def __enter__(self) -> Self:
        if self._live:
            from rich import progress
            from rich.console import Console

            self._bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(),
                progress.MofNCompleteColumn(),
                progress.TimeRemainingColumn(),
                progress.TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self.title, total=self.total, note="")
            self._bar.start()
        self._last = time.monotonic()
        return self

    def advance(self, steps: int = 1, note: str = "") -> None:
        """Move the bar; `note` is shown beside it."""
        self.done += steps
        if self._live:
            self.note = note or self.note
            self._bar.update(self._task, advance=steps, note=self.note)
        elif self.enabled and (time.monotonic() - self._last > _LOG_SECONDS or self.done >= self.total):
            self._last = time.monotonic()
            print(f"{self.title}: {self.done}/{self.total} {note}".rstrip(), file=sys.stderr, flush=True)

    def __exit__(self, *_: object) -> None:
        if self._live:
            self._bar.stop()


def track(items: Iterable[T], title: str, total: int, enabled: bool = True) -> Iterator[T]:
    """Iterate with a progress bar."""
    with Progress(title, total, enabled) as bar:
        for item in items:
            yield item
            bar.advance()


def say(line: str, enabled: bool = True) -> None:
    """One line where bars are drawn, before the next of them."""
    if enabled:
        print(line, file=sys.stderr, flush=True)
