"""GoogLeNet (Inception v1), with batch normalization.

Source: Szegedy et al., "Going deeper with convolutions", CVPR 2015, table 1. This is the form that
torchvision publishes: batch normalization after every convolution, 3x3 filters in the branch that has 5x5
in the paper, and no auxiliary classifiers, as in its published counts (6,624,904 weights, 1.50 G
multiply-adds).
"""

from __future__ import annotations

from jaxscale.network import Network, NetworkBuilder
from jaxscale.zoo.blocks import conv_norm_act

MODULES = (
    (
        (64, 96, 128, 16, 32, 32),
        (128, 128, 192, 32, 96, 64),
    ),
    (
        (192, 96, 208, 16, 48, 64),
        (160, 112, 224, 24, 64, 64),
        (128, 128, 256, 24, 64, 64),
        (112, 144, 288, 32, 64, 64),
        (256, 160, 320, 32, 128, 128),
    ),
    (
        (256, 160, 320, 32, 128, 128),
        (384, 192, 384, 48, 128, 128),
    ),
)
"""Filters of every module, stage by stage: 1x1, 3x3 reduced and full, 5x5 reduced and full, pooled."""


def googlenet(image_size: int = 224, classes: int = 1000) -> Network:
    """GoogLeNet without auxiliary classifiers."""
    b = NetworkBuilder("googlenet", (3, image_size, image_size))
    x = conv_norm_act(b, b.input, 64, 7, stride=2, padding=3)
    x = b.max_pool(x, 3, stride=2, ceil_mode=True)
    x = conv_norm_act(b, x, 64, 1)
    x = conv_norm_act(b, x, 192, 3, padding=1)
    for stage, modules in enumerate(MODULES):
        # the last of these poolings has 3x3 windows in the paper, 2x2 in torchvision
        x = b.max_pool(x, 2 if stage == 2 else 3, stride=2, ceil_mode=True)
        for widths in modules:
            x = _module(b, x, *widths)
    x = b.dropout(b.flatten(b.global_pool(x)))
    b.softmax(b.linear(x, classes, name="fc"))
    return b.build()


def _module(
    b: NetworkBuilder, x: int, point: int, reduce3: int, full3: int, reduce5: int, full5: int, pooled: int
) -> int:
    return b.concat(
        conv_norm_act(b, x, point, 1),
        conv_norm_act(b, conv_norm_act(b, x, reduce3, 1), full3, 3, padding=1),
        conv_norm_act(b, conv_norm_act(b, x, reduce5, 1), full5, 3, padding=1),
        conv_norm_act(b, b.max_pool(x, 3, stride=1, padding=1, ceil_mode=True), pooled, 1),
    )
