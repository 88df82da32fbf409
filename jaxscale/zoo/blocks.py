"""What several families of networks are made of."""

from __future__ import annotations

from jaxscale.network import NetworkBuilder


def conv_norm(
    b: NetworkBuilder,
    x: int,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    groups: int = 1,
) -> int:
    """Convolution without bias, whose place the normalization's shift takes, and batch normalization."""
    conv = b.conv(x, channels, kernel, stride=stride, padding=padding, groups=groups, bias=False)
    return b.batch_norm(conv)


def conv_norm_act(
    b: NetworkBuilder,
    x: int,
    channels: int,
    kernel: int | tuple[int, int],
    *,
    stride: int = 1,
    padding: int | tuple[int, int] = 0,
    groups: int = 1,
    activation: str = "relu",
) -> int:
    """`conv_norm` and an activation."""
    x = conv_norm(b, x, channels, kernel, stride=stride, padding=padding, groups=groups)
    return b.activation(x, activation)
