"""Devices, nodes, networks and named clusters as TOML files, and the loader that turns them into SI arrays.

Import from `jaxscale.hardware_db`; `jaxscale.hardware_db.schema` documents every key of the files.
"""

from jaxscale.hardware_db.loader import cluster, cluster_parts, device
from jaxscale.hardware_db.store import (
    cluster_names,
    device_names,
    load_cluster,
    load_device,
    load_network,
    load_node,
    network_names,
    node_names,
)
from jaxscale.hardware_db.tables import describe, summary

__all__ = [
    "cluster",
    "cluster_names",
    "cluster_parts",
    "describe",
    "device",
    "device_names",
    "load_cluster",
    "load_device",
    "load_network",
    "load_node",
    "network_names",
    "node_names",
    "summary",
]
