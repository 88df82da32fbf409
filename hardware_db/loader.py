"""From entries of the hardware database to the nouns, in SI units.

Formats that a device lacks run at the rate of the narrowest format that holds their numbers and that the
device has (`WIDER`): FP16 and BF16 in TF32 or else FP32, TF32 in FP32, FP8 in FP16 or else BF16. BF16 does
not fall back to FP16, which lacks its range. Outside the matrix units everything but FP16 runs at the FP32
rate, because kernels load narrow formats and compute in FP32.
"""

from __future__ import annotations

import functools
import re
from numbers import Integral
from typing import TYPE_CHECKING, Any, NamedTuple

from jaxscale.errors import InputError
from jaxscale.hardware_db import keys, links, store

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import jax

    from jaxscale import nouns
    from jaxscale.hardware_db.schema import DeviceEntry, NetworkEntry, NodeEntry

WIDER = {"fp8": ("fp16", "bf16"), "fp16": ("tf32", "fp32"), "bf16": ("tf32", "fp32"), "tf32": ("fp32",)}
"""Format -> where its numbers fit, narrowest first."""


class ClusterParts(NamedTuple):
    """What a cluster is made of, on the host: entries with their names, sources, powers and prices."""

    name: str
    device: DeviceEntry
    node: NodeEntry | None
    network: NetworkEntry | None
    nics: int
    gpus_per_node: int
    nodes: int


def device(name: str) -> nouns.Device:
    """Return a device as SI arrays.

    Args:
        name: name or alias in the hardware database, or the path of a .toml file.

    Returns:
        jaxscale.nouns.Device: float32 arrays; rates [precision] in the order of `nouns.PRECISIONS`.

    Raises:
        InputError: no such device, or its file breaks the schema.

    >>> device("v100").memory_bandwidth
    Array(9.e+11, dtype=float32)
    """
    return _device(store.load_device(name))


def cluster(name: str, gpus: int | None = None, network: str | None = None) -> nouns.Cluster:
    """Return a cluster as SI arrays: a named one, or a node or device replicated to `gpus`.

    Args:
        name: a cluster, node or device of the hardware database, or the path of a .toml file.
        gpus: number of devices; all of a named cluster, one node or one device when left out. A number
            below the size of the node uses a part of one node, above it must be a multiple.
        network: a network in place of the node's own ("hdr"), with as many ports as the node has, or
            with a number of ports ("1xethernet-10g").

    Returns:
        jaxscale.nouns.Cluster: float32 arrays; Links [level, protocol]. A level that is not used has
            the bandwidth and latency of its link where the node has one, otherwise zeros.

    Raises:
        InputError: unknown name, a number of devices that the nodes cannot give, or no network.

    >>> two = cluster("dgx-1-v100", gpus=16)
    >>> float(two.nodes), float(two.gpus_per_node)
    (2.0, 8.0)
    """
    from jaxscale.nouns import PROTOCOLS, Cluster, Links

    parts = cluster_parts(name, gpus, network)
    in_node = parts.node.intra_node if parts.node else None
    levels = [links.level(in_node, 1.0), links.level(parts.network, parts.nics / parts.gpus_per_node)]
    launch = keys.si(parts.device, "launch_overhead_us")
    used = zip(levels, (parts.gpus_per_node > 1, parts.nodes > 1), strict=True)
    # A collective is launched like a kernel; fitted constants hold what a call costs beyond its hops.
    launches = (launch,) * len(PROTOCOLS)
    calls = [level.call_overhead or launches for level, is_used in used if is_used] or [launches]
    between = Links(
        bandwidth=_array([level.bandwidth for level in levels]),
        bandwidth_share=_array([level.bandwidth_share for level in levels]),
        latency=_array([level.latency for level in levels]),
        call_overhead=_array([max(protocol) for protocol in zip(*calls, strict=True)]),
        host_bandwidth=_array(keys.si(parts.node or parts.device, "host_bandwidth_gb_per_s")),
        reduction_flops=_array(float("inf")),
        in_switch_bandwidth=_array(links.in_switch_bandwidth(in_node)),
        copy_bandwidth=_array(links.copy_bandwidth(in_node)),
    )
    return Cluster(_device(parts.device), between, _array(parts.gpus_per_node), _array(parts.nodes))


def cluster_parts(name: str, gpus: int | None = None, network: str | None = None) -> ClusterParts:
    """Return what `cluster` with the same arguments is made of, with names, sources and prices.

    >>> parts = cluster_parts("dgx-1-v100", gpus=64)
    >>> parts.nodes, parts.nics
    (8, 4)
    """
    if gpus is not None and (isinstance(gpus, bool) or not isinstance(gpus, Integral) or gpus < 1):
        raise InputError(f"the number of GPUs is {gpus!r}, allowed is a whole number of at least 1")
    gpus = None if gpus is None else int(gpus)
    kind, path = store.locate(name, ("cluster", "node", "device"))
    if kind == "device":
        return _device_parts(name, path, gpus, network)
    named = store.load("cluster", path) if kind == "cluster" else None
    node = store.load_node(named.node) if named else store.load("node", path)
    gpus_per_node, nodes = _split(name, gpus, node.gpus, named.nodes if named else None)
    default = (named and named.network) or node.network
    ports = (named and named.nics) or node.nics
    entry, nics = _network(network, ports) if network else (default and store.load_network(default), ports)
    if nodes > 1 and entry is None:
        raise InputError(
            f"{name!r} names no network for {nodes} nodes, known are {', '.join(store.network_names())}"
        )
    return ClusterParts(name, store.load_device(node.device), node, entry or None, nics, gpus_per_node, nodes)


