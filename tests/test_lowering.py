"""Lowering: counts against the network's own, ownership, edges, buckets, what is kept in memory."""

import numpy as np
import pytest

from jaxscale import zoo
from jaxscale.errors import InputError
from jaxscale.kernels import DIRECT
from jaxscale.lowering import TRAINING_PRECISIONS, lower
from jaxscale.network import NetworkBuilder
from jaxscale.nouns import KERNEL_DIMENSIONS, PHASES, PRECISIONS

NAMES = [name for name in zoo.names() if name not in ("densenet161", "densenet201", "resnet152")]


def residual_block():
    b = NetworkBuilder("block", (8, 10, 10))
    x = b.relu(b.batch_norm(b.conv(b.input, 16, 3, padding=1, bias=False)))
    y = b.batch_norm(b.conv(x, 16, 3, padding=1, bias=False))
    x = b.relu(b.add(y, x))
    b.linear(b.flatten(b.global_pool(x)), 5)
    return b.build()


@pytest.mark.parametrize("name", NAMES)
def test_counts_are_those_of_the_network(name):
    """Parameters, and multiply-adds of the forward kernels: both checked against publications elsewhere."""
    network = zoo.build(name)
    workload = lower(network)
    assert np.asarray(workload.layers.parameters, np.float64).sum() == pytest.approx(
        network.parameters, rel=1e-6
    )
    flops = 0.0
    for family in ("convolution_forward", "matmul"):
        if family in workload.kernels:
            rows = workload.kernels[family]
            forward = np.asarray(rows.phase) == PHASES.index("forward")
            flops += np.asarray(DIRECT[family](rows.dimensions, rows.itemsize)[0], np.float64)[forward].sum()
    assert flops == pytest.approx(2 * network.multiply_adds, rel=1e-5)
    assert float(workload.flops) == pytest.approx(6 * network.multiply_adds, rel=1e-6)


@pytest.mark.parametrize("name", NAMES)
def test_every_layer_has_its_kernels_and_its_message(name):
    network = zoo.build(name)
    layers = len(network.weighted)
    for messages, expected in ((8, 8), (None, layers)):
        buckets = np.asarray(lower(network, messages=messages).buckets)
        assert buckets.shape == (expected, layers)
        assert (buckets.sum(0) == 1).all()  # every layer's gradients travel once
        order = [layer for bucket in buckets for layer in np.flatnonzero(bucket)[::-1]]
        assert order == sorted(order, reverse=True)  # and in backward order
    workload = lower(network)
    for family, rows in workload.kernels.items():
        assert rows.dimensions.shape[0] == len(KERNEL_DIMENSIONS[family])
        assert (
            np.isfinite(rows.dimensions).all()
            and (rows.dimensions >= 0).all()
            and (rows.dimensions[0] > 0).all()
        )
    assert set(np.asarray(workload.kernels["optimizer"].layer)) == set(range(layers))


def test_buckets_are_about_equal():
    workload = lower(zoo.build("resnet50"), messages=4)
    sizes = np.asarray(workload.buckets) @ np.asarray(workload.layers.parameters)
    assert sizes.max() < 1.6 * sizes.mean()


def test_a_residual_block_by_hand():
    """Layers: two convolutions and a linear one; the sum and what follows belong to the second."""
    workload = lower(residual_block())
    assert workload.layers.parameters.tolist() == [8 * 9 * 16 + 32, 16 * 9 * 16 + 32, 16 * 5 + 5]
    assert workload.layers.filters.tolist() == [16, 16, 5]
    assert workload.layers.outputs.tolist() == [1600, 1600, 5]
    edges = workload.edges
    found = {
        (int(p), int(c), float(n), bool(w))
        for p, c, n, w in zip(edges.producer, edges.consumer, edges.elements, edges.weighted, strict=True)
    }
    # The first activation crosses to the second layer once, though its convolution and its sum read it.
    assert found == {(0, 1, 1600.0, True), (1, 2, 16.0, True)}
    # Kept: the input, both convolutions' results (for the batch norms), both activations; pooled features.
    assert workload.layers.saved.tolist() == [800 + 1600 + 1600, 1600 + 1600 + 16, 0]


def test_batch_norm_counts_no_running_statistics():
    assert float(lower(residual_block()).layers.parameters.sum()) == residual_block().parameters


@pytest.mark.parametrize("name", TRAINING_PRECISIONS)
def test_precisions(name):
    """Bytes per parameter: FP32 momentum SGD holds 4 + 4 + 4, mixed precision 2 + 4 main + 4 momentum + 2."""
    workload = lower(residual_block(), precision=name, optimizer="momentum")
    held = float(workload.weight_bytes + workload.moment_bytes + workload.gradient_bytes)
    assert held == 12
    matrix = workload.kernels["convolution_forward"]
    assert {PRECISIONS[i] for i in matrix.precision.tolist()} == {name}
    assert set(matrix.itemsize.tolist()) == {{"fp8": 1.0, "fp16": 2.0, "bf16": 2.0}.get(name, 4.0)}


def test_the_gradient_of_the_network_input_is_skipped_unless_asked_for():
    phase = PHASES.index("backward_input")

    def first(workload):
        rows = workload.kernels["convolution_backward_data"]
        return [int(layer) for layer, p in zip(rows.layer, rows.phase, strict=True) if p == phase]

    assert first(lower(residual_block())) == [1]
    assert first(lower(residual_block(), first_input_gradient=True)) == [0, 1]


def test_no_weights_is_refused():
    b = NetworkBuilder("idle", (3, 8, 8))
    b.relu(b.input)
    with pytest.raises(InputError, match="'idle' has no convolution or linear layer"):
        lower(b.build())


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"precision": "fp61"}, "did you mean 'fp16'"),
        ({"optimizer": "adm"}, "did you mean 'adam'"),
        ({"messages": 0}, "at least 1"),
    ],
)
def test_bad_options(options, message):
    with pytest.raises(InputError, match=message):
        lower(residual_block(), **options)
