"""Layers and networks: shapes and counts against hand calculation and counting one by one; refusals."""

from dataclasses import FrozenInstanceError, replace
from itertools import count, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.errors import InputError
from jaxscale.layers import (
    Activation,
    Add,
    BatchNorm,
    Concat,
    Conv2d,
    Dropout,
    Elementwise,
    Flatten,
    GlobalPool,
    Linear,
    LocalResponseNorm,
    Multiply,
    Pool,
    Softmax,
    View,
)
from jaxscale.network import INPUT, Network, NetworkBuilder, Node

sizes = st.integers(1, 12)
paddings = st.integers(0, 5)


def window_starts(size, kernel, stride, before, after, dilation=1, ceil_mode=False):
    """Where windows start, listed one by one: each must fit, or with ceil_mode start on the input."""
    extent, padded = dilation * (kernel - 1) + 1, before + size + after
    if not ceil_mode:
        return [start for start in range(0, padded, stride) if start + extent <= padded]
    starts = takewhile(lambda start: start == 0 or start - stride + extent < padded, count(0, stride))
    return [start for start in starts if start < before + size]


@given(
    sizes, sizes, sizes, st.integers(1, 4), st.integers(1, 4), st.tuples(*[paddings] * 4), st.integers(1, 3)
)
def test_convolution_has_one_output_per_window(height, width, kernel, stride, channels, padding, dilation):
    conv = Conv2d(5, (kernel, 1), (stride, 1), padding, (dilation, 1))
    top, left, bottom, right = padding
    if dilation * (kernel - 1) + 1 > height + top + bottom:
        with pytest.raises(InputError, match="larger than the padded input"):
            conv.output_shape((channels, height, width))
        return
    rows = len(window_starts(height, kernel, stride, top, bottom, dilation))
    assert conv.output_shape((channels, height, width)) == (5, rows, width + left + right)
    assert (
        conv.multiply_adds((channels, height, width)) == 5 * rows * (width + left + right) * channels * kernel
    )


@given(st.integers(1, 30), st.integers(2, 5), st.integers(1, 6), paddings, paddings, st.booleans())
def test_pooling_has_one_output_per_window(size, kernel, stride, before, after, ceil_mode):
    before, after = min(before, kernel - 1), min(after, kernel - 1)
    if kernel > size + before + after:
        return
    pool = Pool("max", (1, kernel), (1, stride), (0, before, 0, after), ceil_mode)
    columns = len(window_starts(size, kernel, stride, before, after, ceil_mode=ceil_mode))
    assert pool.output_shape((3, 1, size)) == (3, 1, columns)


@pytest.mark.parametrize(
    ("layer", "shape", "output", "parameters", "multiply_adds"),
    [
        # 96 filters of 11 x 11 x 3 and 55 x 55 places: 96 * 363 + 96 weights, 290,400 * 363 multiply-adds
        (Conv2d(96, (11, 11), (4, 4)), (3, 227, 227), (96, 55, 55), 34_944, 105_415_200),
        # VGG's first layer: 64 * 27 + 64 weights, 64 * 224 * 224 * 27 multiply-adds
        (Conv2d(64, (3, 3), padding=(1, 1, 1, 1)), (3, 224, 224), (64, 224, 224), 1_792, 86_704_128),
        # VGG's first fully connected layer: 25,088 * 4,096 and as many biases as outputs
        (Linear(4096), (25_088,), (4096,), 102_764_544, 102_760_448),
        # depthwise: one 3 x 3 filter per channel
        (
            Conv2d(32, (3, 3), (2, 2), (1, 1, 1, 1), groups=32, bias=False),
            (32, 112, 112),
            (32, 56, 56),
            288,
            903_168,
        ),
        # two groups see half of the channels each: 256 * (48 * 25) weights and 256 biases
        (
            Conv2d(256, (5, 5), padding=(2, 2, 2, 2), groups=2),
            (96, 27, 27),
            (256, 27, 27),
            307_456,
            223_948_800,
        ),
        (Linear(10, bias=False), (84,), (10,), 840, 840),
        (BatchNorm(), (64, 7, 7), (64, 7, 7), 128, 0),
        (BatchNorm(), (512,), (512,), 1024, 0),
        (LocalResponseNorm(5), (96, 27, 27), (96, 27, 27), 0, 0),
        (Activation("relu"), (8, 3, 3), (8, 3, 3), 0, 0),
        (GlobalPool("average"), (2048, 7, 7), (2048, 1, 1), 0, 0),
        (Flatten(), (256, 6, 6), (9216,), 0, 0),
        (View((4, 28, 3136)), (112, 56, 56), (4, 28, 3136), 0, 0),
        (Dropout(), (4096,), (4096,), 0, 0),
        (Softmax(), (1000,), (1000,), 0, 0),
        (Elementwise("PRelu", weights=64), (64, 5, 5), (64, 5, 5), 64, 0),
    ],
)
def test_layer_by_hand(layer, shape, output, parameters, multiply_adds):
    assert layer.output_shape(shape) == output
    assert layer.parameters(shape) == parameters
    assert layer.multiply_adds(shape) == multiply_adds


