"""The constants that hardware_db ships for link technologies: fitted to all measurements of each."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd

from collectives_data import SETS
from collectives_fit import BANDWIDTH, SYSTEMS, errors, fit

DATE = "2026-11-30"


class Technology(NamedTuple):
    """Where the measurements of one link technology are."""

    system: str
    """The system whose priors hold."""
    level: str
    rows: str
    """Query on the table of all measurements."""
    note: str = ""


MEASURED = {
    "nvlink3": Technology("a100_sxm", "intra", "system == 'a100_sxm'"),
    "nvlink4": Technology(
        "h100_sxm", "intra", "system == 'h100_sxm' or (system == 'H100-NDR' and nodes == 1)"
    ),
    "nvlink5": Technology("b200_sxm", "intra", "system in ('b200_sxm', 'b300_sxm', 'gb200')"),
    "pcie3": Technology(
        "V100-PCIe", "intra",
        "nodes == 1 and (system == 'V100-PCIe' or (set == 'deepbench' and system.str.contains('NCCL')))",
    ),
    "pcie4": Technology("l40s", "intra", "system == 'l40s' and ranks_per_node == 2", "peer to peer"),
    "pcie4-host": Technology("l40s", "intra", "system == 'l40s' and ranks_per_node > 2", "through the host"),
    "pcie5": Technology("rtx_pro_6000_server", "intra", "system == 'rtx_pro_6000_server'"),
    "pcie5-x8": Technology("b60", "intra", "system == 'b60'"),
    "ndr": Technology(
        "H100-NDR", "inter", "system == 'H100-NDR'",
        "messages of 32 MB and more, so low_latency is a prior",
    ),
    "efa-3200": Technology(
        "H100-EFA", "inter", "system == 'H100-EFA' and nodes <= 2",
        "latency is a prior; that busy network took 1.1 to 10 times as long on 4 to 64 nodes",
    ),
    "ethernet-10": Technology("V100-PCIe", "inter", "system == 'V100-PCIe'", "TCP"),
}  # fmt: skip

LIKE = {
    "default": "ndr", "edr": "ndr", "hdr": "ndr", "xdr": "ndr", "roce": "ndr", "omni-path": "ndr",
    "slingshot": "ndr", "efa-100": "efa-3200", "efa-400": "efa-3200", "nvlink1": "nvlink3",
    "nvlink2": "nvlink3", "pcie3-host": "pcie3", "ethernet-1": "ethernet-10",
}  # fmt: skip
"""Technologies without measurements, and the one whose constants stand in."""


def constants(technology: Technology, rows: pd.DataFrame) -> dict[str, object]:
    """What one table of the file holds."""
    system = SYSTEMS[technology.system]
    x = fit(system, rows)
    error = np.median(np.abs(errors(x, system, rows)))
    overhead, bulkier, *levels, _, switch, copies = np.exp(x)
    a_intra, slower_intra, a_inter, slower_inter, b_intra, share_intra, b_inter, share_inter = levels
    intra = technology.level == "intra"
    latency, slower = (a_intra, slower_intra) if intra else (a_inter, slower_inter)
    bandwidth, share = (b_intra, share_intra) if intra else (b_inter, share_inter)
    nominal = BANDWIDTH[system.intra if intra else system.inter]
    names = ", ".join(f"{name} ({part.system.nunique()} system(s))" for name, part in rows.groupby("set"))
    held: dict[str, object] = {
        "low_latency": (latency, bandwidth * share / nominal, overhead),
        "simple": (latency * slower, bandwidth / nominal, overhead * bulkier),
    }
    if intra:
        held["copy_ratio"] = copies * bandwidth / nominal
    if intra and system.in_switch:
        held["in_switch_share"] = switch / nominal
    note = f"; {technology.note}" if technology.note else ""
    held["source"] = f"fitted to {len(rows)} points of {names}, median error {error:.3f}{note}"
    return held


def toml(name: str, held: dict[str, object]) -> str:
    """One table."""
    lines = [f"[{name}]"]
    for key, value in held.items():
        if isinstance(value, tuple):
            latency, share, overhead = value
            value = (
                f"{{ latency_us = {latency * 1e6:.3g}, bandwidth_share = {min(share, 1.0):.3g}, "
                f"call_overhead_us = {overhead * 1e6:.3g} }}"
            )
        else:
            value = f'"{value}"' if isinstance(value, str) else f"{value:.3g}"
        lines.append(f"{key} = {value}")
    return "\n".join([*lines, f"date = {DATE}"])


def write(path: Path, data: Path) -> None:
    """Fit every technology and write the file, whole or not at all."""
    table = pd.concat([measurements(data) for measurements in SETS], ignore_index=True)
    fitted = {
        name: constants(each, table.query(each.rows, engine="python")) for name, each in MEASURED.items()
    }
    for name, model in LIKE.items():
        fitted[name] = {**fitted[model], "source": f"no measurement; as {model}"}
        fitted[name].pop("in_switch_share", None)
    head = "# Constants of collective communication per link technology. Generated; do not edit:\n"
    head += "# python benchmarks/collectives.py --write hardware_db/collectives.toml\n"
    text = "\n\n".join([head, *(toml(name, fitted[name]) for name in sorted(fitted))]) + "\n"
    partial = path.with_suffix(".partial")
    partial.write_text(text, encoding="utf-8")
    partial.replace(path)
