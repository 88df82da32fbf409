"""Names of the keys in hardware files: each ends in the unit of its value."""

from __future__ import annotations

from typing import Any

UNITS = {
    "_tflop_per_s": ("TFLOP/s", 1e12),
    "_gb_per_s": ("GB/s", 1e9),
    "_gb": ("GB", 1e9),
    "_mb": ("MB", 1e6),
    "_ghz": ("GHz", 1e9),
    "_us": ("us", 1e-6),
    "_w": ("W", 1.0),
    "_mm2": ("mm2", 1.0),
    "_nm": ("nm", 1.0),
}
"""Ending of a key -> unit as printed, factor to SI (area and process size have none)."""


def split(key: str) -> tuple[str, str, float]:
    """Return what `key` names, the unit of its value and the factor to SI; no unit and 1 for plain numbers.

    >>> split("memory_bandwidth_gb_per_s")
    ('memory_bandwidth', 'GB/s', 1000000000.0)
    >>> split("gpus")
    ('gpus', '', 1.0)
    """
    endings = [ending for ending in UNITS if key.endswith(ending)]
    if not endings:
        return key, "", 1.0
    ending = max(endings, key=len)
    return key.removesuffix(ending), *UNITS[ending]


def si(entry: Any, key: str) -> float:
    """Return the value of `key` of an entry in SI units; 0 where it is left out."""
    return (getattr(entry, key) or 0.0) * split(key)[2]
