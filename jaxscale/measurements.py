"""Reading, writing, splitting and summing up measured kernels; see `measurement_format` for the columns."""

from __future__ import annotations

import os
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.errors import InputError, choose
from jaxscale.files import write_atomically, write_table
from jaxscale.hardware_db.store import load_device
from jaxscale.measurement_format import (
    DIMENSIONS,
    ENGINE_FAMILIES,
    LABELS,
    MEASUREMENT_DIMENSIONS,
    Table,
    check_measurements,
    kernel_keys,
    least_seconds,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

__all__ = [
    "DIMENSIONS",
    "ENGINE_FAMILIES",
    "LABELS",
    "MEASUREMENT_DIMENSIONS",
    "check_measurements",
    "file_ending",
    "least_seconds",
    "measurement_map",
    "median_of_repeats",
    "read_measurements",
    "shape_position",
    "split_by_shape",
    "write_measurements",
]

FORMATS = (".csv", ".csv.gz", ".parquet")

KERNEL_PROPERTIES = frozenset(("reads", "writes", "flops", "passes"))
"""Dimensions that tell the directions of one shape apart."""


def read_measurements(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Return the measurements of a .csv, .csv.gz or .parquet file, checked and complete.

    Args:
        path: a file in the format of `jaxscale.measurement_format`.

    Returns:
        Columns in the order of the format, devices by their name in the hardware database.

    Raises:
        InputError: the file cannot be read, is truncated or empty, or `check_measurements` refuses it.
    """
    import pandas as pd

    path, name = Path(path), str(path)
    ending = file_ending(path)
    if not path.is_file():
        raise InputError(f"cannot read {name!r}: there is no such file")
    try:
        # Every cell stays text until its column is known, so that a stray word is shown as written.
        frame = pd.read_parquet(path) if ending == ".parquet" else pd.read_csv(path, dtype=str)
    except pd.errors.EmptyDataError:
        raise InputError(f"{name!r} is empty, allowed are files with at least one measurement") from None
    except (OSError, ValueError, EOFError, zlib.error) as failure:
        reason = str(failure).strip().splitlines()[0] if str(failure).strip() else type(failure).__name__
        raise InputError(f"{name!r} is not a whole {ending} file: {reason}") from None
    return check_measurements(frame, repr(name))


def write_measurements(frame: pd.DataFrame, path: str | os.PathLike[str]) -> Path:
    """Write measurements to a .csv, .csv.gz or .parquet file that appears whole or not at all.

    Raises:
        InputError: `check_measurements` refuses the frame, or the file cannot be written.
    """
    path = Path(path)
    ending = file_ending(path)
    frame = check_measurements(frame, "the table of measurements")
    if ending == ".csv.gz":
        gzip: Any = {"method": "gzip", "mtime": 0}
        return write_atomically(path, lambda to: frame.to_csv(to, index=False, compression=gzip))
    return write_table(frame, path, {"units": "seconds in s, extra_bytes in B"})


def median_of_repeats(frame: Table) -> pd.DataFrame:
    """One row for every kernel that a source measured on a device: the median of its times.

    >>> import pandas as pd
    >>> kernel = {"family": "matmul", "direction": "forward", "precision": "fp32", "device": "v100",
    ...           "source": "mine", "m": 4096, "n": 4096, "k": 4096}
    >>> times = pd.DataFrame([kernel | {"seconds": seconds} for seconds in (0.011, 0.010, 0.012)])
    >>> median_of_repeats(check_measurements(times)).seconds.tolist()
    [0.011]
    """
    import pandas as pd

    rest = {column: "median" for column in ("seconds", "spread") if column in frame}
    tables = []
    for family, rows in frame.groupby("family", sort=False):
        keys = kernel_keys(rows, family)
        # Most kernels are measured once; only the others need a group.
        several = rows.duplicated(keys, keep=False)
        grouped = rows[several].groupby(keys, sort=False, as_index=False).agg(rest)
        tables += [rows[~several], grouped] if several.any() else [rows]
    whole: Table = pd.concat(tables, ignore_index=True)
    return whole[list(frame.columns)]


def measurement_map(frame: pd.DataFrame) -> pd.DataFrame:
    """What teaches what: family, direction, precision, vendor -> rows, devices, sources.

    Args:
        frame: a table that `check_measurements` returned.

    Returns:
        One row per combination that has measurements; `devices` and `sources` are lists in one text.
    """
    vendors = {device: load_device(device).vendor for device in frame.device.unique()}
    listed = ("family", "direction", "precision", "vendor")
    groups = frame.assign(vendor=frame.device.map(vendors)).groupby(list(listed), sort=True)

    def names(column: Any) -> str:
        return ", ".join(sorted(column.unique()))

    table = groups.agg(rows=("seconds", "size"), devices=("device", names), sources=("source", names))
    return table.reset_index()


def shape_position(frame: pd.DataFrame, seed: int = 0) -> np.ndarray:
    """[row] A number in [0, 1) that depends on the seed, the family and the sizes of a row alone.

    Rows of one shape have one number, whatever their device, precision, direction or source, and whatever
    else stands in the table. `position < 0.2` holds out a fifth of the shapes; `position * 5 // 1` makes
    five folds.
    """
    import numpy as np
    from pandas.core.util.hashing import hash_pandas_object

    position = np.zeros(len(frame), np.uint64)
    for family, names in MEASUREMENT_DIMENSIONS.items():
        rows = (frame.family == family).to_numpy()
        if rows.any():
            sizes = frame.loc[rows, [d for d in names if d not in KERNEL_PROPERTIES]].astype(float)
            position[rows] = hash_pandas_object(sizes, index=False).to_numpy()
            position[rows] ^= np.uint64(list(MEASUREMENT_DIMENSIONS).index(family) * 0x9E3779B9)
    # The finalizer of SplitMix64 (Steele, Lea, Flood 2014): neighbouring seeds give unrelated positions.
    position += np.uint64((seed + 1) * 0x9E3779B97F4A7C15 % 2**64)
    position = (position ^ (position >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    position = (position ^ (position >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return (position ^ (position >> np.uint64(31))).astype(float) / 2.0**64


def split_by_shape(frame: Table, fraction: float, seed: int = 0) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the rows to learn from and the rows held out; no shape stands on both sides.

    Args:
        frame: a table of measurements.
        fraction: share of the shapes to hold out, 0 to 1.
        seed: another seed holds out other shapes.
    """
    if not 0 <= fraction <= 1:
        raise InputError(f"the held-out fraction is {fraction}, allowed are 0 to 1")
    held = shape_position(frame, seed) < fraction
    return frame[~held], frame[held]


def file_ending(path: Path) -> str:
    name = path.name.lower()
    return ".csv.gz" if name.endswith(".csv.gz") else choose("measurement format", path.suffix, FORMATS)
