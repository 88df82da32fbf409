"""Distinct kernels give what all kernels give."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from jaxscale import hardware_db, zoo
from jaxscale.engine import layer_seconds, price
from jaxscale.kernels import Roofline
from jaxscale.kernels.weights import shipped
from jaxscale.lowering import lower
from jaxscale.nouns import Shard
from jaxscale.shapes import Distinct, distinct

WORKLOAD = lower(zoo.build("alexnet"))
DEVICE = hardware_db.device("v100")


@pytest.fixture(scope="module")
def shard():
    """Every mixture of split and whole layers, and the whole network on one device."""
    layers = len(WORKLOAD.layers.parameters)
    split = np.stack([np.zeros(layers), np.ones(layers), np.arange(layers) % 2, np.zeros(layers)], 1)
    sizes = np.array([64.0, 64.0, 48.0, 64.0]), np.array([4.0, 4.0, 3.0, 1.0])
    return Shard(*(leaf.astype(np.float32) for leaf in (*sizes, split)))


@pytest.mark.parametrize("model", [Roofline(), shipped().learned], ids=["roofline", "learned"])
def test_tables_are_those_of_all_kernels(model, shard):
    every = jax.jit(price)(WORKLOAD, DEVICE, shard, model)
    few = jax.jit(price)(WORKLOAD, DEVICE, shard, Distinct(model, distinct(WORKLOAD, shard)))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), every, few)


def test_no_kernel_is_there_twice(shard):
    for shapes in distinct(WORKLOAD, shard).values():
        columns = np.stack([*shapes.dimensions, shapes.itemsize, shapes.precision])
        assert np.unique(columns, axis=1).shape == columns.shape
        assert set(shapes.place.ravel()) == set(range(columns.shape[1]))


def test_a_network_of_one_repeated_layer_has_few_kernels():
    workload = lower(zoo.build("vgg16"))
    alone = Shard(*map(np.float32, ([8.0], [1.0], np.zeros((16, 1)))))
    forward = distinct(workload, alone)["convolution_forward"]
    # Simonyan & Zisserman 2015, table 1, column D: 13 convolutions, of which 64-64, 128-128, 256-256 (twice
    # the same), 512-512 at 28 pixels (twice) and 512-512 at 14 (three times) repeat: 9 differ.
    assert forward.place.shape == (13, 1)
    assert forward.dimensions.shape[1] == 9


def test_layer_times_add_up(shard):
    shapes = Distinct(Roofline(), distinct(WORKLOAD, shard))
    seconds = layer_seconds(WORKLOAD, DEVICE, shard, shapes)
    table = price(WORKLOAD, DEVICE, shard, shapes)
    np.testing.assert_allclose(seconds[0].sum(0), table.forward, rtol=1e-6)
