"""What the readers of measured kernels share: the shape of a tidy table, and a note of what was left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxscale.measurement_format import MEASUREMENT_DIMENSIONS, Table

DATA = Path(__file__).resolve().parents[2] / "shared" / "data" / "kernels"

DROPPED: dict[tuple[str, str], int] = {}
"""Set, reason -> rows that a reader left out when it ran last."""

MEBIBYTE = 2.0**20


def tidy(source: str, family: str, direction: Any, precision: Any, device: Any, **columns: Any) -> Table:
    """One tidy table; labels and columns are single values or one per row.

    Args:
        source, family, direction, precision, device: labels.
        columns: every dimension of the family, `seconds`, and where there are any `extra_bytes` and
            `extra_kernels`.
    """
    rows = len(columns["seconds"])
    labels = {
        "family": family, "direction": direction, "precision": precision, "device": device, "source": source,
    }  # fmt: skip
    table = {name: np.broadcast_to(np.asarray(label, object), rows) for name, label in labels.items()}
    numbers = ("seconds", "extra_bytes", "extra_kernels")
    for name in (*MEASUREMENT_DIMENSIONS[family], *(n for n in numbers if n in columns)):
        table[name] = np.broadcast_to(np.asarray(columns[name], float), rows)
    return pd.DataFrame(table)


def drop(name: str, reason: str, table: Table, wrong: Any) -> Table:
    """Return the rows of `table` where `wrong` [row] is not set, and note how many others there were."""
    DROPPED[name, reason] = int(np.sum(wrong))
    return table[~np.asarray(wrong, bool)]
