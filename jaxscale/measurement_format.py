"""Measured kernels in one tidy format: a row per time, the dimensions of its kernel by name, a source.

Columns, in this order:

family, direction, precision, device, source
    Keys of `ENGINE_FAMILIES`, formats of `PRECISIONS`, a device of the hardware database, any short name.
dimensions
    As `MEASUREMENT_DIMENSIONS` names them, empty where a family has none of that name. Products and
    attention are described by their forward kernel in every direction; a memory-bound kernel (normalization,
    elementwise, softmax, pooling) by what it reads and writes itself.
seconds
    Time of the kernel; for `training` that of forward and both backward kernels together.
spread, extra_bytes, extra_kernels
    0 where left out: relative spread of repetitions, and bytes moved by, and number of, the memory-bound
    kernels that a benchmark of a whole layer timed together with this one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from jaxscale import kernels
from jaxscale.errors import InputError, choose
from jaxscale.hardware_db.store import load_device, locate
from jaxscale.nouns import KERNEL_DIMENSIONS, PRECISIONS

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

Table = Any
"""A pandas table, of which type checkers know too little."""

_CONVOLUTION = tuple(f"convolution_{name}" for name in ("forward", "backward_data", "backward_filter"))

ENGINE_FAMILIES: dict[str, dict[str, tuple[str, ...]]] = {
    "convolution": {
        **{family.removeprefix("convolution_"): (family,) for family in _CONVOLUTION},
        "training": _CONVOLUTION,
    },
    "matmul": {
        "forward": ("matmul",),
        "backward_data": ("matmul",),
        "backward_filter": ("matmul",),
        "training": ("matmul",) * 3,
    },
    "batched_matmul": {"forward": ("batched_matmul",), "backward": ("batched_matmul",) * 2},
    "attention": {"forward": ("attention_forward",), "backward": ("attention_backward",)},
    **{
        family: {"forward": (family,), "backward": (family,)}
        for family in ("normalization", "elementwise", "softmax", "pooling", "embedding", "recurrent")
    },
    "optimizer": {"forward": ("optimizer",)},
}
"""Family of a measurement -> direction -> the kernel families of the engine whose times it adds up."""

MEASUREMENT_DIMENSIONS = {
    family: KERNEL_DIMENSIONS[directions["forward"][0]] for family, directions in ENGINE_FAMILIES.items()
}
"""Family of a measurement -> names of the dimensions that it must have."""

LABELS = ("family", "direction", "precision", "device", "source")
EXTRAS = ("spread", "extra_bytes", "extra_kernels")
DIMENSIONS = tuple(dict.fromkeys(name for names in MEASUREMENT_DIMENSIONS.values() for name in names))

ITEMSIZES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0}
"""B per element by precision."""

MAY_BE_ZERO = frozenset(("reads", "writes", "flops", "causal", "inputs", "across_samples"))
"""Dimensions that are no sizes, and the inputs of a recurrent layer that multiplies its state alone."""

CONFLICT = 3.0
"""Repetitions of one kernel, device and source that differ by more than this factor contradict each other."""

UNITS_FACTOR = 1000.0
"""Times that are off by this factor are in another unit."""


def check_measurements(frame: pd.DataFrame, name: str = "measurements") -> pd.DataFrame:
    """Return a table of measurements with all columns of the format and names in their usual spelling.

    Args:
        frame: columns of the format, optional ones may be left out.
        name: what the table is called in messages.

    Raises:
        InputError: what the format does not allow, by row (the first is 1) and column.
    """
    table: Table = frame.reset_index(drop=True)
    _check_columns(table, name)
    table = table.assign(**{label: _labels(table, label, name) for label in LABELS})
    _check_directions(table, name)
    numbers = {
        column: _numbers(table, column, name)
        for column in ("seconds", *EXTRAS, *DIMENSIONS)
        if column in table or column in EXTRAS
    }
    table = table.assign(**numbers)
    _check_values(table, name)
    _check_dimensions(table, name)
    _check_repeats(table, name)
    _check_units(table, name)
    return table[[*LABELS, *(d for d in DIMENSIONS if d in table), "seconds", *EXTRAS]]


def kernel_keys(frame: pd.DataFrame, family: str) -> list[str]:
    """Return the columns of a table that tell one measured kernel of a family from another."""
    names = (*LABELS, *MEASUREMENT_DIMENSIONS[family], "extra_bytes", "extra_kernels")
    return [name for name in names if name in frame]


def _refuse(rows: Any, name: str, sentence: str) -> None:
    """Raise when any of `rows` [row] is set, naming the first."""
    if rows.any():
        raise InputError(f"{name}: row {int(rows.argmax()) + 1}: {sentence}")


def _check_columns(frame: Table, name: str) -> None:
    allowed = (*LABELS, *DIMENSIONS, "seconds", *EXTRAS)
    for column in frame.columns:
        if column in allowed:
            continue
        if str(column).lower().startswith(("time", "latency", "seconds", "duration", "ms", "us")):
            raise InputError(f"{name}: column {column!r} is not allowed, times stand in 'seconds', in s")
        try:
            known = choose("column", str(column), allowed)
        except InputError as failure:
            raise InputError(f"{name}: {failure}") from None
        raise InputError(f"{name}: column {column!r} must be written {known!r}")
    for column in (*LABELS, "seconds"):
        if column not in frame:
            raise InputError(
                f"{name}: there is no column {column!r}; each row needs {', '.join(LABELS)}, seconds"
            )
    if frame.empty:
        raise InputError(f"{name} has no rows, allowed are tables with at least one measurement")


def _labels(frame: Table, column: str, name: str) -> Any:
    _refuse(frame[column].isna().to_numpy(), name, f"{column} is empty")
    words = frame[column].astype(str).str.strip()
    return words.map({word: _label(column, word, words, name) for word in words.unique()})


def _label(column: str, word: str, words: Table, name: str) -> str:
    allowed = {
        "family": ENGINE_FAMILIES,
        "direction": {d for directions in ENGINE_FAMILIES.values() for d in directions},
        "precision": PRECISIONS,
    }
    try:
        if column == "device":
            load_device(word)
            return word if word.endswith(".toml") else locate(word, ("device",))[1].stem
        return choose(column, word, allowed[column]) if column in allowed else word
    except InputError as failure:
        raise InputError(f"{name}: row {int((words == word).argmax()) + 1}: {failure}") from None


def _check_directions(frame: Table, name: str) -> None:
    for family in frame.family.unique():
        allowed = ENGINE_FAMILIES[family]
        wrong = ((frame.family == family) & ~frame.direction.isin(allowed)).to_numpy()
        if wrong.any():
            given = frame.direction[wrong.argmax()]
            _refuse(wrong, name, f"{family} is not measured {given!r}, allowed are {', '.join(allowed)}")


def _numbers(frame: Table, column: str, name: str) -> Any:
    """[row] The column as float64, NaN where a cell is empty."""
    import numpy as np
    import pandas as pd

    if column not in frame:
        return np.zeros(len(frame))
    values: Table = pd.to_numeric(frame[column], errors="coerce")
    values = values.astype(float)
    wrong = (values.isna() & frame[column].notna()).to_numpy()
    if wrong.any():
        _refuse(wrong, name, f"{column} is {frame[column][wrong.argmax()]!r}, allowed are numbers")
    return values.fillna(0.0) if column in EXTRAS else values


def _check_values(frame: Table, name: str) -> None:
    import numpy as np

    for column in ("seconds", *EXTRAS):
        values = frame[column].to_numpy()
        least = values > 0 if column == "seconds" else values >= 0
        wrong = ~(np.isfinite(values) & least)
        if wrong.any():
            allowed = "finite numbers above 0" if column == "seconds" else "finite numbers from 0"
            _refuse(wrong, name, f"{column} is {values[wrong.argmax()]:g}, allowed are {allowed}")


def _check_dimensions(frame: Table, name: str) -> None:
    import numpy as np

    for family in frame.family.unique():
        names = MEASUREMENT_DIMENSIONS[family]
        rows = (frame.family == family).to_numpy()
        for column in names:
            if column not in frame:
                raise InputError(f"{name}: there is no column {column!r}, {family} needs {', '.join(names)}")
            values = frame[column].to_numpy()
            least = 0 if column in MAY_BE_ZERO else 1
            wrong = rows & ~(np.isfinite(values) & (values >= least))
            if wrong.any():
                given = values[wrong.argmax()]
                sentence = f"{family} has {column} {given:g}, allowed are finite numbers from {least}"
                _refuse(wrong, name, sentence)
        for column in DIMENSIONS:
            if column in frame and column not in names:
                wrong = rows & frame[column].notna().to_numpy()
                _refuse(wrong, name, f"{family} has no {column}, it has {', '.join(names)}")


def _check_repeats(frame: Table, name: str) -> None:
    low, high = frame.seconds.copy(), frame.seconds.copy()
    for family, rows in frame.groupby("family", sort=False):
        times = rows.groupby(kernel_keys(rows, family), dropna=False, sort=False).seconds
        low[rows.index], high[rows.index] = times.transform("min"), times.transform("max")
    wrong = (high > CONFLICT * low).to_numpy()
    if wrong.any():
        row = int(wrong.argmax())
        sentence = (
            f"the same kernel takes {low[row]:g} s and {high[row]:g} s, allowed is a factor {CONFLICT:g}"
        )
        _refuse(wrong, name, f"{sentence} between repetitions")


def _check_units(frame: Table, name: str) -> None:
    """A time below a thousandth of the roofline, or most times of a source above a thousand rooflines."""
    import numpy as np

    least = least_seconds(frame)
    seconds = frame.seconds.to_numpy()
    fast = seconds * UNITS_FACTOR < least
    if fast.any():
        row = int(fast.argmax())
        sentence = (
            f"{seconds[row]:g} s is over {UNITS_FACTOR:g} times faster than the peak of {frame.device[row]}"
        )
        _refuse(fast, name, f"{sentence} allows; are all times in s?")
    launch = {device: load_device(device).launch_overhead_us * 1e-6 for device in frame.device.unique()}
    excess = seconds / (least + frame.device.map(launch).to_numpy())
    for (source, family), rows in frame.groupby(["source", "family"]).indices.items():
        middle = float(np.median(excess[rows]))
        if middle > UNITS_FACTOR:
            raise InputError(
                f"{name}: {family} of source {source!r} takes {middle:.0f} times as long as the data sheet"
                " allows; are all times in s?"
            )


def least_seconds(frame: pd.DataFrame) -> np.ndarray:
    """[row] s that the kernels of each row take at the peak and the bandwidth of its device, without launch.

    Args:
        frame: a table with the names and dimensions that `check_measurements` requires.
    """
    import numpy as np

    from jaxscale.hardware_db import device as description

    least = np.zeros(len(frame))
    groups: Table = frame.groupby(["family", "direction", "precision", "device"], sort=False).indices
    for (family, direction, precision, device), rows in groups.items():
        sizes: Any = frame[list(MEASUREMENT_DIMENSIONS[family])].to_numpy(float)[rows].T
        entry, number = description(device), PRECISIONS.index(precision)
        itemsize: Any = ITEMSIZES[precision]
        for kernel in ENGINE_FAMILIES[family][direction]:
            with np.errstate(over="ignore", invalid="ignore"):
                flops, moved = kernels.DIRECT[kernel](sizes, itemsize)
            matrix = kernel in kernels.MATRIX_FAMILIES
            peaks = entry.peak_flops if matrix else entry.vector_flops
            least[rows] += np.maximum(
                np.asarray(flops) / float(peaks[number]), np.asarray(moved) / float(entry.memory_bandwidth)
            )
    return least
