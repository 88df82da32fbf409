"""A bar on stderr for a search that takes its time."""

from __future__ import annotations

import sys
import time
from typing import Any

PROGRESS_AFTER = 1.0
"""Seconds that a search may take before its progress is shown."""


class Progress:
    """What long work calls as it goes; shows nothing where stderr is no terminal.

    Args:
        words: what is being done, with `total` to be filled in.

    >>> with Progress() as progress:
    ...     progress(1_000, 1_000)
    """

    def __init__(self, words: str = "judging {total:,} candidates") -> None:
        self._words = words
        self._started = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar:
            self._bar.stop()

    def __call__(self, done: int, total: int) -> None:
        if not self._bar:
            if not sys.stderr.isatty() or time.monotonic() - self._started < PROGRESS_AFTER or done >= total:
                return
            self._start(total)
        self._bar.update(self._task, completed=done)

    def _start(self, total: int) -> None:
        from rich import progress

        from jaxscale.cli.style import notes

        columns = (
            progress.TextColumn("{task.description}"),
            progress.BarColumn(),
            progress.TaskProgressColumn(),
            progress.TimeRemainingColumn(),
        )
        self._bar = progress.Progress(*columns, console=notes(), transient=True)
        self._task = self._bar.add_task(self._words.format(total=total), total=total)
        self._bar.start()
