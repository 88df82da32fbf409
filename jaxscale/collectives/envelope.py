"""Who communicates, and what it takes as a function of the message size."""

from __future__ import annotations

from functools import reduce
from typing import NamedTuple

import jax.numpy as jnp

from jaxscale.nouns import Array


class Group(NamedTuple):
    """Ranks that communicate with each other, as the network sees them; both leaves broadcast."""

    ranks_per_node: Array
    """[...] ranks of the group in each node that holds any (a mean where they are unevenly spread)."""
    nodes: Array
    """[...] nodes that hold any rank of the group."""


class Envelope(NamedTuple):
    """Affine times of the rows of one collective; the collective takes their minimum."""

    latency: tuple[Array, ...]
    """Per row, [...] s, infinite where it cannot be used; a tuple, as a stack would not be fused."""
    inverse_bandwidth: tuple[Array, ...]
    """Per row, [...] s/B."""


def group(ranks: Array | float, stride: Array | float, gpus_per_node: Array | float) -> Group:
    """Place `ranks` ranks, `stride` apart, on nodes of `gpus_per_node`; the arguments broadcast.

    Args:
        ranks: size of the group.
        stride: distance of neighbours in the numbering of all GPUs (1 for a tensor group, tp for data).
        gpus_per_node: GPUs in one node.

    >>> placed = group(16, stride=2, gpus_per_node=8)
    >>> float(placed.ranks_per_node), float(placed.nodes)
    (4.0, 4.0)
    """
    ranks, stride, gpus_per_node = (jnp.asarray(x) * 1.0 for x in (ranks, stride, gpus_per_node))
    fitting = jnp.clip(jnp.floor(gpus_per_node / stride), 1.0, jnp.maximum(ranks, 1.0))
    nodes = jnp.ceil(ranks / fitting)
    return Group(ranks / nodes, nodes)


def restrict(envelope: Envelope, mask: Array) -> Envelope:
    """Exclude the rows whose mask is 0; `mask` is [row, ...] and broadcasts with the envelope's leaves.

    >>> both = Envelope((jnp.array(1.0), jnp.array(2.0)), (jnp.array(0.5), jnp.array(0.1)))
    >>> round(float(time(restrict(both, jnp.array([0.0, 1.0])), 1.0)), 6)
    2.1
    """
    excluded = [row == 0 for row in mask]
    return Envelope(
        tuple(jnp.where(out, jnp.inf, row) for out, row in zip(excluded, envelope.latency, strict=True)),
        tuple(
            jnp.where(out, 0.0, row) for out, row in zip(excluded, envelope.inverse_bandwidth, strict=True)
        ),
    )


def time(envelope: Envelope, bytes: Array | float) -> Array:
    """Seconds of the fastest row; nothing to send takes no time.

    Args:
        envelope: of any collective.
        bytes: the full buffer, see each collective; broadcasts with the envelope's leaves.
    """
    silent = jnp.asarray(bytes) <= 0
    bytes = jnp.where(silent, 1.0, bytes)
    each = (latency + bytes * inverse for latency, inverse in zip(*envelope, strict=True))
    return jnp.where(silent, 0.0, reduce(jnp.minimum, each))
