"""The hardware rates that a user may vary, and where each one lives in a `Cluster`.

A lever scales its rate by a factor, so sweeps, elasticities and hardware search share one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import jax

from jaxscale.errors import choose
from jaxscale.nouns import LEVELS, PROTOCOLS, Array, Cluster

SIMPLE = PROTOCOLS.index("simple")


@dataclass(frozen=True)
class Lever:
    """One named rate of a cluster."""

    dimension: str
    """What it measures, as `units.parse_quantity` knows it."""
    repriced: bool
    """Whether a change needs kernels to be timed again."""
    get: Callable[[Cluster], Array]
    """[] the rate in SI units."""
    scale: Callable[[Cluster, Array], Cluster]
    """The cluster with the rate multiplied by a factor."""

    def set(self, cluster: Cluster, value: Array | float) -> Cluster:
        """The cluster with the rate at `value`."""
        return self.scale(cluster, value / self.get(cluster))


def _of_device(leaf: str, dimension: str, repriced: bool) -> Lever:
    def scale(cluster: Cluster, factor: Array) -> Cluster:
        scaled = getattr(cluster.device, leaf) * factor
        return cluster._replace(device=cluster.device._replace(**{leaf: scaled}))

    return Lever(dimension, repriced, lambda cluster: getattr(cluster.device, leaf), scale)


def _of_link(leaf: str, dimension: str, level: str) -> Lever:
    row = LEVELS.index(level)

    def scale(cluster: Cluster, factor: Array) -> Cluster:
        scaled = getattr(cluster.links, leaf).at[row].multiply(factor)
        return cluster._replace(links=cluster.links._replace(**{leaf: scaled}))

    def get(cluster: Cluster) -> Array:
        """A latency is that of the simple protocol; the others keep their ratio to it."""
        value = getattr(cluster.links, leaf)[row]
        return value[SIMPLE] if leaf == "latency" else value

    return Lever(dimension, False, get, scale)


def _peak_flops() -> Lever:
    """Matrix and vector units scale together in every format; the value is the FP32 matrix rate."""

    def scale(cluster: Cluster, factor: Array) -> Cluster:
        device = cluster.device
        peaks = {"peak_flops": device.peak_flops * factor, "vector_flops": device.vector_flops * factor}
        return cluster._replace(device=device._replace(**peaks))

    return Lever("flop_rate", True, lambda cluster: cluster.device.peak_flops[0], scale)


LEVERS: dict[str, Lever] = {
    "peak_flops": _peak_flops(),
    "memory_bandwidth": _of_device("memory_bandwidth", "bandwidth", repriced=True),
    "clock": _of_device("clock", "frequency", repriced=True),
    "launch_overhead": _of_device("launch_overhead", "time", repriced=True),
    "memory_capacity": _of_device("memory_capacity", "memory", repriced=False),
    "intra_node_bandwidth": _of_link("bandwidth", "bandwidth", "intra_node"),
    "inter_node_bandwidth": _of_link("bandwidth", "bandwidth", "inter_node"),
    "intra_node_latency": _of_link("latency", "time", "intra_node"),
    "inter_node_latency": _of_link("latency", "time", "inter_node"),
}
"""By name, every rate that can be varied."""


def lever(name: str) -> Lever:
    """The lever called `name`; dashes and underscores are the same.

    >>> lever("inter-node-bandwidth").dimension
    'bandwidth'
    """
    return LEVERS[choose("hardware quantity", name.replace("-", "_"), LEVERS)]


def at_levers(cluster: Cluster, values: Array, names: Sequence[str]) -> Cluster:
    """The cluster with every lever of `names` at its value of `values` [lever]."""
    for i, name in enumerate(names):
        cluster = lever(name).set(cluster, values[i])
    return cluster


@partial(jax.jit, static_argnames="names")
def at_points(cluster: Cluster, values: Array, names: tuple[str, ...]) -> Cluster:
    """The cluster at every row of `values` [n, lever], leaves [n, ...]."""
    return jax.vmap(partial(at_levers, names=names), in_axes=(None, 0))(cluster, values)
