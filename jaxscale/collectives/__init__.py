"""Time of collective communication: every algorithm is affine in the message size, the fastest one counts.

An algorithm over one group of ranks takes `latency + bytes * inverse_bandwidth`, so a collective is an
`Envelope`, one row per algorithm and protocol, built once per group and links and evaluated for any number
of messages by `time`.

Algorithms and protocols that a GPU library chooses from: NVIDIA, NCCL documentation, environment variables
NCCL_ALGO and NCCL_PROTO.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import jax.numpy as jnp

from jaxscale.collectives.costs import COSTS, Net, inverse
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
    "envelopes",
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
Names = Sequence[str] | None

ALGORITHMS: dict[str, tuple[str, ...]] = {kind: tuple(costs) for kind, costs in COSTS.items()}
"""Per kind of collective, every algorithm that has a formula."""

DEFAULT_ALGORITHMS: dict[str, tuple[str, ...]] = {
    "all_reduce": ("ring", "tree", "in_switch"),
    "all_gather": ("ring",),
    "reduce_scatter": ("ring",),
    "broadcast": ("ring",),
    "all_to_all": ("direct",),
    "send_recv": ("direct",),
    "parameter_server": ("push_pull",),
}
"""Per kind, what GPU communication libraries choose from; others are asked for by name."""


def rows(kind: str, algorithms: Names = None) -> tuple[str, ...]:
    """Names of the rows of an envelope, in order: every algorithm in every protocol that it has.

    >>> rows("all_reduce", ["ring", "in_switch"])
    ('ring/low_latency', 'ring/simple', 'in_switch/simple')
    """
    return tuple(
        f"{algorithm}/{protocol}"
        for algorithm in _names(kind, algorithms)
        for protocol in PROTOCOLS[_protocols(algorithm)]
    )


def _names(kind: str, algorithms: Names) -> Sequence[str]:
    if algorithms is None:
        return DEFAULT_ALGORITHMS[kind]
    return [choose(f"{kind} algorithm", name, ALGORITHMS[kind]) for name in algorithms]


def _protocols(algorithm: str) -> slice:
    """A switch sums whole buffers only."""
    return slice(SIMPLE, SIMPLE + 1) if algorithm == "in_switch" else slice(None)


def _net(links: Links, group: Group, itemsize: Array | float) -> tuple[Net, Array]:
    """Links and group with the axis of protocols first, and whether the group's links exist.

    Axes of length one stay so, to be worked on once.
    """
    rank = max(jnp.ndim(leaf) for leaf in (*group, itemsize, links.latency[0, 0], links.bandwidth[0]))

    def each(leaf: Array) -> Array:
        """[protocol, ...] with as many axes as the group has."""
        return leaf.reshape(leaf.shape[0], *(1,) * (rank + 1 - leaf.ndim), *leaf.shape[1:])

    def one(leaf: Array | float) -> Array:
        leaf = jnp.asarray(leaf) * 1.0
        return leaf.reshape((1,) * (rank + 1 - leaf.ndim) + leaf.shape)

    k, m = one(group.ranks_per_node), one(group.nodes)
    exists, latency, byte = jnp.asarray(True), {}, {}
    for level, used in ((INTRA, k > 1), (INTER, m > 1)):
        share, rate, hop = (
            each(links.bandwidth_share[level]),
            one(links.bandwidth[level]),
            each(links.latency[level]),
        )
        absent = (rate <= 0) | (share <= 0) | (hop == jnp.inf)
        exists &= ~(used & absent)
        latency[level] = jnp.where(hop == jnp.inf, 0.0, hop)
        byte[level] = inverse(rate) * inverse(share)
    net = Net(
        k=k,
        m=m,
        latency_intra=latency[INTRA],
        latency_inter=latency[INTER],
        byte_intra=byte[INTRA],
        byte_inter=byte[INTER],
        byte_switch=inverse(one(links.in_switch_bandwidth)),
        byte_copy=inverse(one(links.copy_bandwidth)),
        byte_host=inverse(one(links.host_bandwidth)),
        byte_sum=inverse(one(links.reduction_flops)) / one(itemsize),
        call_overhead=each(links.call_overhead),
    )
    return net, exists


def envelopes(
    links: Links, group: Group, itemsize: Array | float, kinds: Mapping[str, Names]
) -> dict[str, Envelope]:
    """Envelopes of several kinds of collectives over one group; see `all_reduce` for the arguments.

    Args:
        kinds: per kind, the algorithms to choose from, or None for what GPU libraries use.
    """
    net, exists = _net(links, group, itemsize)
    several = net.p > 1
    called = jnp.where(several, net.call_overhead, 0.0)
    needed = {"in_switch": links.in_switch_bandwidth > 0, "push_pull": links.host_bandwidth > 0}
    return {
        kind: _envelope(kind, names, net, exists, needed, several, called) for kind, names in kinds.items()
    }


def _envelope(kind: str, names: Names, net: Net, exists, needed, several, called) -> Envelope:
    latencies, inverse_bandwidths = [], []
    for name in _names(kind, names):
        latency, inverse_bandwidth = COSTS[kind][name](net)
        usable = exists & needed[name] | ~several if name in needed else exists
        latency = jnp.where(usable, latency + called, jnp.inf)
        for protocol in range(len(PROTOCOLS))[_protocols(name)]:
            latencies.append(latency[protocol])
            inverse_bandwidths.append(inverse_bandwidth[min(protocol, len(inverse_bandwidth) - 1)])
    return Envelope(tuple(latencies), tuple(inverse_bandwidths))


def all_reduce(links: Links, group: Group, itemsize: Array | float, algorithms: Names = None) -> Envelope:
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
    ...     bandwidth=jnp.full(2, 10e9), bandwidth_share=jnp.ones((2, 2)),
    ...     latency=jnp.full((2, 2), 1e-6), call_overhead=jnp.zeros(2),
    ...     host_bandwidth=jnp.array(10e9), reduction_flops=jnp.array(jnp.inf),
    ...     in_switch_bandwidth=jnp.array(0.0), copy_bandwidth=jnp.array(jnp.inf),
    ... )
    >>> ring = all_reduce(links, group(4, 1, gpus_per_node=1), itemsize=4, algorithms=["ring"])
    >>> round(float(time(ring, 1e6)), 9)  # 2 * 3 us + 2 * 3/4 * 1 MB / 10 GB/s
    0.000156
    """
    return envelopes(links, group, itemsize, {"all_reduce": algorithms})["all_reduce"]


