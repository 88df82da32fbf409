"""Inception v3.

Source: Szegedy et al., "Rethinking the Inception architecture for computer vision", CVPR 2016, table 1 and
figures 5 to 7 and 10, with batch normalization everywhere and the widths of the authors' released network.
"""

from __future__ import annotations

from jaxscale.network import Network, NetworkBuilder
from jaxscale.zoo.blocks import conv_norm_act


def inception_v3(image_size: int = 299, classes: int = 1000) -> Network:
    """Inception v3 without its auxiliary classifier: 23,834,568 weights (27,161,264 with it)."""
    b = NetworkBuilder("inception-v3", (3, image_size, image_size))
    x = conv_norm_act(b, b.input, 32, 3, stride=2)
    x = conv_norm_act(b, x, 32, 3)
    x = conv_norm_act(b, x, 64, 3, padding=1)
    x = b.max_pool(x, 3, stride=2)
    x = conv_norm_act(b, x, 80, 1)
    x = conv_norm_act(b, x, 192, 3)
    x = b.max_pool(x, 3, stride=2)
    for pooled in (32, 64, 64):
        x = _module_35(b, x, pooled)
    x = _reduce_to_17(b, x)
    for width in (128, 160, 160, 192):
        x = _module_17(b, x, width)
    x = _reduce_to_8(b, x)
    for _ in range(2):
        x = _module_8(b, x)
    x = b.flatten(b.dropout(b.global_pool(x)))
    b.softmax(b.linear(x, classes, name="fc"))
    return b.build()


def _module_35(b: NetworkBuilder, x: int, pooled: int) -> int:
    """Figure 5: a 5x5 branch and two stacked 3x3 convolutions."""
    return b.concat(
        conv_norm_act(b, x, 64, 1),
        conv_norm_act(b, conv_norm_act(b, x, 48, 1), 64, 5, padding=2),
        _double_3x3(b, x),
        _pooled(b, x, pooled),
    )


def _reduce_to_17(b: NetworkBuilder, x: int) -> int:
    """Figure 10: strided convolutions beside a strided pooling."""
    return b.concat(
        conv_norm_act(b, x, 384, 3, stride=2),
        _double_3x3(b, x, stride=2),
        b.max_pool(x, 3, stride=2),
    )


def _module_17(b: NetworkBuilder, x: int, width: int) -> int:
    """Figure 6: 7x7 convolutions factorized into 1x7 and 7x1."""
    single = _row(b, conv_norm_act(b, x, width, 1), width, 7)
    single = _column(b, single, 192, 7)
    double = _column(b, conv_norm_act(b, x, width, 1), width, 7)
    double = _column(b, _row(b, double, width, 7), width, 7)
    double = _row(b, double, 192, 7)
    return b.concat(conv_norm_act(b, x, 192, 1), single, double, _pooled(b, x, 192))


def _reduce_to_8(b: NetworkBuilder, x: int) -> int:
    short = conv_norm_act(b, conv_norm_act(b, x, 192, 1), 320, 3, stride=2)
    long = _column(b, _row(b, conv_norm_act(b, x, 192, 1), 192, 7), 192, 7)
    long = conv_norm_act(b, long, 192, 3, stride=2)
    return b.concat(short, long, b.max_pool(x, 3, stride=2))


def _module_8(b: NetworkBuilder, x: int) -> int:
    """Figure 7: 1x3 and 3x1 convolutions side by side."""
    single = conv_norm_act(b, x, 384, 1)
    single = b.concat(_row(b, single, 384, 3), _column(b, single, 384, 3))
    double = conv_norm_act(b, conv_norm_act(b, x, 448, 1), 384, 3, padding=1)
    double = b.concat(_row(b, double, 384, 3), _column(b, double, 384, 3))
    return b.concat(conv_norm_act(b, x, 320, 1), single, double, _pooled(b, x, 192))


def _double_3x3(b: NetworkBuilder, x: int, stride: int = 1) -> int:
    x = conv_norm_act(b, conv_norm_act(b, x, 64, 1), 96, 3, padding=1)
    return conv_norm_act(b, x, 96, 3, stride=stride, padding=1 if stride == 1 else 0)


def _pooled(b: NetworkBuilder, x: int, channels: int) -> int:
    return conv_norm_act(b, b.average_pool(x, 3, stride=1, padding=1), channels, 1)


def _row(b: NetworkBuilder, x: int, channels: int, length: int) -> int:
    return conv_norm_act(b, x, channels, (1, length), padding=(0, length // 2))


def _column(b: NetworkBuilder, x: int, channels: int, length: int) -> int:
    return conv_norm_act(b, x, channels, (length, 1), padding=(length // 2, 0))