def test_layers_of_several_inputs():
    assert Add().output_shape((8, 4, 4), (8, 4, 4), (8, 4, 4)) == (8, 4, 4)
    assert Multiply().output_shape((8, 1, 1), (8, 4, 4)) == (8, 4, 4)
    assert Concat().output_shape((8, 4, 4), (3, 4, 4)) == (11, 4, 4)
    assert Concat().output_shape((10,), (5,)) == (15,)
    assert Elementwise("Max", 2).output_shape((8, 4, 4), (8, 4, 4)) == (8, 4, 4)
    assert Elementwise("Pad", shape=(8, 6, 6)).output_shape((8, 4, 4)) == (8, 6, 6)


def test_counts_are_exact_where_floats_are_not():
    side = 10**9 + 1
    conv = Conv2d(3, (1, 1), bias=False)
    assert conv.multiply_adds((1, side, side)) == 3 * (10**18 + 2 * 10**9 + 1)
    assert Linear(side).parameters((side,)) == side * side + side


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: Conv2d(0, (3, 3)), "Conv2d.*out_channels must be positive.*0"),
        (lambda: Conv2d(-8, (3, 3)), "-8"),
        (lambda: Conv2d(float("nan"), (3, 3)), "nan"),  # type: ignore[arg-type]
        (lambda: Conv2d(float("inf"), (3, 3)), "inf"),  # type: ignore[arg-type]
        (lambda: Conv2d(True, (3, 3)), "True"),
        (lambda: Conv2d(8, (3, 0)), r"kernel.*\(3, 0\)"),
        (lambda: Conv2d(8, (3,)), "kernel must hold 2"),  # type: ignore[arg-type]
        (lambda: Conv2d(8, 3), "kernel must hold 2"),  # type: ignore[arg-type]
        (lambda: Conv2d(8, (3, 3), stride=(0, 1)), "stride"),
        (lambda: Conv2d(8, (3, 3), padding=(1, 1, 1, -1)), "padding.*-1"),
        (lambda: Conv2d(8, (3, 3), padding=(1, 1)), "padding must hold 4"),  # type: ignore[arg-type]
        (lambda: Conv2d(8, (3, 3), dilation=(1, 0)), "dilation"),
        (lambda: Conv2d(8, (3, 3), groups=3), "3 groups do not divide 8 output channels"),
        (lambda: Conv2d(8, (3, 3), groups=0), "groups"),
        (lambda: Linear(0), "out_features"),
        (lambda: LocalResponseNorm(0), "size"),
        (lambda: Pool("median", (2, 2), (2, 2)), "unknown kind of pooling 'median'"),
        (lambda: Pool("max", (0, 2), (2, 2)), "kernel"),
        (lambda: GlobalPool("min"), "kind of pooling"),
        (lambda: View((4, 0)), "shape"),
        (lambda: Elementwise("Erf", 0), "inputs"),
        (lambda: Elementwise("Erf", shape=(-1,)), "shape"),
    ],
)
def test_impossible_layers_are_refused(make, words):
    with pytest.raises(InputError, match=words):
        make()


