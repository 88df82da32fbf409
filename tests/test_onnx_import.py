"""ONNX import: the networks of the onnx wheel against counts taken straight from the files, small graphs
against hand calculation, and refusals."""

from collections import Counter
from math import prod

import pytest

from jaxscale import zoo
from jaxscale.errors import InputError
from jaxscale.layers import (
    Activation,
    Add,
    BatchNorm,
    Concat,
    Conv2d,
    Elementwise,
    GlobalPool,
    Linear,
    Multiply,
    Pool,
    Softmax,
    View,
)
from jaxscale.onnx_import import read_onnx

onnx = pytest.importorskip("onnx")
from onnx import TensorProto, helper, numpy_helper  # noqa: E402
from onnx_files import LIGHT, conv, integers, write  # noqa: E402

# Weights, and multiply-adds in 1e9, published by torchvision for the same architecture.
PUBLISHED = {
    "vgg19": (143_667_240, 19.632),
    "resnet50": (25_557_032, 4.089),
    "densenet121": (7_978_856, 2.834),
    "squeezenet": (1_235_496, 0.349),
}
WHEEL = [
    *PUBLISHED,
    "bvlc_alexnet",
    "inception_v1",
    "inception_v2",
    "shufflenet",
    "zfnet512",
]


def counted_in_file(model):
    """Trainable elements and multiply-adds, from the shapes that the file and ONNX's inference state.

    The wheel's files hold small weights as they are, and of others the shape, which ConstantOfShape fills.
    Running statistics are not trained. Where a scale and shift follow (Mul and Add with weights), they are
    the trained ones, and those of the normalization itself are constants.
    """
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in model.graph.initializer}
    filled = {
        node.output[0]: tuple(int(size) for size in held[node.input[0]])
        for node in model.graph.node
        if node.op_type == "ConstantOfShape"
    }
    used = {name for node in model.graph.node for name in node.input}
    filled |= {name: held[name].shape for name in used & held.keys() if held[name].dtype.kind == "f"}
    elements = sum(prod(shape) for shape in filled.values())
    apart = any(node.op_type == "Mul" for node in model.graph.node)
    for node in model.graph.node:
        if node.op_type == "BatchNormalization":
            elements -= sum(prod(filled[name]) for name in node.input[1 if apart else 3 :])
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True).graph
    shapes = {
        info.name: tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim)
        for info in (*inferred.value_info, *inferred.output)
    }
    multiply_adds = 0
    for node in model.graph.node:
        if node.op_type in ("Conv", "Gemm"):
            weight = shapes[node.input[1]]
            places = prod(shapes[node.output[0]][2:])
            multiply_adds += places * prod(weight)
    return elements, multiply_adds


@pytest.mark.parametrize("name", WHEEL)
def test_networks_of_the_wheel(name):
    path = LIGHT / f"light_{name}.onnx"
    network = read_onnx(path)
    assert (network.parameters, network.multiply_adds) == counted_in_file(onnx.load(path))
    if name in PUBLISHED:
        parameters, giga_multiply_adds = PUBLISHED[name]
        assert network.parameters == parameters
        assert round(network.multiply_adds / 1e9, 3) == giga_multiply_adds
    assert network.name == f"light_{name}"
    assert prod(network.nodes[-1].output_shape) == 1000


@pytest.mark.parametrize(("file", "name"), [("resnet50", "resnet50"), ("vgg19", "vgg19")])
def test_imported_network_has_the_layers_of_the_zoo(file, name):
    def census(network):
        return Counter(
            (type(node.layer).__name__, node.output_shape)
            for node in network.nodes
            if isinstance(node.layer, (Conv2d, Linear, BatchNorm, Activation, Add, Softmax))
        )

    assert census(read_onnx(LIGHT / f"light_{file}.onnx")) == census(zoo.build(name))


def test_channel_shuffle_is_two_views_and_one_pass():
    network = read_onnx(LIGHT / "light_shufflenet.onnx")
    kinds = Counter(type(node.layer).__name__ for node in network.nodes)
    assert kinds["View"] == 32
    assert [node.layer.kind for node in network.nodes if isinstance(node.layer, Elementwise)] == (
        ["Transpose"] * 16
    )


def test_other_image_size():
    network = read_onnx(LIGHT / "light_squeezenet.onnx", image_size=320)
    assert network.input_shape == (3, 320, 320)
    assert network.parameters == 1_235_496
    with pytest.raises(InputError, match=r"Gemm|Reshape"):
        read_onnx(LIGHT / "light_vgg19.onnx", image_size=320)


