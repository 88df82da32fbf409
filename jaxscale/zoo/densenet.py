"""DenseNet with bottlenecks and compression (DenseNet-BC).

Source: Huang et al., "Densely connected convolutional networks", CVPR 2017, table 1; DenseNet-161 is the
widest of the authors' released networks (growth 48).
"""

from __future__ import annotations

from jaxscale.network import Network, NetworkBuilder
from jaxscale.zoo.blocks import conv_norm_act

BLOCKS = {121: (6, 12, 24, 16), 161: (6, 12, 36, 24), 201: (6, 12, 48, 32)}
"""Dense layers in each of the four blocks, by the number of weighted layers."""

GROWTH = {121: 32, 161: 48, 201: 32}
"""Channels that every dense layer adds; the stem has twice as many."""


def densenet(depth: int, image_size: int = 224, classes: int = 1000) -> Network:
    """DenseNet; between two blocks a transition halves the channels and the size."""
    b = NetworkBuilder(f"densenet{depth}", (3, image_size, image_size))
    growth = GROWTH[depth]
    x = conv_norm_act(b, b.input, 2 * growth, 7, stride=2, padding=3)
    x = b.max_pool(x, 3, stride=2, padding=1)
    for block, layers in enumerate(BLOCKS[depth]):
        if block > 0:
            x = _norm_act_conv(b, x, b.shape(x)[0] // 2, 1)
            x = b.average_pool(x, 2, stride=2)
        for _ in range(layers):
            y = _norm_act_conv(b, x, 4 * growth, 1)
            x = b.concat(x, _norm_act_conv(b, y, growth, 3))
    x = b.flatten(b.global_pool(b.relu(b.batch_norm(x))))
    b.softmax(b.linear(x, classes, name="fc"))
    return b.build()


def _norm_act_conv(b: NetworkBuilder, x: int, channels: int, kernel: int) -> int:
    return b.conv(b.relu(b.batch_norm(x)), channels, kernel, padding=kernel // 2, bias=False)
