"""Where output goes: results to stdout, progress and notes to stderr.

rich itself honours NO_COLOR, FORCE_COLOR and TERM=dumb, and writes no escape codes to a file or pipe.
"""

from __future__ import annotations

import os
import sys

from rich.console import Console

PIPE_WIDTH = 120
"""Columns of a table when stdout is not a terminal and COLUMNS is not set."""


def results() -> Console:
    """The console for answers: stdout."""
    return _console(stderr=False)


def notes() -> Console:
    """The console for progress, warnings and remarks: stderr."""
    return _console(stderr=True)


def _console(stderr: bool) -> Console:
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else PIPE_WIDTH
    return Console(stderr=stderr, width=width, highlight=False, emoji=False, markup=False)
