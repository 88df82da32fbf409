"""Constants of links fitted to measured collectives, through the functions of jaxscale.collectives."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pandas as pd
from scipy.optimize import least_squares

from jaxscale import collectives
from jaxscale.collectives import Group
from jaxscale.nouns import Links


class System(NamedTuple):
    """What is known of a system before any measurement: link technologies, how it sums."""

    intra: str
    inter: str = "ndr"
    in_switch: bool = False
    host_sums: bool = False


BANDWIDTH = {
    "nvlink1": 80e9, "nvlink2": 150e9, "nvlink3": 300e9, "nvlink4": 450e9, "nvlink5": 900e9,
    "pcie3": 15.75e9, "pcie4": 31.5e9, "pcie5": 63e9, "edr": 12.5e9, "hdr": 25e9, "ndr": 50e9,
    "efa-400": 50e9, "ethernet-10": 1.25e9, "slingshot": 25e9, "omni-path": 12.5e9,
}  # fmt: skip
"""Data-sheet bandwidth of a link technology per GPU (or port) and direction, B/s."""

SYSTEMS = {
    "V100-PCIe": System("pcie3", "ethernet-10"),
    "H100-EFA": System("nvlink4", "efa-400", in_switch=True),
    "H100-NDR": System("nvlink4", "ndr", in_switch=True),
    "leonardo": System("pcie4", "hdr", host_sums=True),
    "lumi": System("pcie4", "slingshot", host_sums=True),
    "mare_nostrum": System("pcie5", "hdr", host_sums=True),
    "a100_sxm": System("nvlink3"),
    "h100_sxm": System("nvlink4", in_switch=True),
    "b200_sxm": System("nvlink5", in_switch=True),
    "b300_sxm": System("nvlink5", in_switch=True),
    "gb200": System("nvlink5", in_switch=True),
    "l40s": System("pcie4"),
    "rtx_pro_6000_server": System("pcie5"),
    "b60": System("pcie4"),
    "IA_KNL7250 Intel MLSL": System("pcie3", "omni-path"),
}
UNNAMED = System("pcie3", "edr")
"""The servers of 2016 and 2017, whatever card they hold."""

IN_SWITCH_SHARE = 0.69
"""Share of the link at which NVSwitch sums, from the eight-GPU rows of h100_cluster."""


def priors(system: System) -> tuple[np.ndarray, np.ndarray]:
    """Centres and widths of the logarithms of the constants, in the order of `links`."""
    intra, inter = BANDWIDTH[system.intra], BANDWIDTH[system.inter]
    rows = [
        (5e-6, 1.0), (2.0, 1.0),  # call overhead: low_latency; simple over it
        (1e-6, 1.0), (5.0, 1.0), (5e-6, 1.0), (3.0, 1.0),  # latency per level: low_latency; simple over it
        (0.8 * intra, 0.7), (0.3, 1.0), (0.8 * inter, 0.7), (0.3, 1.0),  # bandwidth: simple; the other's part
        (1e9, 1.5 if system.host_sums else 1e-6),  # sums, FLOP/s
        (IN_SWITCH_SHARE * intra, 0.7 if system.in_switch else 1e-6),
        (8.0, 1.5),  # copies within a rank over the link in the node
    ]  # fmt: skip
    centres, widths = np.array(rows).T
    return np.log(centres), widths


def links(logarithms: jax.Array, host_sums: jax.Array, in_switch: jax.Array, sharing: jax.Array) -> Links:
    """Constants from their logarithms; ranks that share a port have a share of its bandwidth."""
    constants = jnp.exp(logarithms)
    overhead, bulkier, a_intra, slower_intra, a_inter, slower_inter = constants[:6]
    b_intra, share_intra, b_inter, share_inter, sums, switch, copies = constants[6:]
    here = jnp.ones_like(sharing)
    return Links(
        bandwidth=jnp.array([here * b_intra, b_inter / sharing]),
        bandwidth_share=jnp.array([[share_intra, 1.0], [share_inter, 1.0]]),
        latency=jnp.array([[a_intra, a_intra * slower_intra], [a_inter, a_inter * slower_inter]]),
        call_overhead=jnp.array([overhead, overhead * bulkier]),
        host_bandwidth=jnp.array(jnp.inf),
        reduction_flops=jnp.where(host_sums, sums, jnp.inf),
        in_switch_bandwidth=jnp.where(in_switch, switch, 0.0),
        copy_bandwidth=jnp.where(host_sums, jnp.inf, copies * b_intra),
    )


ALGORITHMS = {
    "all_reduce": (*collectives.DEFAULT_ALGORITHMS["all_reduce"], "recursive_doubling", "rabenseifner"),
    "all_gather": (*collectives.DEFAULT_ALGORITHMS["all_gather"], "recursive_doubling"),
    "reduce_scatter": (*collectives.DEFAULT_ALGORITHMS["reduce_scatter"], "recursive_halving"),
    "all_to_all": collectives.DEFAULT_ALGORITHMS["all_to_all"],
    "send_recv": collectives.DEFAULT_ALGORITHMS["send_recv"],
}
"""Of every kind, the algorithms that the measurements use or name."""

PADDED = 1536


class Inputs(NamedTuple):
    """A table of measurements as arrays of one length, so that one compilation serves every system."""

    columns: jax.Array
    """[5, row] ranks per node, nodes, sharing, bytes, itemsize."""
    kinds: jax.Array
    """[kind, row] 1 for the kind of the row."""
    masks: dict[str, jax.Array]
    """Per kind, [row of the envelope, row] 1 where the measurement may use it."""
    host_sums: jax.Array
    in_switch: jax.Array


def inputs(system: System, table: pd.DataFrame) -> Inputs:
    """Arrays of at most PADDED measurements, the last one repeated to fill them."""
    table = table.iloc[np.minimum(np.arange(PADDED), len(table) - 1)]
    columns = table[["ranks_per_node", "nodes", "sharing", "bytes", "itemsize"]].to_numpy(float).T
    named = table.algorithm.to_numpy(str)
    masks = {
        kind: np.array(
            [
                np.where(named == "", name in collectives.DEFAULT_ALGORITHMS[kind], named == name)
                for name in (row.split("/")[0] for row in collectives.rows(kind, names))
            ]
        )
        for kind, names in ALGORITHMS.items()
    }
    kinds = np.array([table.kind == kind for kind in ALGORITHMS])
    return Inputs(
        jnp.array(columns),
        jnp.array(kinds),
        {kind: jnp.array(mask) for kind, mask in masks.items()},
        jnp.array(system.host_sums),
        jnp.array(system.in_switch),
    )


def seconds(logarithms: jax.Array, given: Inputs) -> jax.Array:
    """Predicted time of every measurement."""
    ranks_per_node, nodes, sharing, size, itemsize = given.columns
    here = links(logarithms, given.host_sums, given.in_switch, sharing)
    total = jnp.zeros_like(size)
    for chosen, (kind, names) in zip(given.kinds, ALGORITHMS.items(), strict=True):
        envelope = getattr(collectives, kind)(here, Group(ranks_per_node, nodes), itemsize, names)
        envelope = collectives.restrict(envelope, given.masks[kind])
        total = jnp.where(chosen, collectives.time(envelope, size), total)
    return total


predict = jax.jit(seconds)
jacobian = jax.jit(jax.jacfwd(lambda logarithms, given: jnp.log(seconds(logarithms, given))))


def errors(logarithms: np.ndarray, system: System, table: pd.DataFrame) -> np.ndarray:
    """Relative error of every measurement, in its order."""
    parts = [table.iloc[start : start + PADDED] for start in range(0, len(table), PADDED)]
    times = [np.asarray(predict(logarithms, inputs(system, part)))[: len(part)] for part in parts]
    return np.concatenate([*times, []]) / table.seconds.to_numpy() - 1


def fit(system: System, table: pd.DataFrame, scatter: float = 0.1) -> np.ndarray:
    """Logarithms of the constants that explain the table best; robust, since timings have outliers."""
    centres, widths = priors(system)
    given, count = inputs(system, table), len(table)
    measured = np.log(table.seconds.to_numpy())

    def residuals(x: np.ndarray) -> np.ndarray:
        misfit = np.log(np.asarray(predict(x, given)))[:count] - measured
        return np.concatenate([misfit / scatter, (x - centres) / widths])

    def slopes(x: np.ndarray) -> np.ndarray:
        return np.concatenate([np.asarray(jacobian(x, given))[:count] / scatter, np.diag(1 / widths)])

    def loss(squares: np.ndarray) -> np.ndarray:
        """Soft L1 for measurements, squares for priors."""
        rho = np.stack([2 * (np.sqrt(1 + squares) - 1), (1 + squares) ** -0.5, -0.5 * (1 + squares) ** -1.5])
        rho[:, count:] = squares[count:], np.ones(len(widths)), np.zeros(len(widths))
        return rho

    scales = np.minimum(widths, 1.0)
    return least_squares(residuals, centres, slopes, loss=loss, x_scale=scales).x  # pyright: ignore[reportArgumentType]
