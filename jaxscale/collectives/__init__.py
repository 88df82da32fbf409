"""Time of collective communication: every algorithm is affine in the message size, the fastest one counts.

An algorithm over one group of ranks takes `latency + bytes * inverse_bandwidth`, so a collective is an
`Envelope`, one row per algorithm and protocol, built once per group and links and evaluated for any number
of messages by `time`.

Algorithms and protocols that a GPU library chooses from: NVIDIA, NCCL documentation, environment variables
NCCL_ALGO and NCCL_PROTO.
"""

from __future__ import annotations

from collections.abc import Sequence

import jax.numpy as jnp

from jaxscale.collectives.costs import COSTS, Cost, Net, over, times
from jaxscale.collectives.envelope import Envelope, Group, group, restrict, time
from jaxscale.errors import choose
from jaxscale.nouns import LEVELS, PROTOCOLS, Array, Links

__all__ = [
    "ALGORITHMS",
    "DEFAULT_ALGORITHMS",
    "Envelope",
    "Group",
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "group",
    "parameter_server",
    "reduce_scatter",
    "restrict",
    "rows",
    "send_recv",
    "time",
]

INTRA, INTER = (LEVELS.index(level) for level in ("intra_node", "inter_node"))
SIMPLE = PROTOCOLS.index("simple")

ALGORITHMS: dict[str, tuple[str, ...]] = {kind: tuple(costs) for kind, costs in COSTS.items()}
"""Per kind of collective, every algorithm that has a formula."""

DEFAULT_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "in_switch"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring",),
    "all_to_all": ("direct",),
    "send_recv": ("direct",),
}
"""Per kind, what GPU communication libraries choose from; others are asked for by name."""


def rows(kind: str, algorithms: Sequence[str] | None = None) -> tuple[str, ...]:
    """Names of the rows of an envelope, in order: every algorithm in every protocol that it has.

    >>> rows("all_reduce", ["ring", "in_switch"])
    ('ring/low_latency', 'ring/simple', 'in_switch/simple')
    """
    return tuple(f"{algorithm}/{PROTOCOLS[protocol]}" for algorithm, protocol in _rows(kind, algorithms))


def _rows(kind: str, algorithms: Sequence[str] | None) -> list[tuple[str, int]]:
    """Algorithm and protocol of each row; a switch sums whole buffers only."""
    names = DEFAULT_ALGORITHMS[kind] if algorithms is None else algorithms
    chosen = [choose(f"{kind} algorithm", name, ALGORITHMS[kind]) for name in names]
    return [
        (name, protocol)
        for name in chosen
        for protocol in range(len(PROTOCOLS))
        if name != "in_switch" or protocol == SIMPLE
    ]


def _envelope(
    kind: str, links: Links, group: Group, itemsize: Array | float, algorithms: Sequence[str] | None
) -> Envelope:
    k, m, itemsize = (jnp.asarray(x) * 1.0 for x in (*group, itemsize))
    overheads = jnp.broadcast_to(links.call_overhead, links.latency.shape[1:])
    costs = []
    for algorithm, protocol in _rows(kind, algorithms):
        net = Net(
            k,
            m,
            links.latency[INTRA, protocol],
            links.latency[INTER, protocol],
            links.bandwidth[INTRA, protocol],
            links.bandwidth[INTER, protocol],
            itemsize,
            links.reduction_flops,
            links.in_switch_bandwidth,
            links.copy_bandwidth,
        )
        latency, inverse_bandwidth = COSTS[kind][algorithm](net)
        costs.append(
            (latency + times(jnp.where(net.p > 1, 1.0, 0.0), overheads[protocol]), inverse_bandwidth)
        )
    return _stack(costs)


def _stack(costs: Sequence[Cost]) -> Envelope:
    """One row per cost; what no link can carry is unusable."""
    latencies, inverse_bandwidths = (
        jnp.stack(jnp.broadcast_arrays(*column)) for column in zip(*costs, strict=True)
    )
    unusable = (inverse_bandwidths == jnp.inf) | (latencies == jnp.inf)
    return Envelope(jnp.where(unusable, jnp.inf, latencies), jnp.where(unusable, 0.0, inverse_bandwidths))


