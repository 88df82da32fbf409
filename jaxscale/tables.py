"""Tables for people, by rich."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[str]], left: Iterable[int] = (0,)
) -> Table:
    """A table in the house style: numbers to the right, the columns `left` to the left."""
    from rich import box
    from rich.table import Table

    left = set(left)
    style = {"box": box.SIMPLE_HEAD, "title_justify": "left", "title_style": "bold"}
    made = Table(title=title, pad_edge=False, collapse_padding=True, **style)
    for i, column in enumerate(columns):
        made.add_column(column, justify="left" if i in left else "right", overflow="fold")
    for row in rows:
        made.add_row(*row)
    return made


def number(value: float) -> str:
    """Four significant digits without an exponent.

    >>> number(67298.4), number(3.14159)
    ('67,298', '3.142')
    """
    return f"{value:,.0f}" if value >= 1000 else f"{value:.4g}"
