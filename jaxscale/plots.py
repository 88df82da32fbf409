"""Pictures by matplotlib (extra `[viz]`), written without a display."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from jaxscale.errors import InputError
from jaxscale.files import PICTURE_FORMATS, require_writable, write_atomically
from jaxscale.report import TIME_NAMES, plan_cells

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from jaxscale.measurement_format import Table
    from jaxscale.search import Candidate

MOST_LINES = 12
"""Lines that can be told apart in one picture."""


def require_picture(path: str | os.PathLike[str]) -> Path:
    """Return `path` when a picture can be drawn and written there.

    Raises:
        InputError: matplotlib is not installed, an unknown suffix, or no way to write there.
    """
    _figure_class()
    return require_writable(path, PICTURE_FORMATS)


def draw_agreement(path: str | os.PathLike[str], judged: Table, title: str) -> Path:
    """Draw predicted against measured kernel times, a colour per family; from `validate.judge`."""
    figure = _figure_class()(figsize=(6, 5.5), layout="constrained")
    axes = figure.add_subplot()
    for family, rows in judged.groupby("family"):
        axes.plot(rows.seconds, rows.expected, ".", markersize=3, alpha=0.5, label=family)
    ends = [
        min(judged.seconds.min(), judged.expected.min()),
        max(judged.seconds.max(), judged.expected.max()),
    ]
    axes.plot(ends, ends, color="black", linewidth=0.8)
    axes.set(xscale="log", yscale="log", xlabel="measured (s)", ylabel="predicted (s)", title=title)
    axes.grid(True, which="both", linewidth=0.3)
    axes.legend(fontsize="small")
    return _save(figure, path)


def draw_lines(
    path: str | os.PathLike[str],
    lines: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    x_label: str,
    y_label: str,
    title: str,
    legend: str | None = None,
) -> Path:
    """Draw one line per entry on logarithmic axes.

    Args:
        path: where the picture is to stand.
        lines: name -> (x, y), all positive.
        x_label: quantity and unit.
        y_label: quantity and unit.
        title: what is shown.
        legend: what the names of the lines are values of; no legend when None.
    """
    figure = _figure_class()(figsize=(7, 4.5), layout="constrained")
    axes = figure.add_subplot()
    for name, (x, y) in lines.items():
        axes.plot(x, y, marker="o", markersize=4, label=name)
    axes.set(xscale="log", yscale="log", xlabel=x_label, ylabel=y_label, title=title)
    axes.grid(True, which="both", linewidth=0.3)
    if legend:
        axes.legend(title=legend, fontsize="small")
    return _save(figure, path)


def draw_plans(path: str | os.PathLike[str], candidates: Sequence[Candidate], title: str) -> Path:
    """Draw the exposed time per sample of plans as stacked bars, best on top."""
    figure = _figure_class()(figsize=(8, 1.5 + 0.35 * len(candidates)), layout="constrained")
    axes = figure.add_subplot()
    names = [_bar_name(candidate) for candidate in candidates]
    samples = np.array([candidate.plan.global_batch_size for candidate in candidates])
    left = np.zeros(len(candidates))
    for term, label in TIME_NAMES.items():
        seconds = np.array([float(getattr(candidate.prediction.time, term)) for candidate in candidates])
        axes.barh(range(len(names)), seconds / samples * 1e6, left=left * 1e6, label=label)
        left += seconds / samples
    axes.set_yticks(range(len(names)), names)
    axes.invert_yaxis()
    axes.set(xlabel="exposed time per sample (µs)", title=title)
    figure.legend(loc="outside lower center", ncols=len(TIME_NAMES), fontsize="small")
    return _save(figure, path)


def _bar_name(candidate: Candidate) -> str:
    _, dp, tp, split, micro_batch, _, overlap = plan_cells(candidate.plan)
    blocking = "" if overlap == "yes" else ", blocking"
    batch = candidate.plan.global_batch_size
    return f"batch {batch}, dp {dp}, tp {tp} {split}, micro-batch {micro_batch}{blocking}"


def _save(figure: Figure, path: str | os.PathLike[str]) -> Path:
    require_picture(path)
    return write_atomically(path, lambda to: figure.savefig(to, dpi=150))


def _figure_class() -> type[Figure]:
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise InputError("drawing a picture needs matplotlib: pip install jaxscale[viz]") from None
    return Figure
