"""The algorithms of collective communication: latency and inverse bandwidth of each.

Notation: a group has k ranks in each of m nodes, p = k m; hops cost a_i inside the node and a_e between
nodes, a where it does not matter; B is the bandwidth per rank, n the bytes of the message, c the time to
sum one byte.

Sources:
    Thakur, Rabenseifner, Gropp, "Optimization of collective communication operations in MPICH", 2005.
    Patarasuk, Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009 (ring).
    Rabenseifner, "Optimization of collective reduction operations", 2004 (halving and doubling).
    Sanders, Speck, Traff, "Two-tree algorithms for full bandwidth broadcast, reduction and scan", 2009.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp

from jaxscale.nouns import Array


class Net(NamedTuple):
    """Links as one group meets them, [protocol, ...]; the leaves broadcast and are finite.

    Rates stand here as the time of one byte, so that a link of infinite rate costs nothing and no formula
    divides. What a missing link costs is no matter of an algorithm, see `absent`.
    """

    k: Array
    m: Array
    latency_intra: Array
    latency_inter: Array
    byte_intra: Array
    """s/B within a node."""
    byte_inter: Array
    """s/B between nodes."""
    byte_switch: Array
    """s/B through a switch that sums."""
    byte_copy: Array
    """s/B of moving a result into place."""
    byte_host: Array
    """s/B to the memory of the host."""
    byte_sum: Array
    """s to sum one received byte."""
    call_overhead: Array

    @property
    def p(self) -> Array:
        return self.k * self.m


Cost = tuple[Array, Array]
"""Latency in s and inverse bandwidth in s/B."""


def inverse(rate: Array) -> Array:
    """1 / rate, and 0 for a rate that is absent (0 or negative), with finite gradients."""
    absent = rate <= 0
    return jnp.where(absent, 0.0, 1 / jnp.where(absent, 1.0, rate))


def log2(count: Array) -> Array:
    """ceil(log2(count)), exact: rounding of a logarithm would add a hop to some powers of two."""
    _, exponent = jnp.frexp(jnp.round(count) - 1.0)
    return jnp.maximum(exponent, 0) * jnp.ones_like(count)


def folded(count: Array) -> tuple[Array, Array]:
    """Largest power of two in `count`, and 1 where ranks beyond it hand their data to a neighbour first.

    Halving and doubling pair ranks, so such ranks sit out: one more message before and one after
    (Thakur et al., all-reduce).
    """
    power = 2.0 ** log2(count)
    beyond = power > jnp.round(count)
    return jnp.where(beyond, power / 2, power), beyond * 1.0


def hops(net: Net, intra: Array, inter: Array) -> Array:
    return intra * net.latency_intra + inter * net.latency_inter


def in_turn(net: Net, intra: Array, inter: Array) -> Array:
    """Each rank moves `intra` of the buffer in its node, then `inter` of it over its network port."""
    return intra * net.byte_intra + inter * net.byte_inter


def streamed(net: Net, volume: Array | float) -> Array:
    """A pipeline moves `volume` of the buffer through each rank; the k ports of a node share the load."""
    in_node = (net.k > 1) * net.byte_intra
    across = (net.m > 1) / net.k * net.byte_inter
    return volume * jnp.maximum(in_node, across)


def sums(net: Net, share: Array) -> Array:
    return share * net.byte_sum


def add(first: Cost, second: Cost) -> Cost:
    return first[0] + second[0], first[1] + second[1]


# ---------------------------------------------------------------------------------------------------------
# Gathering and scattering: one pass moves (p-1)/p of the buffer through every rank
# ---------------------------------------------------------------------------------------------------------


def ring_pass(net: Net) -> Cost:
    """(p-1) a + (p-1)/p n/B, m-1 of the hops between nodes (Thakur et al.; Patarasuk and Yuan)."""
    return hops(net, net.p - net.m, net.m - 1), streamed(net, (net.p - 1) / net.p)


def doubling_pass(net: Net) -> Cost:
    """log2(p) a + (p-1)/p n/B, nearest partners first (Thakur et al., all-gather, Rabenseifner)."""
    return hops(net, log2(net.k), log2(net.m)), in_turn(net, (net.k - 1) / net.k, (net.m - 1) / net.p)


def two_level_pass(net: Net) -> Cost:
    """Rings in the nodes, then rings of the ranks with equal place in their nodes."""
    return hops(net, net.k - 1, net.m - 1), in_turn(net, (net.k - 1) / net.k, (net.m - 1) / net.p)


def landing(whole: Callable[[Net], Cost]) -> Callable[[Net], Cost]:
    """The last of the p pieces is moved within the rank while nothing is left to send: 1/p of the buffer.

    Steps of NCCL's ring: send, p-2 times receive and send, receive.
    """

    def cost(net: Net) -> Cost:
        latency, inverse_bandwidth = whole(net)
        return latency, inverse_bandwidth + (net.p > 1) / net.p * net.byte_copy

    return cost


def reducing(one_pass: Callable[[Net], Cost]) -> Callable[[Net], Cost]:
    """A reduce-scatter is an all-gather run backward that sums (p-1)/p of the buffer."""

    def cost(net: Net) -> Cost:
        latency, inverse_bandwidth = one_pass(net)
        return latency, inverse_bandwidth + sums(net, (net.p - 1) / net.p)

    return cost


def both(one_pass: Callable[[Net], Cost]) -> Callable[[Net], Cost]:
    """An all-reduce by reduce-scatter and all-gather."""
    return lambda net: add(reducing(one_pass)(net), one_pass(net))


def halving_pass(net: Net) -> Cost:
    """Half of a reduce-scatter and all-gather by halving and doubling, with half of their two foldings."""
    (k, fold_intra), (m, fold_inter) = folded(net.k), folded(net.m)
    latency = hops(net, log2(k) + fold_intra, log2(m) + fold_inter)
    return latency, in_turn(net, (k - 1) / k + fold_intra, ((m - 1) / m + fold_inter) / net.k)


# ---------------------------------------------------------------------------------------------------------
# Other ways to all-reduce, broadcast and exchange
# ---------------------------------------------------------------------------------------------------------


def tree(net: Net) -> Cost:
    """2 log2(m) a + 2 n/B: two pipelined binary trees over the nodes, each for half the buffer (Sanders
    et al.), and a chain inside every node, as NCCL builds them."""
    latency = hops(net, 2 * (net.k - 1), 2 * log2(net.m))
    return latency, streamed(net, 2.0) + sums(net, jnp.where(net.p > 1, 1.0, 0.0))


def recursive_doubling(net: Net) -> Cost:
    """log2(p) (a + n/B + c n) (Thakur et al., all-reduce)."""
    (k, fold_intra), (m, fold_inter) = folded(net.k), folded(net.m)
    intra, inter = log2(k) + 2 * fold_intra, log2(m) + 2 * fold_inter
    return hops(net, intra, inter), in_turn(net, intra, inter) + sums(
        net, intra + inter - fold_intra - fold_inter
    )


def flat_tree(net: Net) -> Cost:
    """ceil(log2 p) (a + 2 n/B + c n): a tree as counted by the cost model of Barrachina et al. 2021.

    Its convention `vdg`, kept so that figures computed by it can be reproduced; nothing is derived here.
    """
    intra, inter = log2(net.k), log2(net.m)
    return hops(net, intra, inter), in_turn(net, 2 * intra, 2 * inter) + sums(net, intra + inter)


def two_level_tree(net: Net) -> Cost:
    """Reduce-scatter in the nodes, a double tree between nodes for each of the k shares, all-gather."""
    in_node = both(ring_pass)(net._replace(m=jnp.ones_like(net.m)))
    latency, inverse_bandwidth = tree(net._replace(k=jnp.ones_like(net.k)))
    return add(in_node, (latency, inverse_bandwidth / net.k))


def in_switch(net: Net) -> Cost:
    """2 a + (1 + 1/k) n/B_s: the switch sums what all ranks hold and multicasts what each has stored.

    A rank sends its whole buffer and its share of the result (Klenk et al. 2020, "An in-network architecture
    for accelerating shared-memory multiprocessor collectives"; NCCL's NVLS). Between nodes the shares pass
    through a double tree, in the same pipeline (NVLSTree).
    """
    in_node = (net.p > 1) * (1 + 1 / net.k) * net.byte_switch
    across = (net.m > 1) * 2 / net.k * net.byte_inter
    summing = sums(net, (net.m > 1) / net.k)
    return hops(net, 2.0 * (net.k > 1), 2 * log2(net.m)), jnp.maximum(in_node, across) + summing


def chain(net: Net) -> Cost:
    """(p-1) a + n/B: pipelined from rank to rank."""
    return hops(net, net.p - net.m, net.m - 1), streamed(net, 1.0)


def binomial(net: Net) -> Cost:
    """log2(p) (a + n/B) (Thakur et al., broadcast)."""
    intra, inter = log2(net.k), log2(net.m)
    return hops(net, intra, inter), in_turn(net, intra, inter)


def scatter_all_gather(net: Net) -> Cost:
    """(log2(p) + p-1) a + 2 (p-1)/p n/B (Thakur et al., broadcast, after van de Geijn)."""
    return add(doubling_pass(net), ring_pass(net))


def pairwise(net: Net) -> Cost:
    """(p-1) a + (p-1)/p n/B (Thakur et al., all-to-all)."""
    return hops(net, net.k - 1, net.p - net.k), in_turn(net, (net.k - 1) / net.p, (net.p - net.k) / net.p)


def direct(net: Net) -> Cost:
    """All exchanges in flight at once: one hop, and both levels of the network busy together."""
    latency = jnp.maximum((net.k > 1) * net.latency_intra, (net.m > 1) * net.latency_inter)
    in_node, across = (net.k - 1) / net.p * net.byte_intra, (net.p - net.k) / net.p * net.byte_inter
    return latency, jnp.maximum(in_node, across)


def bruck(net: Net) -> Cost:
    """log2(p) (a + n/(2 B)) (Thakur et al., all-to-all, after Bruck)."""
    intra, inter = log2(net.k), log2(net.m)
    return hops(net, intra, inter), in_turn(net, intra / 2, inter / 2)


def hop(net: Net) -> Cost:
    """a + n/B, over the slower level that the group spans."""
    outside = net.m > 1
    inside = ~outside & (net.k > 1)
    return hops(net, inside * 1.0, outside * 1.0), in_turn(net, inside * 1.0, outside * 1.0)


def push_pull(net: Net) -> Cost:
    """2 a + 2 n/B_host; the (m-1)/m of the parameters that other nodes hold also pass the network.

    Li et al. 2014, "Scaling distributed machine learning with the parameter server". The time of the host's
    sums is not counted.
    """
    several, outside = (net.p > 1) * 1.0, (net.m > 1) * 1.0
    network = 2 * (net.m - 1) / net.m * net.byte_inter
    return hops(net, 2 * (several - outside), 2 * outside), 2 * several * net.byte_host + network


COSTS: dict[str, dict[str, Callable[[Net], Cost]]] = {
    "all_reduce": {
        "ring": landing(both(ring_pass)),
        "tree": tree,
        "in_switch": in_switch,
        "two_level_ring": landing(both(two_level_pass)),
        "two_level_tree": two_level_tree,
        "recursive_doubling": recursive_doubling,
        "rabenseifner": landing(both(halving_pass)),
        "flat_tree": flat_tree,
    },
    "all_gather": {
        "ring": landing(ring_pass),
        "two_level": landing(two_level_pass),
        "recursive_doubling": landing(doubling_pass),
    },
    "reduce_scatter": {
        "ring": landing(reducing(ring_pass)),
        "two_level": landing(reducing(two_level_pass)),
        "recursive_halving": landing(reducing(halving_pass)),
    },
    "broadcast": {"ring": chain, "binomial_tree": binomial, "scatter_all_gather": scatter_all_gather},
    "all_to_all": {"direct": landing(direct), "pairwise": landing(pairwise), "bruck": landing(bruck)},
    "send_recv": {"direct": hop},
    "parameter_server": {"push_pull": push_pull},
}
"""Kind of collective -> algorithm -> cost."""