def _device_parts(name: str, path: Path, gpus: int | None, network: str | None) -> ClusterParts:
    """Return devices without a node: one each on the network."""
    entry: DeviceEntry = store.load("device", path)
    if network is None and gpus not in (None, 1):
        holders = [node for node in store.node_names() if store.load_node(node).device == path.stem]
        raise InputError(
            f"{name!r} is a single device and nothing connects {gpus} of them: name a node that holds it "
            f"({', '.join(holders) or 'none known'}) or a network ({', '.join(store.network_names())})"
        )
    port, nics = _network(network, 1) if network else (None, 1)
    return ClusterParts(name, entry, None, port, nics, 1, gpus or 1)


def fills_nodes(gpus: int, size: int) -> bool:
    """Whether `gpus` devices are what a job gets of nodes of `size`: a part of one, or whole ones.

    >>> [gpus for gpus in range(1, 25) if fills_nodes(gpus, 8)]
    [1, 2, 3, 4, 5, 6, 7, 8, 16, 24]
    """
    return gpus <= size or gpus % size == 0


def _split(name: str, gpus: int | None, size: int, nodes: int | None) -> tuple[int, int]:
    """Return devices per node and number of nodes (`size` devices in a node, at most `nodes` of them)."""
    gpus = size * (nodes or 1) if gpus is None else gpus
    if nodes is not None and gpus > size * nodes:
        raise InputError(f"{name!r} has {size * nodes} GPUs, {gpus} are more than that")
    if not fills_nodes(gpus, size):
        below = gpus // size * size
        nearest = str(below) if nodes is not None and gpus // size >= nodes else f"{below} or {below + size}"
        raise InputError(
            f"{gpus} GPUs do not fill nodes of {size} ({name!r}), allowed are up to {size} "
            f"or multiples of {size}, the nearest {nearest}"
        )
    return min(gpus, size), -(-gpus // size)


def _network(name: str, ports: int) -> tuple[NetworkEntry, int]:
    """Return the network and the number of ports of "hdr" or "4xhdr"."""
    written = re.fullmatch(r"([1-9]\d{0,3})x(.+)", name)
    return (store.load_network(written[2]), int(written[1])) if written else (store.load_network(name), ports)


@functools.cache
def _utilization(generation: str) -> dict[str, list[float]]:
    """Return kernel family -> [precision] share of the roofline; 1 where utilization.toml says nothing."""
    from jaxscale.hardware_db.schema import utilization_model
    from jaxscale.hardware_db.validation import validate
    from jaxscale.nouns import KERNEL_FAMILIES, PRECISIONS

    path = store.PACKAGE_FOLDER / "utilization.toml"
    table = (store.read(path) if path.exists() else {}).get(generation)
    if table is None:
        return dict.fromkeys(KERNEL_FAMILIES, [1.0] * len(PRECISIONS))
    where = f"{store.shown(path)}: {generation}"
    entry = validate(utilization_model(KERNEL_FAMILIES), table, where, "generation")
    shares = {family: getattr(entry, family) for family in KERNEL_FAMILIES}
    return {
        family: [share if isinstance(share, float) else getattr(share, precision) for precision in PRECISIONS]
        for family, share in shares.items()
    }


def _device(entry: DeviceEntry) -> nouns.Device:
    from jaxscale.nouns import GENERATIONS, PRECISIONS, Device

    known = entry.generation in GENERATIONS
    vector = {"fp16": keys.si(entry, "vector_fp16_tflop_per_s") or keys.si(entry, "vector_fp32_tflop_per_s")}
    return Device(
        peak_flops=_array([_peak(entry, precision) for precision in PRECISIONS]),
        vector_flops=_array(
            [vector.get(precision, keys.si(entry, "vector_fp32_tflop_per_s")) for precision in PRECISIONS]
        ),
        memory_bandwidth=_array(keys.si(entry, "memory_bandwidth_gb_per_s")),
        memory_capacity=_array(keys.si(entry, "memory_capacity_gb")),
        cache_capacity=_array(keys.si(entry, "cache_capacity_mb")),
        multiprocessors=_array(entry.multiprocessors),
        clock=_array(keys.si(entry, "clock_ghz")),
        launch_overhead=_array(keys.si(entry, "launch_overhead_us")),
        generation=_array(GENERATIONS.index(entry.generation) if known else -1),
        utilization={family: _array(share) for family, share in _utilization(entry.generation).items()},
    )


def runs_in(precision: str, has: Callable[[str], bool]) -> str:
    """Return the format in which matrix kernels of a format run, where a device `has` the rates of some.

    >>> runs_in("fp8", lambda name: name in ("fp16", "fp32"))
    'fp16'
    """
    while precision != "fp32" and not has(precision):
        wider = WIDER[precision]
        precision = next(filter(has, wider), wider[-1])
    return precision


def has_rate(entry: DeviceEntry, precision: str) -> bool:
    """Return whether a device has a matrix rate of its own for a format."""
    return bool(keys.si(entry, f"peak_{precision}_tflop_per_s"))


def _peak(entry: DeviceEntry, precision: str) -> float:
    """Return the matrix rate of a format in FLOP/s, of the next wider one where the device lacks it."""
    return keys.si(entry, f"peak_{runs_in(precision, functools.partial(has_rate, entry))}_tflop_per_s")


def _array(values: Any) -> jax.Array:
    import jax
    import numpy as np

    return jax.device_put(np.asarray(values, np.float32))
