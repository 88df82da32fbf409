"""Profiles of whole networks, layer by layer (Aceso, Sailor): the layers that are one kernel.

Both give tensors in MiB instead of sizes, so sizes follow from weights and activations. Layers split over
several GPUs contain communication and are left out, as are those that are several kernels.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxscale.measurement_format import Table
from jaxscale.measurements import median_of_repeats
from kernels_tidy import MEBIBYTE, drop, tidy

ENCODED, DECODED = 2048, 512
"""Tokens of a sample: in GPT, OPT and the encoder of T5; in the decoder of T5."""

SAILOR = {
    "A100-40": "a100-sxm4-40gb",
    "GH-96": "gh200-96gb",
    "RTX-3090": "rtx-3090",
    "Titan-RTX": "titan-rtx",
    "V100-16": "v100-sxm2-16gb",
}
TF32 = ("A100-40", "GH-96", "RTX-3090")
"""GPUs whose FP32 products ran in TF32: on A100 and GH200 they exceed the FP32 peak."""

FLOPS = {"gelu": 12, "dropout": 20}
"""Operations per element: the tanh of GELU; a word of random bits (10 rounds of Philox give four)."""

ACCESSES = {
    "layernorm": ("normalization", (1, 1), (2, 1)),
    "gelu": ("elementwise", (1, 1), (2, 1)),
    "dropout": ("elementwise", (1, 1), (1, 1)),
    "softmax": ("softmax", (1, 1), (2, 1)),
    "causal_softmax": ("softmax", (0.5, 1), (1, 1)),
}
"""Layer -> family, (reads, writes) per element forward, backward; dropout moves a mask of one byte besides,
and Megatron's causal softmax reads the lower triangle only."""


def _numbered(t: Table) -> Table:
    """Add what one row is: operator, queries, keys seen, causal, rows of the products."""
    parts = t.op_name.str.extract(r"^(enc|dec)-(.*?)(?:-(\d))?$")
    gemm = t.op_name.str.contains("GEMM")
    operator = parts[1].where(~gemm, "GEMM").fillna(t.op_name)
    decodes, crosses = parts[0] == "dec", (parts[0] == "dec") & (parts[2] == "2") & ~gemm
    queries = np.where(decodes, DECODED, ENCODED)
    seen = np.where(decodes & ~crosses, DECODED, ENCODED)
    causal = ~(t.model.str.startswith("t5") & (~decodes | crosses))
    return t.assign(
        operator=operator, queries=queries, seen=seen, causal=causal, crosses=crosses, decodes=decodes,
        elements=t.activations * MEBIBYTE / t.itemsize,
        forward=t["forward-compute"] / 1e6, backward=t["backward-compute"] / 1e6,
    )  # fmt: skip


def _linear(source: str, t: Table, second: str) -> list[Table]:
    """Forward, and `second`: the gradient of the data alone, or all three products as training.

    The bias of these layers is added by the operator that follows.
    """
    rows = t.mbs * t.queries
    n = (t.elements / rows).round()
    k = (t.weights * MEBIBYTE / t.itemsize / n).round()
    times = {"forward": t.forward, second: t.backward + (t.forward if second == "training" else 0)}
    return [
        tidy(source, "matmul", direction, t.matrix, t.device, m=rows, n=n, k=k, seconds=seconds)
        for direction, seconds in times.items()
    ]


def _attention_products(source: str, t: Table) -> list[Table]:
    """Scores (queries x keys) and their product with the values; backward is both gradients."""
    by = ["model", "device", "precision", "mbs", "algo", "decodes", "crosses"]
    scores = t[t.operator == "attention-score"]
    heads = (scores.elements / (scores.mbs * scores.queries * scores.seen)).round()
    scores = scores.assign(heads=heads)
    context = t[t.operator == "attention-context"]
    pairs = scores.merge(context[[*by, "elements", "forward", "backward"]], on=by, suffixes=("", "_context"))
    width = (pairs.elements_context / (pairs.mbs * pairs.queries * pairs.heads)).round()
    batch = pairs.mbs * pairs.heads
    return [
        tidy(
            source, "batched_matmul", direction, pairs.matrix, pairs.device, batch=batch, m=pairs.queries,
            n=n, k=k, seconds=pairs[direction + suffix],
        )
        for n, k, suffix in ((pairs.seen, width, ""), (width, pairs.seen, "_context"))
        for direction in ("forward", "backward")
    ]  # fmt: skip


