"""The zoo against published counts and hand calculation."""

import pytest

from jaxscale import zoo
from jaxscale.errors import InputError
from jaxscale.layers import Concat, Conv2d, Linear, Pool

# Weights and multiply-adds (in 1e9) as torchvision's documentation publishes them for the same networks
# ("num_params" and "GFLOPS" of the weights; for GoogLeNet and Inception v3 the weights without the
# auxiliary classifiers, which the multiply-adds never include).
TORCHVISION = {
    "vgg11": (132_863_336, 7.609),
    "vgg13": (133_047_848, 11.308),
    "vgg16": (138_357_544, 15.470),
    "vgg19": (143_667_240, 19.632),
    "resnet18": (11_689_512, 1.814),
    "resnet34": (21_797_672, 3.664),
    "resnet50": (25_557_032, 4.089),
    "resnet101": (44_549_160, 7.801),
    "resnet152": (60_192_808, 11.514),
    "densenet121": (7_978_856, 2.834),
    "densenet161": (28_681_000, 7.728),
    "densenet201": (20_013_928, 4.291),
    "googlenet": (6_624_904, 1.498),
    "inception-v3": (23_834_568, 5.713),
    "mobilenet-v2": (3_504_872, 0.301),
}


@pytest.mark.parametrize("name", TORCHVISION)
def test_published_counts(name):
    parameters, giga_multiply_adds = TORCHVISION[name]
    network = zoo.build(name)
    assert network.name == name
    assert network.parameters == parameters
    assert round(network.multiply_adds / 1e9, 3) == giga_multiply_adds


def test_inception_v3_auxiliary_classifier_makes_the_difference():
    """torchvision's 27,161,264 weights with the auxiliary classifier: 1x1x768x128 and 5x5x128x768
    convolutions with normalization and 768x1000 weights and biases."""
    auxiliary = (768 * 128 + 2 * 128) + (25 * 128 * 768 + 2 * 768) + (768 * 1000 + 1000)
    assert zoo.build("inception-v3").parameters + auxiliary == 27_161_264


# Weights and multiply-adds of every layer, worked out by hand for 227 x 227 images.
ALEXNET = {
    "conv1": (96 * (363 + 1), 55 * 55 * 96 * 363),
    "conv2": (256 * (2400 + 1), 27 * 27 * 256 * 2400),
    "conv3": (384 * (2304 + 1), 13 * 13 * 384 * 2304),
    "conv4": (384 * (3456 + 1), 13 * 13 * 384 * 3456),
    "conv5": (256 * (3456 + 1), 13 * 13 * 256 * 3456),
    "fc6": (4096 * (9216 + 1), 4096 * 9216),
    "fc7": (4096 * (4096 + 1), 4096 * 4096),
    "fc8": (1000 * (4096 + 1), 1000 * 4096),
}


def test_alexnet_layer_by_layer():
    network = zoo.build("alexnet")
    counted = {}
    for i in network.weighted:
        node, shapes = network.nodes[i], network.input_shapes(i)
        counted[node.name] = (node.layer.parameters(*shapes), node.layer.multiply_adds(*shapes))
    assert counted == ALEXNET
    assert network.parameters == 62_378_344
    assert all(node.layer.groups == 1 for node in network.nodes if isinstance(node.layer, Conv2d))


def test_seed_alexnet_feeds_9216_features_to_1001_classes():
    network = zoo.build("alexnet-seed")
    widths = [network.nodes[i].output_shape[0] for i in network.weighted]
    assert widths == [64, 192, 384, 384, 256, 4096, 4096, 1001]
    inputs = [network.input_shapes(i)[0] for i in network.weighted]
    assert inputs[5:] == [(9216,), (4096,), (4096,)]
    assert [network.nodes[i].output_shape[1:] for i in network.weighted[:5]] == [
        (55, 55),
        (27, 27),
        (13, 13),
        (13, 13),
        (13, 13),
    ]


def test_lenet5_by_hand():
    """5x5 filters: 1 to 6, 6 to 16, 16 to 120 maps; 120 to 84 to 10 features."""
    network = zoo.build("lenet-5")
    assert network.parameters == 6 * 26 + 16 * 151 + 120 * 401 + 84 * 121 + 10 * 85 == 61_706
    assert network.multiply_adds == 784 * 6 * 25 + 100 * 16 * 150 + 120 * 400 + 84 * 120 + 10 * 84


def test_vgg16_shapes_halve_stage_by_stage():
    network = zoo.build("vgg16")
    pools = [node.output_shape for node in network.nodes if isinstance(node.layer, Pool)]
    assert pools == [(64, 112, 112), (128, 56, 56), (256, 28, 28), (512, 14, 14), (512, 7, 7)]