def all_reduce(links: Links, group: Group, itemsize: Array | float, algorithms=None) -> Envelope:
    """Every rank ends with the sum of all ranks' buffers; the message is one buffer.

    Args:
        links: how the devices are connected; trailing axes of its leaves broadcast with the group.
        group: the ranks that take part.
        itemsize: bytes of one element, for the time to sum elements.
        algorithms: names out of `ALGORITHMS["all_reduce"]`; what GPU libraries use when None.

    Returns:
        An envelope with rows `rows("all_reduce", algorithms)`.

    Raises:
        InputError: an algorithm that does not exist.

    >>> links = Links(
    ...     bandwidth=jnp.full((2, 2), 10e9), latency=jnp.full((2, 2), 1e-6), call_overhead=jnp.zeros(2),
    ...     host_bandwidth=jnp.array(10e9), reduction_flops=jnp.array(jnp.inf),
    ...     in_switch_bandwidth=jnp.array(0.0), copy_bandwidth=jnp.array(jnp.inf),
    ... )
    >>> ring = all_reduce(links, group(4, 1, gpus_per_node=1), itemsize=4, algorithms=["ring"])
    >>> round(float(time(ring, 1e6)), 9)  # 2 * 3 us + 2 * 3/4 * 1 MB / 10 GB/s
    0.000156
    """
    return _envelope("all_reduce", links, group, itemsize, algorithms)


def all_gather(links: Links, group: Group, itemsize: Array | float, algorithms=None) -> Envelope:
    """Every rank ends with the pieces of all ranks; the message is the gathered whole. See `all_reduce`."""
    return _envelope("all_gather", links, group, itemsize, algorithms)


def reduce_scatter(links: Links, group: Group, itemsize: Array | float, algorithms=None) -> Envelope:
    """Every rank ends with its piece of the sum; the message is one rank's input. See `all_reduce`."""
    return _envelope("reduce_scatter", links, group, itemsize, algorithms)


def broadcast(links: Links, group: Group, itemsize: Array | float, algorithms=None) -> Envelope:
    """One rank's buffer reaches all; the message is that buffer. See `all_reduce`."""
    return _envelope("broadcast", links, group, itemsize, algorithms)


def all_to_all(links: Links, group: Group, itemsize: Array | float, algorithms=None) -> Envelope:
    """Every rank sends each other rank a piece; the message is one rank's buffer. See `all_reduce`."""
    return _envelope("all_to_all", links, group, itemsize, algorithms)


def send_recv(links: Links, group: Group, itemsize: Array | float, algorithms=None) -> Envelope:
    """Every rank sends its buffer to a neighbour, the message is that buffer. See `all_reduce`."""
    return _envelope("send_recv", links, group, itemsize, algorithms)


def parameter_server(links: Links, group: Group, itemsize: Array | float) -> Envelope:
    """Every rank pushes its gradients to parameters in host memory, spread over the nodes, and pulls them.

    2 a + 2 n/B_host, and the 1 - 1/m of the parameters that other nodes hold also pass the network (Li et al.
    2014, "Scaling distributed machine learning with the parameter server"). One row; the time of the host's
    sums is not counted, so `itemsize` does not matter.
    """
    k, m = (jnp.asarray(x) * 1.0 for x in group)
    several, outside = jnp.where(k * m > 1, 1.0, 0.0), jnp.where(m > 1, 1.0, 0.0)
    latency = times(several, jnp.broadcast_to(links.call_overhead, links.latency.shape[1:])[SIMPLE])
    latency += times(2 * (several - outside), links.latency[INTRA, SIMPLE])
    latency += times(2 * outside, links.latency[INTER, SIMPLE])
    network = over(2 * (m - 1) / m, links.bandwidth[INTER, SIMPLE])
    return _stack([(latency, over(2 * several, links.host_bandwidth) + network)])
