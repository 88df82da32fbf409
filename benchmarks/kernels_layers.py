"""Layers that others timed as a framework runs them: the rows in which one kernel, or a known few, counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from jaxscale.measurement_format import Table
from jaxscale.measurements import median_of_repeats
from kernels_tidy import tidy
from utilization_data import JUSTUS

UPDATES = {
    "SGD": (3, 1), "Momentum": (6, 2), "Adagrad": (7, 2), "RMSProp": (10, 3), "Adadelta": (12, 3),
    "Adam": (10, 3),
}  # fmt: skip
"""Optimizer -> accesses per parameter, kernels per variable, of TensorFlow 1: a pass per assignment.

Momentum, for one, reads gradient and accumulator, writes the accumulator, then reads it and the variable
and writes the variable. Differences between the measured times of dense layers on V100 and K80 agree."""

LOSS = (16, 8)
"""Accesses per output, kernels, of the mean squared distance to a target and of its gradients: subtract 3,
square 2, mean 1; tile 1, divide 2, gradient of the square 2 + 3, negate for the target 2."""

ACTIVATION = ((2, 1), (3, 1))
"""Accesses per output, kernels, forward and backward."""

BIAS = ((2, 1), (1, 1))
"""Accesses per output, kernels, forward and backward."""


def _justus(t: Table, bias: Any, outputs: Any, weights: Any, inputs: Any) -> tuple[Any, Any]:
    """[row] Bytes and number of memory-bound kernels around the products of a layer.

    TensorFlow 1 fuses none of them. The benchmark declares input, target, weights and bias as variables,
    so its optimizer updates all four.
    """
    training = (t.optimizer != "fwd_only").to_numpy()
    active = (t.activation_fct != "linear").to_numpy()
    accesses, kernels = np.zeros(len(t)), np.zeros(len(t))
    for present, (forward, backward) in ((bias, BIAS), (active, ACTIVATION)):
        for used, (passes, launches) in ((present, forward), (present & training, backward)):
            accesses += used * passes * outputs
            kernels += used * launches
    accesses += training * LOSS[0] * outputs
    kernels += training * LOSS[1]
    update = t.optimizer.map({**UPDATES, "fwd_only": (0, 0)})
    variables = 3 + bias
    parameters = weights + inputs + outputs
    return accesses + update.str[0].to_numpy() * parameters, kernels + update.str[1].to_numpy() * variables


def justus_conv(folder: Path) -> Table:
    """Convolution layers in TensorFlow 1, which brings NHWC tensors to NCHW and back around each product.

    A 1 x 1 convolution of stride 1 is a matrix product and needs no such transposition.
    """
    t: Table = pd.read_csv(folder / "justus2018" / "convolution_fp32.csv.gz")
    cut = np.where(t.padding == 1, 0, t.kernelsize - 1)
    out = np.ceil((t.matsize - cut) / t.strides)
    inputs = (t.batchsize * t.matsize**2 * t.channels_in).to_numpy(float)
    outputs = (t.batchsize * out**2 * t.channels_out).to_numpy(float)
    weights = (t.kernelsize**2 * t.channels_in * t.channels_out).to_numpy(float)
    accesses, kernels = _justus(t, t.use_bias.to_numpy(bool), outputs, weights, inputs)
    transposed = ((t.kernelsize > 1) | (t.strides > 1)).to_numpy()
    products = np.where(t.optimizer == "fwd_only", 1, 3)
    accesses += transposed * products * 2 * (inputs + outputs + weights)
    kernels += transposed * products * 3
    table = tidy(
        "justus2018", "convolution", np.where(t.optimizer == "fwd_only", "forward", "training"), "fp32",
        t.gpu.map(JUSTUS), batch=t.batchsize, in_channels=t.channels_in, in_height=t.matsize,
        in_width=t.matsize, out_channels=t.channels_out, out_height=out, out_width=out,
        kernel_height=t.kernelsize, kernel_width=t.kernelsize, stride=t.strides, dilation=1, groups=1,
        seconds=t.timeUsed_median / 1e3, extra_bytes=4 * accesses, extra_kernels=kernels,
    )  # fmt: skip
    return median_of_repeats(table)


def justus_dense(folder: Path) -> Table:
    """Dense layers with bias in TensorFlow 1."""
    t: Table = pd.read_csv(folder / "justus2018" / "dense_fp32.csv.gz")
    inputs = (t.batchsize * t.dim_input).to_numpy(float)
    outputs = (t.batchsize * t.dim_output).to_numpy(float)
    weights = (t.dim_input * t.dim_output).to_numpy(float)
    accesses, kernels = _justus(t, np.ones(len(t), bool), outputs, weights, inputs)
    table = tidy(
        "justus2018", "matmul", np.where(t.optimizer == "fwd_only", "forward", "training"), "fp32",
        t.gpu.map(JUSTUS), m=t.batchsize, n=t.dim_output, k=t.dim_input, seconds=t.timeUsed_median / 1e3,
        extra_bytes=4 * accesses, extra_kernels=kernels,
    )  # fmt: skip
    return median_of_repeats(table)