def test_resnet50_strides_in_the_3x3_convolution():
    network = zoo.build("resnet50")
    convolutions = [node.layer for node in network.nodes if isinstance(node.layer, Conv2d)]
    assert sum(layer.stride == (2, 2) and layer.kernel == (3, 3) for layer in convolutions) == 3
    # the three strided 1x1 convolutions are the projections of the shortcuts
    assert sum(layer.stride == (2, 2) and layer.kernel == (1, 1) for layer in convolutions) == 3
    # the network is named after 50 weighted layers, the four projections not counted
    assert len(network.weighted) == 50 + 4


@pytest.mark.parametrize(("name", "stages"), [("densenet121", 4), ("densenet161", 4), ("densenet201", 4)])
def test_densenet_is_named_after_its_weighted_layers(name, stages):
    network = zoo.build(name)
    assert len(network.weighted) == int(name.removeprefix("densenet"))
    # every dense layer joins what it adds to what it read
    dense_layers = (len(network.weighted) - 2 - (stages - 1)) // 2
    assert sum(isinstance(node.layer, Concat) for node in network.nodes) == dense_layers


def test_mobilenet_has_17_depthwise_convolutions():
    network = zoo.build("mobilenet-v2")
    depthwise = [
        i
        for i in network.weighted
        if isinstance(layer := network.nodes[i].layer, Conv2d)
        and layer.groups == network.input_shapes(i)[0][0]
    ]
    assert len(depthwise) == 17
    assert network.nodes[depthwise[-1]].output_shape == (960, 7, 7)


@pytest.mark.parametrize("name", zoo.names())
def test_more_classes_change_only_the_last_layer(name):
    published, wide = zoo.build(name), zoo.build(name, classes=10_000)
    last = published.nodes[published.weighted[-1]]
    features = published.input_shapes(published.weighted[-1])[0][0]
    assert isinstance(last.layer, Linear)
    added = 10_000 - last.layer.out_features
    assert wide.parameters - published.parameters == added * (features + 1)
    assert wide.multiply_adds - published.multiply_adds == added * features
    assert wide.nodes[-1].output_shape == (10_000,)


def convolution_multiply_adds(network):
    return sum(
        node.layer.multiply_adds(*network.input_shapes(i))
        for i, node in enumerate(network.nodes)
        if isinstance(node.layer, Conv2d)
    )


@pytest.mark.parametrize("name", ["vgg16", "resnet50", "densenet121", "mobilenet-v2"])
@pytest.mark.parametrize("factor", [2, 3, 1_000_003])
def test_convolutions_grow_with_the_area_of_the_image(name, factor):
    published = convolution_multiply_adds(zoo.build(name))
    assert convolution_multiply_adds(zoo.build(name, image_size=224 * factor)) == factor**2 * published


@pytest.mark.parametrize("name", ["resnet18", "densenet121", "googlenet", "mobilenet-v2"])
def test_globally_pooled_networks_keep_their_weights_at_any_size(name):
    assert zoo.build(name, image_size=97).parameters == zoo.build(name).parameters


@pytest.mark.parametrize(
    ("written", "name"),
    [
        ("ResNet-50", "resnet50"),
        ("RESNET_50", "resnet50"),
        ("VGG 16", "vgg16"),
        ("Inception_V3", "inception-v3"),
        ("mobilenetv2", "mobilenet-v2"),
        ("AlexNet_Seed", "alexnet-seed"),
        ("LeNet5", "lenet-5"),
    ],
)
def test_spelling_of_names(written, name):
    assert zoo.build(written).name == name


def test_every_name_builds_and_ends_in_a_classifier():
    assert len(zoo.names()) == len(set(zoo.names())) == 18
    for name in zoo.names():
        network = zoo.build(name)
        assert network.name == name
        assert type(network.nodes[-1].layer).__name__ == "Softmax"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("resnet51",), "unknown network 'resnet51': did you mean 'resnet50'"),
        (("",), "unknown network ''"),
        (("vgg16", 0), "image_size of vgg16 must be a positive integer, not 0"),
        (("vgg16", -224), "-224"),
        (("vgg16", float("nan")), "nan"),
        (("vgg16", float("inf")), "inf"),
        (("vgg16", 224.0), "224.0"),
        (("vgg16", True), "True"),
        (("vgg16", "224"), "'224'"),
        (("vgg16", None, 0), "classes of vgg16 must be a positive integer, not 0"),
        (("alexnet", 16), "image_size 16 is too small for alexnet .*pool1"),
        (("inception-v3", 32), "image_size 32 is too small for inception-v3"),
    ],
)
def test_bad_requests_are_refused(arguments, words):
    with pytest.raises(InputError, match=words):
        zoo.build(*arguments)