@pytest.mark.parametrize(
    ("auto_pad", "padding", "side"),
    # 3x3 windows with stride 2 on 8 pixels: 4 windows need 9 pixels, so one is added at one end
    [("SAME_UPPER", (0, 0, 1, 1), 4), ("SAME_LOWER", (1, 1, 0, 0), 4), ("VALID", (0, 0, 0, 0), 3)],
)
def test_automatic_padding(tmp_path, auto_pad, padding, side):
    nodes = [conv(auto_pad=auto_pad, strides=[2, 2])]
    (node,) = read_onnx(write(tmp_path, nodes, [("x", [1, 3, 8, 8])], [("w", (5, 3, 3, 3))])).nodes
    assert node.layer == Conv2d(5, (3, 3), (2, 2), padding, bias=False)
    assert node.output_shape == (5, side, side)


def test_groups_dilation_and_bias(tmp_path):
    node = helper.make_node("Conv", ["x", "w", "b"], ["y"], group=2, dilations=[2, 2], pads=[2, 2, 2, 2])
    path = write(tmp_path, [node], [("x", [1, 4, 8, 8])], [("w", (6, 2, 3, 3)), ("b", (6,))])
    network = read_onnx(path)
    assert network.nodes[0].layer == Conv2d(6, (3, 3), (1, 1), (2, 2, 2, 2), (2, 2), 2, True)
    assert (network.parameters, network.multiply_adds) == (6 * 18 + 6, 64 * 6 * 18)


@pytest.mark.parametrize("batch", ["N", None, 1, 8])
def test_batch_axis_is_dropped(tmp_path, batch):
    nodes = [
        conv(output="c"),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("Gemm", ["f", "g"], ["y"]),
    ]
    network = read_onnx(
        write(tmp_path, nodes, [("x", [batch, 8, 8, 8])], [("w", (8, 8, 1, 1)), ("g", (512, 10))])
    )
    assert network.input_shape == (8, 8, 8)
    assert [node.output_shape for node in network.nodes] == [(8, 8, 8), (512,), (10,)]


@pytest.mark.parametrize("batch", ["N", 4])
def test_reshape_target_computed_from_the_shape_of_the_input(tmp_path, batch):
    """What exporters write for x.view(x.size(0), -1) and for a halved size."""
    nodes = [
        helper.make_node("Shape", ["x"], ["s"]),
        helper.make_node("Constant", [], ["zero"], value_int=0),
        helper.make_node("Gather", ["s", "zero"], ["n"], axis=0),
        helper.make_node("Unsqueeze", ["n", "axis"], ["n1"]),
        helper.make_node("Concat", ["n1", "rest"], ["target"], axis=0),
        helper.make_node("Reshape", ["x", "target"], ["flat"]),
        helper.make_node("Gemm", ["flat", "w", "b"], ["y"], transB=1),
    ]
    weights = [integers("axis", 0), integers("rest", -1), ("w", (10, 48)), ("b", (10,))]
    network = read_onnx(write(tmp_path, nodes, [("x", [batch, 3, 4, 4])], weights))
    assert [node.output_shape for node in network.nodes] == [(48,), (10,)]
    assert network.parameters == 490


def test_weights_from_constant_nodes_and_external_files(tmp_path):
    value = helper.make_tensor("v", TensorProto.FLOAT, (4, 3, 1, 1), bytes(48), raw=True)
    external = TensorProto(name="g", data_type=TensorProto.FLOAT, dims=(64, 7))
    external.data_location = TensorProto.EXTERNAL
    external.external_data.add(key="location", value="absent.bin")
    nodes = [
        helper.make_node("Constant", [], ["w"], value=value),
        conv(output="c"),
        helper.make_node("Flatten", ["c"], ["f"]),
        helper.make_node("MatMul", ["f", "g"], ["m"]),
        helper.make_node("Add", ["m", "b"], ["y"]),
    ]
    network = read_onnx(write(tmp_path, nodes, [("x", [1, 3, 4, 4])], [external, ("b", (7,))]))
    assert network.parameters == 12 + 64 * 7 + 7
    assert [type(network.nodes[i].layer) for i in network.weighted] == [Conv2d, Linear]


def test_squeeze_and_excitation_block(tmp_path):
    """Gate of 8 channels through 2: a global mean, two 1x1 convolutions, a product."""
    nodes = [
        helper.make_node("ReduceMean", ["x"], ["m"], axes=[2, 3], keepdims=1),
        conv("m", "a", "w1"),
        helper.make_node("Relu", ["a"], ["r"]),
        conv("r", "b", "w2"),
        helper.make_node("HardSigmoid", ["b"], ["h"]),
        helper.make_node("Mul", ["h", "x"], ["y"]),
    ]
    network = read_onnx(
        write(tmp_path, nodes, [("x", [1, 8, 6, 6])], [("w1", (2, 8, 1, 1)), ("w2", (8, 2, 1, 1))])
    )
    assert [type(node.layer) for node in network.nodes] == [
        GlobalPool,
        Conv2d,
        Activation,
        Conv2d,
        Activation,
        Multiply,
    ]
    assert network.nodes[-1].inputs == (4, -1)
    assert network.parameters == network.multiply_adds == 32


