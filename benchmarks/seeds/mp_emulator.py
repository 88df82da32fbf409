"""Model parallelism on a CPU cluster: which layers communicate most, measured by the seed paper's emulator.

    python benchmarks/seeds/mp_emulator.py [--quick] [--json] [--data FOLDER] [--network NAME]

The file holds seconds per layer of Castelló et al. (EuroMPI 2019): `fp_comm` gathers the outputs of a layer,
`cg_comm` sums the gradients of its input over the ranks. Its network and batch are not stated, so what is
compared is the share of every message in all communication of a step. Constants: 64 samples, FP32, one rank
per node, ring algorithms over `--network` of hardware_db (sizes set the shares of convolutions, latency those
of the fully connected layers). AlexNet has 64 and 192 filters in front (its first two gathers take times of
ratio 1.38, as the sizes do) and 1001 classes.

The emulator departs from the scheme of the engine in what it sends, as its times show:

- it sums the input gradient of the first layer too, which nobody needs (left out here);
- before a pooling layer it sends the tensor as the convolution made it, not the pooled one;
- for a fully connected layer it sums as many elements as the layer has outputs, not inputs;
- it sums a tensor in 0.6 of the time in which it gathers one of the same size (VGG-16, layer 2, 8 processes:
  0.46 and 0.79 s), where ring algorithms take twice as long: its gathers are slower by a factor of 3;
- its `dynamic` variant, AlexNet only, was run from 1 to 32 processes (static: even numbers to 16). Its
  compute times are a fraction of the static ones (first layer, 8 processes: 0.59 against 4.65 s) and its
  messages take about twice as long, so the two ran with different resources per process.

The fourth point spoils shares over both kinds of message, so each kind is compared by itself as well.

mp_emulator.relative_communication.median_error      relative error of the share of a message in all of a step
mp_emulator.relative_communication.rank_correlation  Spearman, mean over configurations
mp_emulator.gathers.*                    the same among the forward messages
mp_emulator.sums.*                       the same among the backward messages
mp_emulator.sums_at_emulator_sizes.*     the same with the sizes that the emulator sends
"""

from __future__ import annotations

import sys
from math import prod
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pandas as pd

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from common import parser, report
from jaxscale import collectives, hardware_db, zoo
from jaxscale.engine import exchanged_bytes, tensor_envelopes
from jaxscale.layers import Linear
from jaxscale.lowering import lower
from jaxscale.network import Network
from jaxscale.nouns import Shard

Table = Any
"""A pandas table, of which type checkers know too little."""

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
NETWORKS = {"alexnet": "alexnet-seed", "vgg16": "vgg16"}
CLASSES = 1001
BATCH = 64
CONFIGURATION = ["model", "variant", "procs"]


def engine_bytes(network: Network, ranks: int) -> tuple[np.ndarray, np.ndarray]:
    """[L] B gathered and [L] B summed per layer, by the engine."""
    workload = lower(network, "fp32")
    layers = len(network.weighted)
    shard = Shard(jnp.float32(BATCH), jnp.float32(ranks), jnp.ones(layers))
    outputs, gradients = exchanged_bytes(workload, shard)
    summed = np.zeros(layers)
    np.add.at(summed, np.asarray(workload.edges.consumer), np.asarray(gradients["all_reduce"]))
    return np.asarray(outputs["all_gather"])[:layers], summed


def emulator_bytes(network: Network) -> tuple[np.ndarray, np.ndarray]:
    """The same as the emulator's times suggest."""
    nodes = [network.nodes[i] for i in network.weighted]
    outputs = np.array([prod(node.output_shape) for node in nodes], float)
    before = np.concatenate([[0.0], outputs[:-1]])
    is_linear = np.array([isinstance(node.layer, Linear) for node in nodes])
    return 4 * BATCH * outputs, 4 * BATCH * np.where(is_linear, outputs, before)


def seconds(gathered: np.ndarray, summed: np.ndarray, ranks: int, name: str) -> Table:
    """s per layer of both messages."""
    cluster = hardware_db.cluster("v100", gpus=ranks, network=name)
    envelopes = tensor_envelopes(("all_gather", "all_reduce"), cluster, jnp.float32(ranks), ("ring",))
    each = {
        "fp_comm": ("all_gather", gathered),
        "cg_comm": ("all_reduce", summed),
    }
    return pd.DataFrame(
        {
            column: np.asarray(collectives.time(envelopes[kind], jnp.asarray(sizes)))
            for column, (kind, sizes) in each.items()
        }
    )


def compare(measured: Table, name: str) -> Table:
    """One row per message: share of the communication of its configuration, measured and predicted twice."""
    rows = []
    for (model, variant, ranks), part in measured.groupby(CONFIGURATION):
        network = zoo.build(NETWORKS[model], classes=CLASSES)
        part = part.sort_values("layer").reset_index(drop=True)
        times = {
            "measured": part[["fp_comm", "cg_comm"]],
            "engine": seconds(*engine_bytes(network, ranks), ranks, name),
            "own_sizes": seconds(*emulator_bytes(network), ranks, name),
        }
        shares = {}
        for source, table in times.items():
            stacked = (
                table.assign(layer=part.layer)
                .melt("layer", var_name="message")
                .set_index(["layer", "message"])
            )
            stacked = stacked.drop((1, "cg_comm")).value
            shares[source] = stacked / stacked.sum()
        whole = pd.DataFrame(shares).reset_index()
        rows.append(whole.assign(model=model, variant=variant, procs=ranks))
    return pd.concat(rows, ignore_index=True)


def agreement(shares: Table, predicted: str) -> tuple[float, float]:
    """Median relative error of the shares among the rows given, and mean rank correlation."""
    errors, ranks = [], []
    for _, part in shares.groupby(CONFIGURATION):
        mine, its = part[predicted] / part[predicted].sum(), part.measured / part.measured.sum()
        errors.append((mine / its - 1).abs())
        ranks.append(mine.corr(its, method="spearman"))
    return float(np.median(np.concatenate(errors))), float(np.mean(ranks))


def figures(shares: Table) -> dict[str, float]:
    gathers, sums = shares[shares.message == "fp_comm"], shares[shares.message == "cg_comm"]
    compared = {
        "relative_communication": (shares, "engine"),
        "gathers": (gathers, "engine"),
        "sums": (sums, "engine"),
        "sums_at_emulator_sizes": (sums, "own_sizes"),
    }
    found = {}
    for name, (rows, predicted) in compared.items():
        error, correlation = agreement(rows, predicted)
        found[f"mp_emulator.{name}.median_error"] = error
        found[f"mp_emulator.{name}.rank_correlation"] = correlation
    return found


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the measurements")
    options.add_argument("--network", default="edr", help="network of hardware_db between the ranks")
    args = options.parse_args()
    path = args.data / "seeds" / "mp_emulator_castello.csv"
    if not path.is_file():
        raise SystemExit(f"mp_emulator: no measurements at {path}; name their folder with --data")
    measured: Table = pd.read_csv(path)
    shares = compare(measured[measured.procs > 1], args.network)
    if not args.quick:
        where = ["model", "variant", "message", "layer"]
        table: Table = shares.groupby(where)[["measured", "engine", "own_sizes"]].mean()
        print("share of all communication, mean over the numbers of processes", file=sys.stderr)
        print(table.round(4).to_string(), file=sys.stderr)
    report("mp_emulator", figures(shares), args)


if __name__ == "__main__":
    main()
