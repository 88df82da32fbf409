"""Predicted against measured kernels: errors by family, device and size, and how often intervals hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import numpy as np

from jaxscale.kernels import Roofline
from jaxscale.kernels.doubt import LEVELS, half_widths, is_taught, spread
from jaxscale.kernels.learned import GROUP_OF
from jaxscale.measurement_format import Table, least_seconds
from jaxscale.timing import devices_of, kernels_of, measured_seconds

if TYPE_CHECKING:
    import pandas as pd

    from jaxscale.kernels.weights import Weights

SIZES = (("under 10 us", 1e-5), ("10 to 100 us", 1e-4), ("0.1 to 1 ms", 1e-3), ("over 1 ms", np.inf))
"""Classes of what the roofline takes, by their upper end in s."""


def judge(frame: Table, weights: Weights | None) -> pd.DataFrame:
    """Return a table of measurements with what was to be expected.

    Args:
        frame: a table that `check_measurements` returned.
        weights: what times the kernels and knows how sources measure; the roofline when None.

    Returns:
        Further columns `roofline` and `expected` in s, `error` (expected / seconds - 1), `size` (a class of
        `SIZES`), and with weights `half_width_80` and `half_width_95` in log time.

    >>> import pandas as pd
    >>> kernel = {"family": "matmul", "direction": "forward", "precision": "fp32", "device": "v100-sxm2-16gb"}
    >>> frame = pd.DataFrame([kernel | {"source": "mine", "m": 4096, "n": 4096, "k": 4096, "seconds": 0.01}])
    >>> judge(frame, None)["size"].tolist()
    ['over 1 ms']
    """
    measuring = {} if weights is None else weights.measuring
    roofline = measured_seconds(frame, Roofline(), measuring)
    expected = roofline if weights is None else measured_seconds(frame, weights.learned, measuring)
    least = least_seconds(frame)
    classes = np.searchsorted([end for _, end in SIZES], least)
    judged = frame.assign(
        roofline=roofline,
        expected=expected,
        error=expected / frame.seconds.to_numpy() - 1,
        size=np.array([name for name, _ in SIZES])[np.minimum(classes, len(SIZES) - 1)],
    )
    if weights is None:
        return judged
    widths = zip(LEVELS, interval_half_widths(frame, weights), strict=True)
    return judged.assign(**{f"half_width_{level * 100:.0f}": width for level, width in widths})


def interval_half_widths(frame: Table, weights: Weights) -> np.ndarray:
    """[level, row] Half-widths of the intervals of a table of measurements, in log time."""
    members = [measured_seconds(frame, member, weights.measuring) for member in weights.all_members]
    apart = spread(np.stack(members))
    devices, of_row = devices_of(frame)
    widths = np.zeros((len(LEVELS), len(frame)))
    for rows, kernels in kernels_of(frame):
        own = jax.tree.map(lambda leaf: leaf[of_row[rows]], devices)  # noqa: B023
        family, _, _, precision = kernels[0]
        known = is_taught(weights.doubt, family, precision, own)
        widths[:, rows] = half_widths(weights.doubt[GROUP_OF[family]], apart[rows], known)
    return widths


def summary(judged: Table, by: list[str]) -> pd.DataFrame:
    """Errors per group of rows.

    Args:
        judged: from `judge`.
        by: columns that name a group.

    Returns:
        The columns `by`, `rows`, `mape`, `median` and `bias` in percent (means of the absolute and of the
        signed error, median of the absolute one), `roofline_mape`, and `covered_80`, `covered_95` in percent
        where there are intervals.
    """
    absolute = judged.error.abs()
    columns = {
        "mape": 100 * absolute,
        "median": 100 * absolute,
        "bias": 100 * judged.error,
        "roofline_mape": 100 * (judged.roofline / judged.seconds - 1).abs(),
    }
    off = np.log(judged.expected / judged.seconds).abs()
    columns |= {
        f"covered_{level * 100:.0f}": 100.0 * (off <= judged[f"half_width_{level * 100:.0f}"])
        for level in LEVELS
        if f"half_width_{level * 100:.0f}" in judged
    }
    groups = judged[by].assign(rows=1, **columns).groupby(by, sort=True, as_index=False)
    how = {"rows": "sum"} | {name: "median" if name == "median" else "mean" for name in columns}
    return groups.agg(how)
