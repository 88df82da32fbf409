"""VGG.

Source: Simonyan and Zisserman, "Very deep convolutional networks for large-scale image recognition",
ICLR 2015, table 1, columns A, B, D and E.
"""

from __future__ import annotations

from jaxscale.network import Network, NetworkBuilder

CONVOLUTIONS = {11: (1, 1, 2, 2, 2), 13: (2, 2, 2, 2, 2), 16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}
"""Convolutions in each of the five stages, by the number of weighted layers."""


def vgg(depth: int, image_size: int = 224, classes: int = 1000) -> Network:
    """VGG without batch normalization; its first fully connected layer reads the whole last feature map."""
    b = NetworkBuilder(f"vgg{depth}", (3, image_size, image_size))
    x = b.input
    for width, convolutions in zip((64, 128, 256, 512, 512), CONVOLUTIONS[depth], strict=True):
        for _ in range(convolutions):
            x = b.relu(b.conv(x, width, 3, padding=1))
        x = b.max_pool(x, 2, stride=2)
    x = b.flatten(x)
    for layer in ("fc6", "fc7"):
        x = b.dropout(b.relu(b.linear(x, 4096, name=layer)))
    b.softmax(b.linear(x, classes, name="fc8"))
    return b.build()
