"""MobileNet v2.

Source: Sandler et al., "MobileNetV2: inverted residuals and linear bottlenecks", CVPR 2018, table 2.
"""

from __future__ import annotations

from jaxscale.network import Network, NetworkBuilder
from jaxscale.zoo.blocks import conv_norm, conv_norm_act

STAGES = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)
"""Expansion, channels, blocks and stride of the first block of every stage."""


def mobilenet_v2(image_size: int = 224, classes: int = 1000) -> Network:
    """MobileNet v2 of width 1."""
    b = NetworkBuilder("mobilenet-v2", (3, image_size, image_size))
    x = conv_norm_act(b, b.input, 32, 3, stride=2, padding=1, activation="relu6")
    for expansion, channels, blocks, first_stride in STAGES:
        for i in range(blocks):
            x = _inverted_residual(b, x, channels, expansion, first_stride if i == 0 else 1)
    x = conv_norm_act(b, x, 1280, 1, activation="relu6")
    x = b.dropout(b.flatten(b.global_pool(x)))
    b.softmax(b.linear(x, classes, name="fc"))
    return b.build()


def _inverted_residual(b: NetworkBuilder, x: int, channels: int, expansion: int, stride: int) -> int:
    """Widen, convolve every channel by itself, narrow; the input is added where the shape is kept."""
    width = expansion * b.shape(x)[0]
    y = x if expansion == 1 else conv_norm_act(b, x, width, 1, activation="relu6")
    y = conv_norm_act(b, y, width, 3, stride=stride, padding=1, groups=width, activation="relu6")
    y = conv_norm(b, y, channels, 1)
    return b.add(x, y) if stride == 1 and b.shape(x)[0] == channels else y
