"""Bandwidth and latency of links for every protocol: fitted constants where there are some, else defaults."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, NamedTuple

from jaxscale.hardware_db import keys, store

if TYPE_CHECKING:
    from jaxscale.hardware_db.schema import CollectiveConstants, Link, NetworkEntry

DEFAULT_PROTOCOLS = {
    "low_latency": {"latency_factor": 1.0, "bandwidth_share": 0.5},
    "simple": {"latency_factor": 3.0, "bandwidth_share": 1.0},
}
"""Used for link technologies without fitted constants in collectives.toml.

Reason: a low-latency word of 8 B carries 4 B of flags, so half of the bandwidth is left, and it needs no
synchronization between steps; the simple protocol has the whole bandwidth and waits per step for a memory
fence and a flag in each direction. The factor 3 is an assumption, not a measurement; the tuning tables of
NCCL put it between 5 and 6.
"""


class Level(NamedTuple):
    """One level of the network: bandwidth in B/s, then per protocol its share, latency in s, s per call."""

    bandwidth: float
    bandwidth_share: tuple[float, ...]
    latency: tuple[float, ...]
    call_overhead: tuple[float, ...] | None


def level(link: Link | NetworkEntry | None, share: float) -> Level:
    """Return one level; `share` is the number of links per device; zeros where there is no link."""
    from jaxscale.nouns import PROTOCOLS

    if link is None:
        return Level(0.0, (1.0,) * len(PROTOCOLS), (0.0,) * len(PROTOCOLS), None)
    bandwidth = keys.si(link, "bandwidth_gb_per_s") * share
    fitted = _collectives().get(link.link)
    if fitted:
        constants = [getattr(fitted, protocol) for protocol in PROTOCOLS]
        return Level(
            bandwidth,
            tuple(each.bandwidth_share for each in constants),
            tuple(keys.si(each, "latency_us") for each in constants),
            tuple(keys.si(each, "call_overhead_us") for each in constants),
        )
    defaults = [DEFAULT_PROTOCOLS[protocol] for protocol in PROTOCOLS]
    return Level(
        bandwidth,
        tuple(each["bandwidth_share"] for each in defaults),
        tuple(keys.si(link, "latency_us") * each["latency_factor"] for each in defaults),
        None,
    )


def in_switch_bandwidth(link: Link | None) -> float:
    """Return the rate at which the switch of a node sums, in B/s per GPU; 0 where no switch can."""
    if link is None or link.in_switch_bandwidth_gb_per_s is None:
        return 0.0
    fitted = _collectives().get(link.link)
    if fitted and fitted.in_switch_share:
        return keys.si(link, "bandwidth_gb_per_s") * fitted.in_switch_share
    return keys.si(link, "in_switch_bandwidth_gb_per_s")


def copy_bandwidth(link: Link | None) -> float:
    """Return the rate at which a rank moves its own share into place, in B/s; infinite where unknown."""
    fitted = _collectives().get(link.link) if link else None
    if link is None or fitted is None or fitted.copy_ratio is None:
        return float("inf")
    return keys.si(link, "bandwidth_gb_per_s") * fitted.copy_ratio


@functools.cache
def _collectives() -> dict[str, CollectiveConstants]:
    """Return link technology -> fitted constants, from collectives.toml where it is there."""
    from jaxscale.hardware_db.schema import CollectiveConstants
    from jaxscale.hardware_db.validation import validate

    path = store.PACKAGE_FOLDER / "collectives.toml"
    tables = store.read(path) if path.exists() else {}
    where = store.shown(path)
    return {
        link: validate(CollectiveConstants, table, f"{where}: {link}", "link technology")
        for link, table in tables.items()
    }
