"""How far off a learned kernel time may be."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jaxscale.kernels.learned import GROUP_OF, GROUPS
from jaxscale.nouns import GENERATIONS, Array, Device

LEVELS = (0.8, 0.95)
"""Shares of the kernels that an interval is to cover, in the order of every [level] axis."""

FOLDS = 5
"""Networks per group that each lack a part of the devices, and that differ where all of them are unsure."""

AGREEMENT = 0.02
"""Spread, in log time, that is added to that of the members: two that agree may both be wrong."""


class Doubt(NamedTuple):
    """Half-widths of the intervals of one group, in log time."""

    taught: Array
    """[family, precision, generation] 1 where kernels of the kind were measured; the first generation is
    that of devices that have none."""
    seen: Array
    """[level] half-width of a kind that was measured, over `spread`."""
    unseen: Array
    """[level] half-width of any other kind, and of a device that no member has met."""


def spread(seconds: np.ndarray) -> np.ndarray:
    """[...] How far the members that lack devices are apart, given their [1 + FOLDS or more, ...] s.

    >>> float(spread(np.ones((1 + FOLDS, 1)))[0]) == AGREEMENT
    True
    """
    return np.log(seconds[1 : 1 + FOLDS]).std(0) + AGREEMENT


def half_widths(doubt: Doubt, spread: np.ndarray, known: np.ndarray) -> np.ndarray:
    """[level, ...] Half-widths of the intervals of kernels, in log time.

    Args:
        doubt: of their group.
        spread: [...] from `spread`.
        known: [...] from `is_taught`.
    """
    seen, unseen = (np.reshape(width, (-1, *(1,) * np.ndim(spread))) for width in (doubt.seen, doubt.unseen))
    return np.where(known, seen * spread, unseen)


def is_taught(doubt: dict[str, Doubt], family: str, precision: Any, device: Device) -> np.ndarray:
    """[...] Whether kernels of this family, formats [...] and generations of devices [...] were measured.

    >>> from jaxscale import hardware_db
    >>> from jaxscale.kernels.weights import shipped
    >>> from jaxscale.nouns import PRECISIONS
    >>> h100, bf16 = hardware_db.device("h100"), PRECISIONS.index("bf16")
    >>> [bool(is_taught(shipped().doubt, f"attention_{way}", bf16, h100)) for way in ("forward", "backward")]
    [True, False]
    """
    group = GROUP_OF[family]
    number = np.clip(np.asarray(device.generation, int) + 1, 0, len(GENERATIONS))
    kinds = np.asarray(doubt[group].taught)[GROUPS[group].index(family)]
    return kinds[np.asarray(precision), number] > 0
