"""From tidy measurements to weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import jax
import numpy as np

from jaxscale import __version__
from jaxscale.errors import InputError
from jaxscale.kernels.doubt import FOLDS
from jaxscale.kernels.weights import Measuring, Weights
from jaxscale.measurement_format import Table
from jaxscale.measurements import measurement_map
from jaxscale.nouns import Device
from jaxscale.timing import devices_of
from jaxscale.training.arrange import arrange, group_of
from jaxscale.training.calibrate import doubt
from jaxscale.training.fit import Recipe, Rows, Taught, fit, predicted
from jaxscale.training.folds import HELD_OUT, VALIDATION, device_folds, held_out, shows, validation

RECIPES = {
    "convolution": Recipe(steps=12_000, width=128),
    "matmul": Recipe(steps=12_000, width=128),
    "batched_matmul": Recipe(steps=8_000),
    "attention": Recipe(steps=6_000),
    "memory_bound": Recipe(steps=3_000),
    "recurrent": Recipe(steps=3_000),
}
"""How each group is taught. Chosen once, by errors on devices left out, and then left alone."""

LEAST_ROWS = 16
"""Measured kernels of a group, below which none is taught."""

LEAST_STEPS = 1500

PART = 65536
"""Rows predicted at once."""

Progress = Callable[[str, int, int, np.ndarray], None]
"""(group, step, steps, [member] error on the validation rows)"""


def train(
    frame: Table,
    withheld: tuple[str, ...] = (),
    seed: int = 0,
    steps: int | None = None,
    progress: Progress = lambda group, step, steps, error: None,
) -> tuple[Weights, Table]:
    """Teach networks for every group of families that a table measures.

    Args:
        frame: a table that `check_measurements` returned.
        withheld: sources that one further member per group is not shown.
        seed: of everything drawn.
        steps: of every network; by default as in `RECIPES`, fewer where there are few rows.
        progress: called as the work goes on.

    Returns:
        The weights, and the table with `held_out` and what each row should have measured: `expected` by the
        first member, `unseen` by the member that lacks its device, `withheld` by the one that lacks its
        source (NaN where there is none), all in s.
    """
    groups = frame.family.map(group_of)
    members, doubts, measuring, judged = {}, {}, {}, []
    for group, recipe in RECIPES.items():
        rows = frame[groups == group].reset_index(drop=True)
        if rows.empty:
            continue
        _check_enough(group, rows)
        recipe = replace(recipe, steps=steps or min(recipe.steps, LEAST_STEPS + len(rows)))
        report = partial(_report, progress, group, recipe.steps)
        taught, devices, blocks, sources = _teach(group, rows, withheld, recipe, seed, report)
        members[group] = jax.tree.map(np.asarray, jax.vmap(lambda own: own.network)(taught))
        expected = _expected(group, recipe, devices, taught, blocks, len(rows))
        doubts[group] = doubt(group, rows, expected)
        measuring |= _measuring(rows, taught, sources)
        judged.append(_judged(rows, expected, withheld))
    if not judged:
        raise InputError("there are no measurements to learn from")
    import pandas as pd

    table = pd.concat(judged, ignore_index=True)
    return Weights(members, doubts, measuring, _about(frame, table, seed)), table


def _check_enough(group: str, rows: Table) -> None:
    """Refuse a table from which nothing can be learned and kept apart."""
    taught = int((~held_out(rows) & ~validation(rows)).sum())
    if len(rows) < LEAST_ROWS or not taught:
        words = group.replace("_", " ")
        raise InputError(
            f"{len(rows)} measured {words} kernels teach nothing, needed are {LEAST_ROWS} or more"
        )


def _report(progress: Progress, group: str, steps: int, step: int, error: np.ndarray) -> None:
    progress(group, step, steps, error)


def _teach(
    group: str, frame: Table, withheld: tuple[str, ...], recipe: Recipe, seed: int, report: Any
) -> tuple[Taught, Device, list[Rows], list[tuple[str, str]]]:
    import pandas as pd

    blocks = arrange(frame)
    devices, device_of = devices_of(frame)
    keys = list(zip(frame.source, frame.family, strict=True))
    source_of, sources = pd.factorize(pd.Series(keys))
    columns: Any = device_of, source_of.astype(np.int32), frame.seconds.to_numpy(np.float32)
    rows = [Rows(block, *(column[block.row] for column in columns)) for block in blocks]
    chances, watched = shows(frame, withheld), validation(frame)
    taught = fit(
        group,
        rows,
        devices,
        len(sources),
        [chances[:, block.row] for block in blocks],
        [watched[block.row] for block in blocks],
        recipe,
        seed,
        report,
    )
    return taught, devices, rows, list(sources)


def _expected(
    group: str, recipe: Recipe, devices: Device, taught: Taught, blocks: list[Rows], count: int
) -> np.ndarray:
    """[member, row] log s"""
    expected = np.zeros((len(taught.sharpness), count))
    judge = jax.jit(jax.vmap(partial(predicted, group, recipe, devices), in_axes=(0, None)))
    for rows in blocks:
        for start in range(0, len(rows.seconds), PART):
            which = np.arange(start, min(start + PART, len(rows.seconds)))
            filled = np.resize(which, min(PART, 1 << (len(rows.seconds) - 1).bit_length()))
            part = jax.tree.map(lambda leaf, filled=filled: leaf[filled], rows)
            expected[:, rows.block.row[which]] = np.asarray(judge(taught, part))[:, : len(which)]
    return expected


def _measuring(
    frame: Table, taught: Taught, sources: list[tuple[str, str]]
) -> dict[tuple[str, str], Measuring]:
    found = {}
    names = list(dict.fromkeys(frame.device))
    for number, (source, family) in enumerate(sources):
        there = set(frame.device[(frame.source == source) & (frame.family == family)])
        deviations = {
            name: round(float(np.exp(taught.deviation[0, number, i])), 4)
            for i, name in enumerate(names)
            if name in there
        }
        share = 1 / (1 + np.exp(-float(taught.share[0, number])))
        overhead = float(np.exp(taught.overhead[0, number]))
        found[source, family] = Measuring(float(f"{overhead:.4g}"), deviations, float(f"{share:.4g}"))
    return found


def _judged(frame: Table, expected: np.ndarray, withheld: tuple[str, ...]) -> Table:
    own = 1 + frame.device.map(device_folds(frame)).to_numpy()
    apart = np.full(len(frame), np.nan)
    if len(expected) > 1 + FOLDS:
        apart = np.where(frame.source.isin(withheld), np.exp(expected[1 + FOLDS]), np.nan)
    return frame.assign(
        held_out=held_out(frame),
        expected=np.exp(expected[0]),
        unseen=np.exp(expected[own, np.arange(len(frame))]),
        withheld=apart,
    )


def _about(frame: Table, judged: Table, seed: int) -> dict[str, Any]:
    kept = judged[judged.held_out]
    error = (kept.expected / kept.seconds - 1).abs()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "jaxscale": __version__,
        "rows": len(frame),
        "split": f"{HELD_OUT:.0%} of the shapes held out, {VALIDATION:.0%} watched, the others taught",
        "seed": seed,
        "held_out_error": {
            f"{source} {family}": round(float(value), 4)
            for (source, family), value in error.groupby([kept.source, kept.family]).mean().items()
        },
        "map": measurement_map(frame).to_dict("records"),
    }
