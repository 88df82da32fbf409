"""What a hardware file may say: one model per kind of file.

Conventions of every file:

- A key ends in its unit. Units are decimal (1 GB = 1e9 B, 1 MB = 1e6 B); only the loader converts to SI.
- Matrix peaks are dense (no structured sparsity), at the boost clock, and with FP32 accumulation where a
  vendor gives several rates. A format that the device lacks is left out, and so is an FP16 rate below the
  FP32 rate (consumer Pascal), because libraries then compute in FP32.
- `memory_capacity_gb` is the total that the driver reports to programs (what `nvidia-smi` or
  `cudaGetDeviceProperties` show), in decimal GB: a "16 GB" V100 reports 16160 MiB, so 16.95.
  Where no report is at hand it is the nominal size read as binary (32 GB = 32 GiB = 34.36).
- Bandwidths of links are per GPU and one direction; a network port of 100 Gb/s has 12.5 GB/s.
- `source` and `date` (when the figures were last checked) hold for the whole file; `sources` names a
  different origin, or how a figure was derived or estimated, for single keys.
- `base` names another entry of the same kind whose keys are inherited. A key that is written replaces the
  whole inherited value; `source`, `date` and `aliases` are never inherited.
"""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from typing import Annotated, Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, create_model, field_validator

Positive = Annotated[float, Field(ge=1e-9, le=1e15)]
"""Bounded so that the value in SI units is neither zero nor infinite in float32."""
NotNegative = Annotated[float, Field(ge=0, le=1e15)]
Count = Annotated[int, Field(ge=1, le=10**9)]
Share = Annotated[float, Field(gt=0, le=1)]
Text = Annotated[str, Field(min_length=1)]


NvidiaGeneration = Literal[
    "kepler", "maxwell", "pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"
]
AmdGeneration = Literal["gcn5", "cdna1", "cdna2", "cdna3", "rdna2"]
OtherGeneration = Literal["xe2", "tpu", "other"]

GENERATIONS: dict[str, tuple[str, ...]] = {
    "nvidia": get_args(NvidiaGeneration),
    "amd": get_args(AmdGeneration),
    "others": get_args(OtherGeneration),
}
"""Generations of devices by vendor, the oldest first."""


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class Price(_Table):
    """What one device (device files) or one node (node files) costs."""

    usd: Positive
    kind: Literal["purchase", "per_hour"]
    date: datetime.date
    source: Text


class Link(_Table):
    """How the GPUs of one node are connected."""

    link: Text
    bandwidth_gb_per_s: Positive
    latency_us: NotNegative
    in_switch_bandwidth_gb_per_s: Positive | None = None


class Entry(_Table):
    """The keys that every hardware file has."""

    source: Text
    date: datetime.date
    aliases: list[Text] = []
    base: Text | None = None
    sources: dict[str, Text] = {}

    @field_validator("sources")
    @classmethod
    def _names_keys(cls, sources: dict[str, str]) -> dict[str, str]:
        for key in sources:
            if key.split(".")[0] not in cls.model_fields:
                raise ValueError(f"names {key!r}, allowed are the keys of the file")
        return sources


class DeviceEntry(Entry):
    """One accelerator as software sees it (one die of a K80, one GCD of an MI250X)."""

    vendor: Literal["nvidia", "amd", "intel", "google", "other"]
    generation: Literal[NvidiaGeneration, AmdGeneration, OtherGeneration]
    peak_fp32_tflop_per_s: Positive
    peak_tf32_tflop_per_s: Positive | None = None
    peak_fp16_tflop_per_s: Positive | None = None
    peak_bf16_tflop_per_s: Positive | None = None
    peak_fp8_tflop_per_s: Positive | None = None
    vector_fp32_tflop_per_s: Positive
    vector_fp16_tflop_per_s: Positive | None = None
    memory_bandwidth_gb_per_s: Positive
    memory_capacity_gb: Positive
    cache_capacity_mb: Positive
    multiprocessors: Count
    clock_ghz: Positive
    launch_overhead_us: NotNegative
    host_bandwidth_gb_per_s: Positive
    power_w: Positive | None = None
    die_area_mm2: Positive | None = None
    process_nm: Positive | None = None
    price: list[Price] = []


class NodeEntry(Entry):
    """A box of equal devices, or the devices that share one link domain (GB200 NVL72)."""

    device: Text
    gpus: Count
    intra_node: Link
    host_bandwidth_gb_per_s: Positive
    network: Text | None = None
    nics: Count = 1
    cpu: Text | None = None
    host_memory_gb: Positive | None = None
    storage_capacity_gb: Positive | None = None
    storage_bandwidth_gb_per_s: Positive | None = None
    power_w: Positive | None = None
    price: list[Price] = []


class NetworkEntry(Entry):
    """One port of a network between nodes."""

    link: Text
    bandwidth_gb_per_s: Positive
    latency_us: NotNegative


class ClusterEntry(Entry):
    """A number of equal nodes, with a network of its own where it is not the one of the node."""

    node: Text
    nodes: Count
    network: Text | None = None
    nics: Count | None = None
    file_system_capacity_gb: Positive | None = None
    file_system_bandwidth_gb_per_s: Positive | None = None


class ProtocolConstants(_Table):
    """One way of moving data over one link technology."""

    latency_us: NotNegative
    bandwidth_share: Share
    call_overhead_us: NotNegative


class CollectiveConstants(_Table):
    """Constants of one link technology, fitted to measured collectives (one table of collectives.toml)."""

    low_latency: ProtocolConstants
    simple: ProtocolConstants
    in_switch_share: Share | None = None
    copy_ratio: Positive | None = None
    source: Text
    date: datetime.date


ENTRIES: dict[str, type[Entry]] = {
    "device": DeviceEntry,
    "node": NodeEntry,
    "network": NetworkEntry,
    "cluster": ClusterEntry,
}


class ShareByPrecision(_Table):
    """Share of the roofline where it depends on the arithmetic format."""

    fp32: Positive
    tf32: Positive
    fp16: Positive
    bf16: Positive
    fp8: Positive


def utilization_model(families: Iterable[str]) -> type[BaseModel]:
    """Return the model of one table of utilization.toml: a share of the roofline per kernel family.

    One number holds for every format, a table gives one each. Shares above 1 occur: the roofline counts the
    operations of a direct convolution, and Winograd's and the Fourier transform need fewer.
    """
    fields: dict[str, Any] = dict.fromkeys(families, (Positive | ShareByPrecision, 1.0))
    return create_model(
        "Utilization",
        __base__=_Table,
        source=(Text, ...),
        date=(datetime.date, ...),
        sources=(dict[str, Text], {}),
        **fields,
    )