def test_scalars_are_no_weights_and_vectors_are(tmp_path):
    nodes = [
        helper.make_node("Clip", ["x", "zero", "six"], ["c"]),
        helper.make_node("Div", ["c", "six"], ["d"]),
        helper.make_node("Mul", ["d", "v"], ["m"]),
        helper.make_node("PRelu", ["m", "v"], ["y"]),
    ]
    network = read_onnx(
        write(tmp_path, nodes, [("x", [1, 5, 2, 2])], [("zero", ()), ("six", ()), ("v", (5, 1, 1))])
    )
    assert [node.layer.parameters((5, 2, 2)) for node in network.nodes] == [0, 0, 5, 5]


def normalization(source, output):
    return helper.make_node("BatchNormalization", [source, "s", "s", "s", "s"], [output])


def test_scale_and_shift_belong_to_the_normalization_before_them(tmp_path):
    apart = [
        normalization("x", "n"),
        helper.make_node("Mul", ["n", "k"], ["m"]),
        helper.make_node("Add", ["k", "m"], ["y"]),
    ]
    weights = [("s", (5,)), ("k", (5, 1, 1))]
    assert [
        type(node.layer) for node in read_onnx(write(tmp_path, apart, [("x", [1, 5, 2, 2])], weights)).nodes
    ] == [BatchNorm]
    # where the normalized values are read twice, the scale stands on its own
    twice = [*apart[:2], helper.make_node("Sum", ["n", "m"], ["y"])]
    network = read_onnx(write(tmp_path, twice, [("x", [1, 5, 2, 2])], weights))
    assert [type(node.layer) for node in network.nodes] == [BatchNorm, Elementwise, Add]
    assert network.parameters == 10 + 5


def test_free_and_moving_reshapes(tmp_path):
    nodes = [
        helper.make_node("Identity", ["x"], ["i"]),
        helper.make_node("Transpose", ["i"], ["t"], perm=[0, 2, 3, 1]),
        helper.make_node("Unsqueeze", ["t", "two"], ["u"]),
        helper.make_node("Squeeze", ["u", "two"], ["q"]),
        helper.make_node("Transpose", ["q"], ["b"], perm=[0, 3, 1, 2]),
        helper.make_node("Pad", ["b", "pads"], ["p"]),
        helper.make_node("MaxPool", ["p"], ["y"], kernel_shape=[3, 3], strides=[2, 2], ceil_mode=1),
    ]
    weights = [integers("two", 2), integers("pads", 0, 0, 1, 1, 0, 0, 1, 1)]
    network = read_onnx(write(tmp_path, nodes, [("x", [1, 4, 6, 6])], weights))
    assert [type(node.layer) for node in network.nodes] == [
        Elementwise,
        View,
        View,
        Elementwise,
        Elementwise,
        Pool,
    ]
    assert [node.output_shape for node in network.nodes][-2:] == [(4, 8, 8), (4, 4, 4)]


def test_split_and_concat(tmp_path):
    nodes = [
        helper.make_node("Split", ["x"], ["a", "b"], axis=1),
        helper.make_node("Concat", ["b", "a"], ["y"], axis=1),
    ]
    network = read_onnx(write(tmp_path, nodes, [("x", [1, 4, 6, 6])], opset=13))
    assert [node.output_shape for node in network.nodes] == [(2, 6, 6), (2, 6, 6), (4, 6, 6)]
    assert isinstance(network.nodes[-1].layer, Concat)
    assert network.nodes[-1].inputs == (1, 0)


def test_channels_last_image(tmp_path):
    """Exporters from TensorFlow keep images as height, width, channels and transpose first."""
    nodes = [helper.make_node("Transpose", ["x"], ["t"], perm=[0, 3, 1, 2]), conv("t")]
    path = write(tmp_path, nodes, [("x", ["N", "H", "W", 3])], [("w", (5, 3, 3, 3))])
    network = read_onnx(path, image_size=10)
    assert [node.output_shape for node in network.nodes] == [(3, 10, 10), (5, 8, 8)]
    with pytest.raises(InputError, match="leaves sizes open"):
        read_onnx(path)


def test_functions_are_unfolded(tmp_path):
    function = helper.make_function(
        "custom",
        "Twice",
        ["a"],
        ["c"],
        [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])],
        [helper.make_opsetid("", 17)],
    )
    nodes = [helper.make_node("Twice", ["x"], ["y"], domain="custom")]
    network = read_onnx(write(tmp_path, nodes, [("x", [1, 3, 4, 4])], functions=[function]))
    assert [type(node.layer) for node in network.nodes] == [Activation, Activation]
