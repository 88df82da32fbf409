"""LeNet-5 and AlexNet.

Sources: LeCun et al., "Gradient-based learning applied to document recognition", Proc. IEEE 1998;
Krizhevsky et al., "ImageNet classification with deep convolutional neural networks", NIPS 2012.
"""

from __future__ import annotations

from collections.abc import Sequence

from jaxscale.network import Network, NetworkBuilder


def lenet5(image_size: int = 32, classes: int = 10) -> Network:
    """LeNet-5 on grey images, its second convolution connected to all six maps: 61,706 weights."""
    b = NetworkBuilder("lenet-5", (1, image_size, image_size))
    x = b.input
    for channels in (6, 16):
        x = b.average_pool(b.activation(b.conv(x, channels, 5), "tanh"), 2, stride=2)
    x = b.flatten(b.activation(b.conv(x, 120, 5), "tanh"))
    x = b.activation(b.linear(x, 84), "tanh")
    b.softmax(b.linear(x, classes))
    return b.build()


def alexnet(image_size: int = 227, classes: int = 1000) -> Network:
    """AlexNet of the 2012 paper in one tower, that is without grouped convolutions: 62,378,344 weights."""
    return _alexnet("alexnet", (96, 256, 384, 384, 256), image_size, classes, local_response_norm=True)


def alexnet_seed(image_size: int = 227, classes: int = 1001) -> Network:
    """AlexNet with 64 and 192 filters in front, as in TensorFlow's benchmarks of 2017.

    The widths are those of "One weird trick for parallelizing convolutional neural networks" (Krizhevsky,
    arXiv 1404.5997); 1001 classes are ImageNet's and a background; there is no response normalization.
    """
    return _alexnet("alexnet-seed", (64, 192, 384, 384, 256), image_size, classes, local_response_norm=False)


def _alexnet(
    name: str, widths: Sequence[int], image_size: int, classes: int, local_response_norm: bool
) -> Network:
    b = NetworkBuilder(name, (3, image_size, image_size))
    x = b.relu(b.conv(b.input, widths[0], 11, stride=4))
    if local_response_norm:
        x = b.local_response_norm(x, 5)
    x = b.max_pool(x, 3, stride=2)
    x = b.relu(b.conv(x, widths[1], 5, padding=2))
    if local_response_norm:
        x = b.local_response_norm(x, 5)
    x = b.max_pool(x, 3, stride=2)
    for width in widths[2:]:
        x = b.relu(b.conv(x, width, 3, padding=1))
    x = b.flatten(b.max_pool(x, 3, stride=2))
    for layer in ("fc6", "fc7"):
        x = b.dropout(b.relu(b.linear(x, 4096, name=layer)))
    b.softmax(b.linear(x, classes, name="fc8"))
    return b.build()
