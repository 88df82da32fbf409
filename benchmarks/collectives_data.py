"""Measured collectives as one table: a row per system, kind, algorithm, group and size.

Columns are COLUMNS, `seconds` (median of repetitions) and `fit`: whether the row belongs to the small
configurations that constants are fitted on, or to the larger ones that are predicted.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd

COLUMNS = ["set", "system", "kind", "algorithm", "ranks_per_node", "nodes", "sharing", "bytes", "itemsize"]
"""What names a measurement: `sharing` is how many ranks of the group share one port of the node."""

KINDS = {
    "allreduce": "all_reduce", "all_reduce": "all_reduce", "allgather": "all_gather",
    "all_gather": "all_gather", "reducescatter": "reduce_scatter", "reduce_scatter": "reduce_scatter",
    "alltoall": "all_to_all", "sendrecv": "send_recv", "send_recv": "send_recv",
}  # fmt: skip


def _table(frame: pd.DataFrame, name: str, **columns) -> pd.DataFrame:
    defaults = {"algorithm": "", "sharing": 1.0, "itemsize": 4.0, "nodes": 1.0}
    frame = frame.assign(**{"set": name, **defaults, **columns})
    frame["kind"] = frame["kind"].str.lower().map(KINDS)
    frame = frame.dropna(subset=["kind", "seconds", "bytes"])
    frame = frame.loc[(frame.seconds > 0) & (frame.bytes > 0)]
    return frame.groupby([*COLUMNS, "fit"], as_index=False).seconds.median()


def apex_plus(data: Path) -> pd.DataFrame:
    """V100-PCIe, four per node, on Ethernet with one port per node: nodes 1 and 2, then 4."""
    raw = pd.read_csv(data / "collectives/apex_plus.csv.gz").query("gpu == 'V100-PCIE-16GB'")
    return _table(
        raw, "apex_plus", system="V100-PCIe", kind=raw.coll, ranks_per_node=raw.num_gpus_per_node,
        nodes=raw.num_nodes, sharing=raw.num_gpus_per_node, bytes=raw["size(kb)"] * 1024.0, itemsize=2.0,
        seconds=raw["time(us)"] * 1e-6, fit=raw.num_nodes <= 2,
    )  # fmt: skip


def hf_collective_bandwidth_h100(data: Path) -> pd.DataFrame:
    """Bus bandwidth at 256 MB on nodes of eight H100 with EFA: nodes 1 and 2, then 4 to 64."""
    raw = pd.read_csv(data / "runs/hf_collective_bandwidth_h100.csv")
    size = 256.0 * 2**20
    passes = np.where(raw.collective == "AllReduce", 2, 1) * (raw.n_gpus - 1) / raw.n_gpus
    return _table(
        raw, "hf_collective_bandwidth_h100", system="H100-EFA", kind=raw.collective, ranks_per_node=8.0,
        nodes=raw.n_nodes, bytes=size, seconds=passes * size / (raw.bandwidth_gbs * 1e9),
        fit=raw.n_nodes <= 2,
    )  # fmt: skip


def deepbench(data: Path) -> pd.DataFrame:
    """All-reduce of 2016 and 2017, one port per node: the fewest chips, in a node and across, then more."""
    raw = pd.read_csv(data / "collectives/deepbench_allreduce.csv.gz")
    knl = raw.gpu == "IA_KNL7250"  # one chip per node, however the column reads
    raw["nodes"] = np.where(knl, raw.chips, raw.nodes)
    raw["system"] = raw.gpu + " " + raw.algo
    fewest = raw.groupby(["system", raw.nodes > 1]).chips.transform("min")
    return _table(
        raw, "deepbench", kind="all_reduce", ranks_per_node=raw.chips / raw.nodes, bytes=raw.n_floats * 4.0,
        seconds=raw.mean_ms * 1e-3, fit=raw.chips == fewest,
        algorithm=np.where(raw.algo.str.contains("Ring"), "ring", ""), nodes=raw.nodes,
        sharing=raw.chips / raw.nodes,
    )  # fmt: skip


def h100_cluster(data: Path) -> pd.DataFrame:
    """H100, a 400 Gb/s port per GPU: in node and pairs of nodes, then 10 nodes of one GPU each."""
    raw = pd.read_csv(data / "collectives/h100_cluster.csv.gz").query("cluster == 'example-cluster01'")
    return _table(
        raw, "h100_cluster", system="H100-NDR", kind=raw.coll, ranks_per_node=raw.nranks / raw.nnodes,
        nodes=raw.nnodes, bytes=raw.size_bytes * 1.0, itemsize=8.0, seconds=raw.time_us_oop * 1e-6,
        fit=raw.nnodes <= 2,
    )  # fmt: skip


def pico(data: Path) -> pd.DataFrame:
    """MPI on host memory, one rank per node, the algorithm forced: ring on few nodes, then more; others."""
    raw = pd.read_csv(data / "collectives/pico_mpi.csv.gz")
    pattern = "^(ring|recursive_doubling|recursive_halving|rabenseifner)_o"
    raw["algorithm"] = raw.algo.str.extract(pattern, expand=False)
    few = raw.system.map({"leonardo": 4, "lumi": 16, "mare_nostrum": 32})
    raw["fit"] = (raw.algorithm == "ring") & (raw.nnodes <= few)
    # Labels that end in _mpich do not hold MPICH to one algorithm; CUDA-aware runs move device memory.
    usable = (raw.tasks_per_node == 1) & (raw.gpu_awareness == "no") & raw.algorithm.notna()
    usable &= raw.collective_type.isin(["ALLREDUCE", "ALLGATHER", "REDUCE_SCATTER"]) & (
        raw.fit | (raw.nnodes > few)
    )
    raw = raw.loc[usable & (raw.bytes >= 4 * raw.nnodes)]  # at least one element per rank
    # A kind without a fitted row would ask for what its rows alone show: how fast a host sums.
    fitted = set(zip(raw.system[raw.fit], raw.collective_type[raw.fit], strict=True))
    raw = raw.loc[[pair in fitted for pair in zip(raw.system, raw.collective_type, strict=True)]]
    return _table(
        raw, "pico", kind=raw.collective_type, ranks_per_node=1.0, nodes=raw.nnodes, algorithm=raw.algorithm,
        seconds=raw.median_ns * 1e-9, fit=raw.fit,
    )  # fmt: skip


def aiconfigurator(data: Path) -> pd.DataFrame:
    """NCCL and oneCCL in one node: 2 and 4 GPUs, then 8."""
    raw = pd.read_csv(data / "collectives/aiconfigurator_nccl.csv.gz")
    itemsize = raw.nccl_dtype.map({"half": 2.0, "int8": 1.0})
    # oneCCL counts what one rank contributes to an all-gather, NCCL's rows count the whole.
    contributed = (raw.system == "b60") & (raw.op_name == "all_gather")
    size = raw.message_size * itemsize * np.where(contributed, raw.num_gpus, 1)
    return _table(
        raw, "aiconfigurator", kind=raw.op_name, ranks_per_node=raw.num_gpus, bytes=size,
        itemsize=itemsize, seconds=raw.latency * 1e-3, fit=raw.num_gpus <= 4,
    )  # fmt: skip


SETS = (apex_plus, hf_collective_bandwidth_h100, deepbench, h100_cluster, pico, aiconfigurator)