def _memory_bound(source: str, t: Table, kind: str) -> list[Table]:
    family, *accesses = ACCESSES[kind]
    if kind == "dropout":
        # Activations are the result and the mask.
        elements = t.elements * t.itemsize / (t.itemsize + 1)
        mask = 1 / t.itemsize
        accesses = [(1, 1 + mask), (1 + mask, 1)]
    else:
        elements = t.elements
    rows = t.mbs * t.queries
    if kind == "layernorm":
        # Activations are the result and two FP32 statistics per row.
        elements = elements - 8 * rows / t.itemsize
    tables = []
    for direction, (reads, writes) in zip(("forward", "backward"), accesses, strict=True):
        sizes: dict[str, Any] = {
            "normalization": {
                "elements": elements,
                "channels": (elements / rows).round(),
                "across_samples": 0,
            },
            "elementwise": {"elements": elements, "flops": FLOPS.get(kind, 1)},
            "softmax": {"rows": (elements / t.seen).round(), "columns": t.seen},
        }[family]
        table = tidy(
            source, family, direction, t.precision, t.device, **sizes, reads=reads, writes=writes,
            seconds=t[direction],
        )  # fmt: skip
        tables.append(table)
    return tables


def _transformer(source: str, raw: Table, second: str) -> Table:
    """All layers of transformers that are one kernel; in FP32 Sailor's softmax was several."""
    t = _numbered(raw)
    softmax = (t.operator == "attention-softmax") & (t.precision == "fp16")
    chosen = {
        "layernorm": t.operator.isin(("1st-layernorm", "2nd-layernorm", "3rd-layernorm")),
        "gelu": t.operator == "MLP-gelu",
        "dropout": t.operator == "attention-dropout",
        "softmax": softmax & ~t.causal,
        "causal_softmax": softmax & t.causal,
    }
    linear = t.operator.isin(("attention-dense", "GEMM"))
    products = t.operator.isin(("attention-score", "attention-context"))
    drop(source, "transformer layers of several kernels", t, ~(linear | products | sum(chosen.values()) > 0))
    tables = [
        *_linear(source, t[linear], second),
        *_attention_products(source, t),
        *(table for kind, rows in chosen.items() for table in _memory_bound(source, t[rows], kind)),
    ]
    return pd.concat(tables, ignore_index=True)


def sailor(folder: Path) -> Table:
    """GPT-Neo and OPT. The backward time of a linear layer is that of one product on every GPU (0.9 times
    its forward time), where attention's is two: the gradient of the weights is not in it."""
    t: Table = pd.read_csv(folder / "sailor" / "ops.csv.gz")
    t = drop("sailor", "split over several GPUs", t, t.tp > 1)
    t = drop("sailor", "RTX 2080 that exceeds the peak of that card by a third", t, t.gpu == "RTX-2080")
    matrix = np.where((t.dtype == "fp32") & t.gpu.isin(TF32), "tf32", t.dtype)
    itemsize = np.where(t.dtype == "fp32", 4, 2)
    t = t.assign(device=t.gpu.map(SAILOR), precision=t.dtype, matrix=matrix, itemsize=itemsize)
    return median_of_repeats(_transformer("sailor", t, "backward_data"))