@pytest.mark.parametrize(
    ("layer", "shapes", "words"),
    [
        (Conv2d(8, (5, 5)), [(3, 4, 9)], "window of 5x5 is larger than the padded input of 4x9"),
        (Conv2d(8, (3, 3), dilation=(4, 4)), [(3, 8, 8)], "window of 9x9"),
        (Conv2d(8, (3, 3), groups=4), [(6, 8, 8)], "4 groups do not divide 6 input channels"),
        (Conv2d(8, (3, 3)), [(6,)], r"\(channels, height, width\)"),
        (Conv2d(8, (3, 3)), [(3, 0, 8)], "every size must be a positive integer"),
        (Conv2d(8, (3, 3)), [], "takes 1 input"),
        (Conv2d(8, (3, 3)), [(3, 8, 8)] * 2, "takes 1 input"),
        (Linear(8), [(3, 8, 8)], r"\(features,\)"),
        (Pool("max", (3, 3), (2, 2)), [(3, 2, 2)], "window of 3x3"),
        (GlobalPool("max"), [(3,)], "channels, height, width"),
        (Add(), [], "at least one input"),
        (Add(), [(8, 4, 4), (8, 4, 5)], "sizes differ"),
        (Multiply(), [(8, 1, 1), (4, 4, 4)], "sizes differ"),
        (Concat(), [(8, 4, 4), (8, 4, 5)], "only the first size may differ"),
        (View((5,)), [(2, 3)], "cannot hold the 6 elements"),
        (Elementwise("Max", 2), [(8,)], "takes 2 input"),
    ],
)
def test_inputs_that_do_not_fit_are_refused(layer, shapes, words):
    with pytest.raises(InputError, match=words) as refusal:
        layer.output_shape(*shapes)
    assert type(layer).__name__ in str(refusal.value)


def small_network():
    b = NetworkBuilder("small", (3, 8, 8))
    stem = b.relu(b.conv(b.input, 4, 3, padding=1))
    x = b.add(stem, b.batch_norm(b.conv(stem, 4, (1, 3), padding=(0, 1), bias=False)))
    x = b.concat(b.max_pool(x, 2, stride=2), b.average_pool(x, 2, stride=2))
    x = b.flatten(b.local_response_norm(x, 3))
    b.softmax(b.linear(b.dropout(x), 10, name="classifier"))
    return b.build()


def test_network_by_hand():
    network = small_network()
    # 3x3x3x4 + 4, 1x3x4x4, 2x4, (8x4x4)x10 + 10
    assert network.parameters == 112 + 48 + 8 + 1290
    assert network.multiply_adds == 64 * 4 * 27 + 64 * 4 * 12 + 1280
    assert [network.nodes[i].name for i in network.weighted] == ["conv1", "conv2", "classifier"]
    assert network.input_shapes(0) == ((3, 8, 8),)
    (add,) = (i for i, node in enumerate(network.nodes) if isinstance(node.layer, Add))
    assert network.nodes[add].inputs == (1, 3)
    assert network.input_shapes(add) == ((4, 8, 8), (4, 8, 8))
    assert network.nodes[-1].output_shape == (10,)


def test_network_is_frozen_and_hashable():
    network = small_network()
    assert network == small_network()
    assert hash(network) == hash(small_network())
    with pytest.raises(FrozenInstanceError):
        network.name = "other"  # type: ignore[misc]


def test_builder_names_the_layer_that_does_not_fit():
    b = NetworkBuilder("narrow", (3, 4, 4))
    with pytest.raises(InputError, match=r"layer 'conv1' of narrow: .*window of 5x5"):
        b.conv(b.input, 8, 5)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"nodes": ()}, "has no layers"),
        ({"input_shape": (3, 0, 8)}, "positive integers"),
        ({"input_shape": (3, float("inf"), 8)}, "positive integers"),
        ({"nodes": (Node("a", Activation(), (0,), (3, 8, 8)),)}, "does not come before"),
        ({"nodes": (Node("a", Activation(), (-2,), (3, 8, 8)),)}, "does not come before"),
        ({"nodes": (Node("a", Activation(), (INPUT,), (3, 8, 9)),)}, "does not give the shape"),
        ({"nodes": (Node("a", Activation(), (INPUT,), (3, 8, 8)),) * 2}, "several layers named 'a'"),
    ],
)
def test_inconsistent_networks_are_refused(changes, words):
    with pytest.raises(InputError, match=words):
        replace(small_network(), **changes)


def test_empty_builder_is_refused():
    with pytest.raises(InputError, match="has no layers"):
        NetworkBuilder("empty", (3, 8, 8)).build()


def test_network_of_many_layers():
    nodes = [Node(str(i), Activation(), (i - 1,), (2, 2, 2)) for i in range(3000)]
    assert Network("deep", (2, 2, 2), tuple(nodes)).parameters == 0
