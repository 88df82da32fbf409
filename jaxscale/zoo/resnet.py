"""ResNet.

Source: He et al., "Deep residual learning for image recognition", CVPR 2016, table 1. As in most
libraries since, the 3x3 convolution of a bottleneck carries the stride (the "v1.5" form).
"""

from __future__ import annotations

from jaxscale.network import Network, NetworkBuilder
from jaxscale.zoo.blocks import conv_norm, conv_norm_act

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
"""Residual blocks in each of the four stages, by the number of weighted layers."""


def resnet(depth: int, image_size: int = 224, classes: int = 1000) -> Network:
    """ResNet with basic blocks (18, 34) or bottlenecks (50 and deeper)."""
    b = NetworkBuilder(f"resnet{depth}", (3, image_size, image_size))
    block = _basic if depth < 50 else _bottleneck
    x = conv_norm_act(b, b.input, 64, 7, stride=2, padding=3)
    x = b.max_pool(x, 3, stride=2, padding=1)
    for stage, blocks in enumerate(BLOCKS[depth]):
        for i in range(blocks):
            x = block(b, x, 64 * 2**stage, stride=2 if stage > 0 and i == 0 else 1)
    x = b.flatten(b.global_pool(x))
    b.softmax(b.linear(x, classes, name="fc"))
    return b.build()


def _basic(b: NetworkBuilder, x: int, width: int, stride: int) -> int:
    y = conv_norm_act(b, x, width, 3, stride=stride, padding=1)
    y = conv_norm(b, y, width, 3, padding=1)
    return b.relu(b.add(y, _shortcut(b, x, width, stride)))


def _bottleneck(b: NetworkBuilder, x: int, width: int, stride: int) -> int:
    y = conv_norm_act(b, x, width, 1)
    y = conv_norm_act(b, y, width, 3, stride=stride, padding=1)
    y = conv_norm(b, y, 4 * width, 1)
    return b.relu(b.add(y, _shortcut(b, x, 4 * width, stride)))


def _shortcut(b: NetworkBuilder, x: int, channels: int, stride: int) -> int:
    """The input itself, or its projection where the shape changes."""
    if stride == 1 and b.shape(x)[0] == channels:
        return x
    return conv_norm(b, x, channels, 1, stride=stride)