def _resnet(raw: Table) -> Table:
    """Wide ResNets in FP32: stage i has twice the channels of the stage before at half its resolution.

    The weights of the first two convolutions of the first bottleneck give its width and how much wider
    its middle is; it ends four times as wide as it begins.
    """
    parts = raw.op_name.str.extract(r"^block-(\d)-(\d+)-(conv|bn|relu|downsample)(\d?)$")
    stem = parts[0].isna()
    stage, block = parts[0].astype(float).fillna(0), parts[1].astype(float).fillna(0)
    kind = parts[2].fillna(raw.op_name.str.rstrip("1"))
    first, second = (
        raw[raw.op_name == f"block-0-0-conv{i}"].groupby("model").weights.median() * MEBIBYTE / 4
        for i in (1, 2)
    )
    width = np.sqrt(first).round()
    base = raw.model.map(width) * 2**stage
    middle = base * raw.model.map((second / 9 / width**2).round())
    place = parts[3].where(kind != "relu", "3")
    out = base.where(place != "2", middle).where(place != "3", base * 4).where(~stem, base)
    opens = (stage > 0) & (block == 0)
    size = 56 / 2**stage * np.where(opens & (place == "1"), 2, 1)
    size = size.where(~stem, 112.0)
    entry = np.where(block > 0, base * 4, np.where(stage > 0, base * 2, base))
    in_channels = np.where(stem, 3.0, np.where(place == "1", entry, np.where(place == "2", base, middle)))
    strided = opens & (place == "2")
    kernel = np.where(stem, 7, np.where(place == "2", 3, 1))
    return raw.assign(
        kind=kind, stem=stem, out=out, size=size, source_size=size * np.where(stem | strided, 2, 1),
        in_channels=in_channels, kernel=kernel, stride=np.where(stem | strided, 2, 1),
        forward=raw["forward-compute"] / 1e6, backward=raw["backward-compute"] / 1e6,
    )  # fmt: skip


def _resnet_tables(t: Table) -> list[Table]:
    tables = []
    conv = t[t.kind == "conv"]
    implied = conv.kernel**2 * conv.in_channels * conv.out * 4 / MEBIBYTE
    conv = drop("aceso", "convolutions with other weights", conv, (implied / conv.weights - 1).abs() > 0.01)
    for direction, c in (("forward", conv), ("training", conv[~conv.stem])):
        seconds = c.forward + (c.backward if direction == "training" else 0)
        table = tidy(
            "aceso", "convolution", direction, "fp32", c.device, batch=c.mbs, in_channels=c.in_channels,
            in_height=c.source_size, in_width=c.source_size, out_channels=c.out, out_height=c["size"],
            out_width=c["size"], kernel_height=c.kernel, kernel_width=c.kernel, stride=c.stride, dilation=1,
            groups=1, seconds=seconds,
        )  # fmt: skip
        tables.append(table)
    for kind, family, accesses in (
        ("bn", "normalization", {"forward": (2, 1), "backward": (4, 1)}),
        ("relu", "elementwise", {"forward": (1, 1), "backward": (2, 1)}),
    ):
        rows = t[t.kind == kind]
        elements = rows.mbs * rows.out * rows["size"] ** 2
        other = (elements * 4 / MEBIBYTE / rows.activations - 1).abs() > 0.05
        rows, elements = drop("aceso", f"{kind} with other activations", rows, other), elements[~other]
        for direction, (reads, writes) in accesses.items():
            sizes = {"channels": rows.out, "across_samples": 1} if kind == "bn" else {"flops": 1}
            table = tidy(
                "aceso", family, direction, "fp32", rows.device, elements=elements, reads=reads,
                writes=writes, **sizes, seconds=rows[direction],
            )  # fmt: skip
            tables.append(table)
    pool = t[t.kind == "avgpool"]
    channels = (pool.activations * MEBIBYTE / 4 / pool.mbs).round()
    tables += [
        tidy(
            "aceso", "pooling", direction, "fp32", pool.device, batch=pool.mbs, channels=channels,
            in_size=49, out_size=1, window=49, passes=1, seconds=pool[direction],
        )
        for direction in ("forward", "backward")
    ]  # fmt: skip
    return tables


def aceso(folder: Path) -> Table:
    """GPT and T5 in FP16, Wide-ResNet in FP32; V100 with 32 GB, as the models need more than 16."""
    raw: Table = pd.read_csv(folder / "aceso" / "ops_v100.csv.gz").assign(device="v100-sxm2-32gb")
    raw = drop("aceso", "split over several GPUs", raw, raw.tp > 1)
    convolutional = raw.model.str.startswith("resnet")
    words = raw[~convolutional].assign(precision="fp16", matrix="fp16", itemsize=2)
    images = _resnet(raw[convolutional].reset_index(drop=True))
    used = images.kind.isin(("conv", "bn", "relu", "avgpool"))
    images = drop("aceso", "ResNet layers of several kernels", images, ~used)
    tables = [_transformer("aceso", words, "training"), *_resnet_tables(images)]
    return median_of_repeats(pd.concat(tables, ignore_index=True))
