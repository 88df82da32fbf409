"""The hardware database as rows, for `jaxscale hardware list` and `jaxscale hardware show`."""

from __future__ import annotations

import datetime
from typing import Any, NamedTuple

from jaxscale.hardware_db import keys, store


class Fact(NamedTuple):
    """One figure of an entry: key without its unit, value as written, unit, where it comes from."""

    key: str
    value: Any
    unit: str
    source: str


class Line(NamedTuple):
    """One entry in one line."""

    kind: str
    name: str
    aliases: str
    description: str


def describe(name: str) -> list[Fact]:
    """Return every figure of a device, node, network or cluster with its unit and source.

    Args:
        name: name, alias or path of a .toml file.

    Raises:
        InputError: nothing has that name, or its file breaks the schema.

    >>> [fact.value for fact in describe("v100") if fact.key == "memory_bandwidth"]
    [900.0]
    """
    kind, path = store.locate(name, ("cluster", "node", "device", "network"))
    entry = store.load(kind, path)
    file = store.shown(path)
    facts = [Fact("kind", kind, "", file), Fact("name", path.stem.lower(), "", file)]
    for key, value in entry.model_dump(exclude={"source", "sources"}, exclude_none=True).items():
        facts += _facts(key, value, entry.sources, entry.sources.get(key, entry.source))
    return facts


def _facts(key: str, value: Any, sources: dict[str, str], source: str) -> list[Fact]:
    """Return the figures under one key: one, one per key of a table, or one per price."""
    if isinstance(value, dict):
        inner = {f"{key}.{part}": figure for part, figure in value.items()}
        return [
            Fact(*keys.split(each)[:1], inner[each], keys.split(each)[1], sources.get(each, source))
            for each in inner
        ]
    if key == "price":
        return [
            Fact(
                f"price.{each['kind']}",
                each["usd"],
                "USD" if each["kind"] == "purchase" else "USD/h",
                f"{each['source']} ({each['date']})",
            )
            for each in value
        ]
    if isinstance(value, list):
        return [Fact(key, ", ".join(value), "", source)] if value else []
    stem, unit, _ = keys.split(key)
    return [Fact(stem, value.isoformat() if isinstance(value, datetime.date) else value, unit, source)]


def summary() -> list[Line]:
    """Return one line per entry of the database, by kind and name.

    >>> any(line.name == "dgx-a100" for line in summary())
    True
    """
    names = {
        "device": store.device_names(),
        "node": store.node_names(),
        "network": store.network_names(),
        "cluster": store.cluster_names(),
    }
    lines = []
    for kind, stems in names.items():
        for stem in stems:
            entry = store.load(kind, store.locate(stem, (kind,))[1])
            lines.append(Line(kind, stem, ", ".join(entry.aliases), _DESCRIPTIONS[kind](entry)))
    return lines


def _device_line(entry: Any) -> str:
    peak = max(
        filter(None, (entry.peak_fp32_tflop_per_s, entry.peak_fp16_tflop_per_s, entry.peak_bf16_tflop_per_s))
    )
    return (
        f"{entry.generation}, {entry.peak_fp32_tflop_per_s:g} TFLOP/s FP32, {peak:g} at 16 bits, "
        f"{entry.memory_capacity_gb:g} GB at {entry.memory_bandwidth_gb_per_s:g} GB/s"
    )


def _node_line(entry: Any) -> str:
    network = f", {entry.nics} x {entry.network}" if entry.network else ""
    return (
        f"{entry.gpus} x {entry.device}, {entry.intra_node.link} "
        f"{entry.intra_node.bandwidth_gb_per_s:g} GB/s per GPU{network}"
    )


def _network_line(entry: Any) -> str:
    return f"{entry.bandwidth_gb_per_s:g} GB/s per port, {entry.latency_us:g} us"


def _cluster_line(entry: Any) -> str:
    return f"{entry.nodes} x {entry.node}"


_DESCRIPTIONS = {
    "device": _device_line,
    "node": _node_line,
    "network": _network_line,
    "cluster": _cluster_line,
}
