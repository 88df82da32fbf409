"""How far intervals have to reach, from errors on kernels that did not shape what is judged.

Split-conformal calibration (Vovk, Gammerman, Shafer 2005; Lei et al. 2018): the half-width at a level is that
quantile of the errors on rows kept apart. Kinds of kernels that were measured are judged on the validation
shapes; kinds that were not, on whole devices, each by the member that never met it.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from jaxscale.hardware_db.store import load_device
from jaxscale.kernels.doubt import AGREEMENT, LEVELS, Doubt, spread
from jaxscale.kernels.learned import GROUPS
from jaxscale.measurement_format import ENGINE_FAMILIES, Table
from jaxscale.nouns import GENERATIONS, PRECISIONS
from jaxscale.training.folds import device_folds, held_out, validation

WIDEST = 1.0
"""Half-width, a factor e, where nothing at all says how wide an interval has to be."""


def doubt(group: str, frame: Table, expected: np.ndarray) -> Doubt:
    """Return how far to doubt the first member.

    Args:
        group: a key of `GROUPS`.
        frame: the rows of the group.
        expected: [member, row] log s.
    """
    error = np.abs(expected - np.log(frame.seconds.to_numpy()))
    devices = frame.groupby(["source", "family", "device"], sort=False).ngroup().to_numpy()
    apart = spread(np.exp(expected))
    own = error[1 + frame.device.map(device_folds(frame)).to_numpy(), np.arange(len(frame))]
    watched = validation(frame)
    far = _quantiles(own[~held_out(frame)], devices[~held_out(frame)]) if frame.device.nunique() > 1 else None
    near = _quantiles((error[0] / apart)[watched], devices[watched]) if watched.any() else WIDEST / AGREEMENT
    widths: Any = (
        np.broadcast_to(near, len(LEVELS)),
        np.broadcast_to(WIDEST if far is None else far, len(LEVELS)),
    )
    return Doubt(_taught(group, frame), *widths)


def _quantiles(scores: np.ndarray, devices: np.ndarray) -> np.ndarray:
    """[level] of the scores, in which every device of a source counts the same."""
    weight = 1.0 / np.bincount(devices)[devices]
    order = np.argsort(scores)
    reached = np.cumsum(weight[order]) / weight.sum()
    return np.array([scores[order][min(np.searchsorted(reached, level), len(order) - 1)] for level in LEVELS])


def _taught(group: str, frame: Table) -> Any:
    families = GROUPS[group]
    taught = np.zeros((len(families), len(PRECISIONS), 1 + len(GENERATIONS)))
    kinds = frame[["family", "direction", "precision", "device"]].drop_duplicates()
    for family, direction, precision, device in kinds.itertuples(index=False, name=None):
        generation = load_device(device).generation
        place = 1 + GENERATIONS.index(generation) if generation in GENERATIONS else 0
        for name in ENGINE_FAMILIES[family][direction]:
            taught[families.index(name), PRECISIONS.index(precision), place] = 1.0
    return taught
