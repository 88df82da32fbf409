"""Clusters made by hand, and shorthands, that several test modules use."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.nouns import PRECISIONS, Cluster, Device, Links


def cluster(
    peak=15.7e12,
    memory_bandwidth=900e9,
    bandwidth=(12.5e9, 12.5e9),
    latency=(1e-6, 1e-6),
    capacity=1e12,
    launch=0.0,
    reduction=np.inf,
    gpus_per_node=1,
    nodes=1024,
    dtype=jnp.float64,
) -> Cluster:
    """A cluster without any correction: utilization 1, one protocol, no overhead per call."""

    def number(value):
        return jnp.asarray(value, dtype)

    device = Device(
        peak_flops=number([peak] * len(PRECISIONS)),
        vector_flops=number([peak] * len(PRECISIONS)),
        memory_bandwidth=number(memory_bandwidth),
        memory_capacity=number(capacity),
        cache_capacity=number(6e6),
        multiprocessors=number(80),
        clock=number(1.5e9),
        launch_overhead=number(launch),
        generation=number(-1),
        utilization={},
    )
    links = Links(
        bandwidth=number(bandwidth),
        bandwidth_share=number([[0.0, 1.0]] * 2),
        latency=number([[0.0, a] for a in latency]),
        call_overhead=number([0.0, 0.0]),
        host_bandwidth=number(10e9),
        reduction_flops=number(reduction),
        in_switch_bandwidth=number(0.0),
        copy_bandwidth=number(np.inf),
    )
    return Cluster(device, links, number(gpus_per_node), number(nodes))


def widen(tree):
    """The same tables in float64."""
    return jax.tree.map(
        lambda leaf: leaf.astype(jnp.float64) if jnp.issubdtype(leaf.dtype, jnp.floating) else leaf, tree
    )
