"""Which rows teach whom: shapes held out for the report, and devices left out of each member."""

from __future__ import annotations

import numpy as np

from jaxscale.hardware_db.store import load_device
from jaxscale.kernels.doubt import FOLDS
from jaxscale.measurement_format import Table
from jaxscale.measurements import shape_position

HELD_OUT = 0.2
"""Share of the shapes that no member is ever shown."""

VALIDATION = 0.05
"""Share of the shapes that say when to stop and how wide intervals have to be."""

TWINS = 1.25
"""Devices of a generation whose peak and bandwidth differ by less are one to a network."""


def held_out(frame: Table) -> np.ndarray:
    """[row] Whether a row is held out from teaching."""
    return shape_position(frame) < HELD_OUT


def validation(frame: Table) -> np.ndarray:
    """[row] Whether a row is watched while teaching."""
    position = shape_position(frame)
    return (position >= HELD_OUT) & (position < HELD_OUT + VALIDATION)


def device_folds(frame: Table) -> dict[str, int]:
    """Device -> the fold that leaves it out, twins together and relatives apart.

    >>> import pandas as pd
    >>> folds = device_folds(pd.DataFrame({"device": ["b200-sxm", "b300-sxm", "h100-sxm5-80gb"]}))
    >>> folds["b200-sxm"] == folds["b300-sxm"] != folds["h100-sxm5-80gb"]
    True
    """
    rows = frame.device.value_counts().to_dict()
    chips: list[list[str]] = []
    for device in sorted(rows, key=lambda name: (-rows[name], name)):
        chip = next((chip for chip in chips if _twins(device, chip[0])), None)
        chips.append([device]) if chip is None else chip.append(device)
    relatives = [dict[str, int]() for _ in range(FOLDS)]
    load = [0] * FOLDS
    folds = {}
    for chip in sorted(chips, key=lambda chip: -sum(rows[device] for device in chip)):
        generation = load_device(chip[0]).generation
        fold = min(range(FOLDS), key=lambda i: (relatives[i].get(generation, 0), load[i], i))
        relatives[fold][generation] = relatives[fold].get(generation, 0) + 1
        load[fold] += sum(rows[device] for device in chip)
        folds |= dict.fromkeys(chip, fold)
    return folds


def shows(frame: Table, withheld: tuple[str, ...] = ()) -> np.ndarray:
    """[member, row] How often a row is shown, in proportion: to the one member that knows every device, to
    the members that each lack a fold of them, and to one that lacks the withheld sources where there are any.

    A source that measured k times as many kernels is shown sqrt(k) times as often.
    """
    keys = ["source", "family", "direction", "precision"]
    size = frame.groupby(keys).device.transform("size").to_numpy(float)
    every = np.where(held_out(frame), 0.0, size**-0.5)
    folds = device_folds(frame)
    fold = frame.device.map(folds).to_numpy()
    members = [every, *(np.where(fold == i, 0.0, every) for i in range(FOLDS))]
    without = np.where(frame.source.isin(withheld), 0.0, every)
    if frame.source.isin(withheld).any() and without.any():
        members.append(without)
    # A fold that holds every device would leave nothing to learn from.
    return np.stack([member if member.any() else every for member in members]).astype(np.float32)


def _twins(device: str, other: str) -> bool:
    first, second = load_device(device), load_device(other)
    if first.generation != second.generation:
        return False
    pairs = (
        (first.peak_fp32_tflop_per_s, second.peak_fp32_tflop_per_s),
        (first.memory_bandwidth_gb_per_s, second.memory_bandwidth_gb_per_s),
    )
    return all(max(pair) < TWINS * min(pair) for pair in pairs)
