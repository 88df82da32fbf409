"""Links made by hand, and one way to call every collective."""

import jax.numpy as jnp
import numpy as np

from jaxscale import collectives
from jaxscale.collectives import ALGORITHMS
from jaxscale.nouns import Links

KINDS = tuple(ALGORITHMS)
MB = 1e6
US = 1e-6


def make_links(
    intra=100e9, inter=10e9, a_intra=1 * US, a_inter=10 * US, overhead=5 * US, host=20e9,
    sums=np.inf, in_switch=50e9, copies=np.inf, low_latency_share=1.0,
) -> Links:  # fmt: skip
    """Links whose two protocols differ in bandwidth only."""
    shares = [[low_latency_share, 1.0]] * 2
    latencies = [[a_intra] * 2, [a_inter] * 2]
    rest = ([overhead] * 2, host, sums, in_switch, copies)
    return Links(*map(jnp.array, ([intra, inter], shares, latencies, *rest)))


def envelope(kind, links, where, itemsize=4.0, algorithms=None):
    if kind == "parameter_server":
        return collectives.parameter_server(links, where, itemsize)
    return getattr(collectives, kind)(links, where, itemsize, algorithms)