def all_gather(links: Links, group: Group, itemsize: Array | float, algorithms: Names = None) -> Envelope:
    """Every rank ends with the pieces of all ranks; the message is the gathered whole. See `all_reduce`."""
    return envelopes(links, group, itemsize, {"all_gather": algorithms})["all_gather"]


def reduce_scatter(links: Links, group: Group, itemsize: Array | float, algorithms: Names = None) -> Envelope:
    """Every rank ends with its piece of the sum; the message is one rank's input. See `all_reduce`."""
    return envelopes(links, group, itemsize, {"reduce_scatter": algorithms})["reduce_scatter"]


def broadcast(links: Links, group: Group, itemsize: Array | float, algorithms: Names = None) -> Envelope:
    """One rank's buffer reaches all; the message is that buffer. See `all_reduce`."""
    return envelopes(links, group, itemsize, {"broadcast": algorithms})["broadcast"]


def all_to_all(links: Links, group: Group, itemsize: Array | float, algorithms: Names = None) -> Envelope:
    """Every rank sends each other rank a piece; the message is one rank's buffer. See `all_reduce`."""
    return envelopes(links, group, itemsize, {"all_to_all": algorithms})["all_to_all"]


def send_recv(links: Links, group: Group, itemsize: Array | float, algorithms: Names = None) -> Envelope:
    """Every rank sends its buffer to a neighbour, the message is that buffer. See `all_reduce`."""
    return envelopes(links, group, itemsize, {"send_recv": algorithms})["send_recv"]


def parameter_server(links: Links, group: Group, itemsize: Array | float) -> Envelope:
    """Every rank pushes its gradients to parameters in host memory, spread over the nodes, and pulls them.

    The message is one buffer of gradients. See `all_reduce`; there is one algorithm.
    """
    return envelopes(links, group, itemsize, {"parameter_server": None})["parameter_server"]
