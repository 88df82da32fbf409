"""Accuracy of whole training steps of convolutional networks, by the roofline alone.

    python benchmarks/accuracy_cnn.py [--quick] [--json] [--data FOLDER]

Kernels take the roofline over one utilization per family, generation and format, fitted to single kernels
(`utilization.py`), links the constants fitted to single collectives (`collectives.py`). Nothing is fitted to
the tables scored here. `--quick` prints the same figures without the tables.

tf_cnn: TensorFlow's published benchmarks of May 2017 on synthetic images, FP32, plain SGD (the table that
    comes with them), cuDNN 5.1. Parameters live in host memory (parameter_server) or on every GPU (NCCL); a
    dataflow runtime sends every gradient once it exists, so one message per layer, overlapped.
paradl: data-parallel rows of ParaDL (Kahira et al., HPDC 2021) on ABCI, Chainer with FP32 and Adam on real
    images of 226 pixels. Its `pure_nccl` communicator packs all gradients and reduces them once the backward
    pass has ended (ChainerMN documentation, overview), so one message, blocking. Repeated runs are averaged.

The errors are measured, their causes are inferred. Kernels, by one number per family: 3x3 convolutions at
large batch (VGG, AlexNet) likely run as Winograd's algorithm, above the direct roofline, strided and 1x1 ones
below it; the only Kepler kernels at hand are layers called in TensorFlow's slower layout. Links: a server
likely gives out parameters when a step starts, before anything can hide it; the two dies of a K80 likely
share one power budget; the NCCL of 2017 likely drove its ring from one multiprocessor. ParaDL's AlexNet
likely waits for its input pipeline.

tf_cnn.synthetic.mape           mean absolute relative error of the step time
tf_cnn.one_gpu.mape             the same where n_gpus is 1: the error of the kernels
tf_cnn.synthetic.scaling_error  mean absolute error of t(1 GPU) / t(n GPUs) at equal batch per GPU, n > 1
    ... under tf_cnn.parameter_server and tf_cnn.replicated for the rows of either way to update
tf_cnn.right_on_one_gpu.scaling_error  the same with kernels slowed or sped up to the measured time of one
    GPU, so that what remains is the error of communication
paradl_<network>.all.mape       mean absolute relative error of the step time
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path
from typing import Any

import jax
import pandas as pd

from common import parser, report
from jaxscale import hardware_db, zoo
from jaxscale.engine import GRADIENT_ALGORITHMS, predict
from jaxscale.kernels import KernelModel
from jaxscale.kernels.weights import kernel_model
from jaxscale.lowering import lower
from jaxscale.network import Network
from jaxscale.nouns import Workload
from jaxscale.plans import PlanSpec

Table = Any
"""A pandas table, of which type checkers know too little."""

DATA = Path(__file__).resolve().parents[2] / "shared" / "data"

TF_NETWORKS = {
    "AlexNet": "alexnet-seed",
    "VGG16": "vgg16",
    "ResNet-50": "resnet50",
    "ResNet-152": "resnet152",
    "InceptionV3": "inception-v3",
}
TF_NODES = {"DGX-1 8xP100": "dgx-1-p100", "GCE n1-standard-32 8xK80": "gcp-n1-standard-32-k80"}
TF_ALGORITHMS = {"parameter_server/cpu": ("parameter_server",), "replicated/NCCL": GRADIENT_ALGORITHMS}

SAME = ["model", "hardware", "batch_per_gpu"]
"""What rows with different numbers of GPUs have in common."""

PARADL_NETWORKS = {"alexnet": "alexnet", "resnet": "resnet50", "vgg": "vgg16"}
PARADL_IMAGE = {"alexnet": 227, "resnet": 226, "vgg": 226}
IMAGENET = 1281167
"""Training images of an epoch."""

compiled = jax.jit(predict, static_argnames=("algorithms",))


@cache
def network(name: str, image_size: int | None, classes: int) -> Network:
    return zoo.build(name, image_size, classes)


@cache
def workload(
    name: str, image_size: int | None, classes: int, optimizer: str, messages: int | None
) -> Workload:
    return lower(network(name, image_size, classes), "fp32", optimizer, messages)


def tf_cnn(data: Path, kernel_model: KernelModel) -> Table:
    """Synthetic rows with `predicted` s."""
    table: Table = pd.read_csv(data / "runs" / "tf_cnn_benchmarks_2017.csv")
    table = table[table.data == "synthetic"].rename(columns={"step_time_s": "measured"})
    table = table.reset_index(drop=True)
    return with_errors(table.assign(predicted=table.apply(tf_step, axis=1, args=(kernel_model,))))


def tf_step(row: Any, kernel_model: KernelModel, slowness: float = 1.0) -> float:
    """s of one row; kernels take `slowness` times as long as predicted."""
    of = (TF_NETWORKS[row.model], None, 1001)
    cluster = hardware_db.cluster(TF_NODES[row.hardware], gpus=row.n_gpus)
    rates = ("peak_flops", "vector_flops", "memory_bandwidth", "clock")
    device = cluster.device._replace(
        launch_overhead=cluster.device.launch_overhead * slowness,
        **{name: getattr(cluster.device, name) / slowness for name in rates},
    )
    plan = PlanSpec(row.batch_per_gpu * row.n_gpus, row.batch_per_gpu, dp=row.n_gpus, overlap=True)
    tables = workload(*of, optimizer="sgd", messages=None)
    algorithms = TF_ALGORITHMS[row.variable_update]
    return float(
        compiled(
            tables,
            cluster._replace(device=device),
            plan.lower(network(*of)),
            kernel_model,
            algorithms=algorithms,
        ).step_time
    )


def right_on_one_gpu(table: Table, kernel_model: KernelModel) -> Table:
    """The same rows with kernels slowed or sped up so that one GPU takes the measured time."""
    single = table[table.n_gpus == 1].set_index(SAME)
    slowness = single.measured / single.predicted
    predicted = [tf_step(row, kernel_model, slowness[tuple(row[SAME])]) for _, row in table.iterrows()]
    return with_errors(table.assign(predicted=predicted))


def paradl(data: Path, kernel_model: KernelModel) -> Table:
    """Data-parallel rows, one per network and number of GPUs, with `predicted` s."""
    table: Table = pd.read_csv(data / "seeds" / "paradl_abci_v100.csv")
    table = table[table.strategy == "data"]
    table = table.assign(
        measured=table.ms_per_iter / 1e3,
        batch_per_gpu=IMAGENET * table.epochs / table.iterations / table.gpus,
    )
    table = table.groupby(["model", "gpus"], as_index=False)[["measured", "batch_per_gpu"]].mean()

    def step(row: Any) -> float:
        of = (PARADL_NETWORKS[row.model], PARADL_IMAGE[row.model], 1000)
        batch = round(row.batch_per_gpu)
        plan = PlanSpec(batch * row.gpus, batch, dp=row.gpus, overlap=False)
        cluster = hardware_db.cluster("abci", gpus=row.gpus)
        loaded = workload(*of, optimizer="adam", messages=1)
        return float(compiled(loaded, cluster, plan.lower(network(*of)), kernel_model).step_time)

    return with_errors(table.assign(predicted=table.apply(step, axis=1)))


def with_errors(table: Table) -> Table:
    return table.assign(error=table.predicted / table.measured - 1)


def scaling(table: Table) -> Table:
    """Rows with several GPUs, with the measured and predicted scaling efficiency."""
    single = table.loc[table.n_gpus == 1, [*SAME, "measured", "predicted"]]
    several = table[table.n_gpus > 1].merge(single, on=SAME, suffixes=("", "_single"))
    efficiency = several.measured_single / several.measured
    predicted_efficiency = several.predicted_single / several.predicted
    return several.assign(
        efficiency=efficiency,
        predicted_efficiency=predicted_efficiency,
        scaling_error=(predicted_efficiency - efficiency).abs(),
    )


def print_tables(steps: Table, scaled: Table, rescaled: Table, runs: Table) -> None:
    """Every row, and the errors by network and GPU, on stderr."""
    row = ["gpu", "model", "batch_per_gpu", "n_gpus"]
    show("step time, s", steps.sort_values(row), [*row, "variable_update", "measured", "predicted", "error"])
    scaled = scaled.assign(right_on_one_gpu=rescaled.predicted_efficiency)
    efficiencies = ["efficiency", "predicted_efficiency", "right_on_one_gpu"]
    show("scaling efficiency", scaled.sort_values(row), [*row, *efficiencies])
    by = ["gpu", "model"]
    summary = pd.DataFrame(
        {
            "mape": steps.error.abs().groupby([steps.gpu, steps.model]).mean(),
            "one_gpu": steps[steps.n_gpus == 1].groupby(by).error.mean(),
            "scaling_error": scaled.groupby(by).scaling_error.mean(),
        }
    )
    show("absolute error, signed error on one GPU, scaling error", summary.reset_index(), [*by, *summary])
    show("ParaDL, s", runs, ["model", "gpus", "batch_per_gpu", "measured", "predicted", "error"])


def show(title: str, table: Table, columns: list[str]) -> None:
    print(f"{title}\n{table[columns].round(4).to_string(index=False)}\n", file=sys.stderr)


def main() -> None:
    options = parser(__doc__)
    options.add_argument("--data", type=Path, default=DATA, help="folder of the measurements")
    options.add_argument("--kernels", default="learned", help="learned, roofline, or a file of weights")
    args = options.parse_args()
    if not (args.data / "runs").is_dir():
        raise SystemExit(f"accuracy_cnn: no measurements in {args.data}; name their folder with --data")
    model = kernel_model(args.kernels)
    steps, runs = tf_cnn(args.data, model), paradl(args.data, model)
    scaled, rescaled = scaling(steps), scaling(right_on_one_gpu(steps, model))
    if not args.quick:
        print_tables(steps, scaled, rescaled, runs)
    figures = {
        "tf_cnn.synthetic.mape": steps.error.abs().mean(),
        "tf_cnn.one_gpu.mape": steps.error[steps.n_gpus == 1].abs().mean(),
        "tf_cnn.synthetic.scaling_error": scaled.scaling_error.mean(),
        "tf_cnn.right_on_one_gpu.scaling_error": rescaled.scaling_error.mean(),
    }
    for algorithm, rows in scaled.groupby("variable_update"):
        figures[f"tf_cnn.{str(algorithm).split('/')[0]}.scaling_error"] = rows.scaling_error.mean()
    for model, rows in runs.groupby("model"):
        figures[f"paradl_{PARADL_NETWORKS[str(model)]}.all.mape"] = rows.error.abs().mean()
    report("accuracy_cnn", {name: float(value) for name, value in figures.items()}, args)


if __name__ == "__main__":
    main()
