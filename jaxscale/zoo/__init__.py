"""Networks by name, at any image size and number of classes.

>>> build("VGG_16", image_size=256, classes=10).input_shape
(3, 256, 256)
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jaxscale.errors import InputError, choose
from jaxscale.network import Network
from jaxscale.zoo.alexnet import alexnet, alexnet_seed, lenet5
from jaxscale.zoo.densenet import densenet
from jaxscale.zoo.googlenet import googlenet
from jaxscale.zoo.inception import inception_v3
from jaxscale.zoo.mobilenet import mobilenet_v2
from jaxscale.zoo.resnet import resnet
from jaxscale.zoo.vgg import vgg

NETWORKS: dict[str, Callable[..., Network]] = {
    "lenet-5": lenet5,
    "alexnet": alexnet,
    "alexnet-seed": alexnet_seed,
    **{f"vgg{depth}": partial(vgg, depth) for depth in (11, 13, 16, 19)},
    **{f"resnet{depth}": partial(resnet, depth) for depth in (18, 34, 50, 101, 152)},
    **{f"densenet{depth}": partial(densenet, depth) for depth in (121, 161, 201)},
    "googlenet": googlenet,
    "inception-v3": inception_v3,
    "mobilenet-v2": mobilenet_v2,
}
"""Every network: a function of `image_size` and `classes`, whose defaults are the published ones."""


def names() -> list[str]:
    """Names of all networks, family by family."""
    return list(NETWORKS)


def build(name: str, image_size: int | None = None, classes: int | None = None) -> Network:
    """Build a network.

    Args:
        name: one of `names()`; case, dashes and underscores do not matter.
        image_size: height and width of the image in pixels; the published size by default.
        classes: number of classes; the published number by default.

    Raises:
        InputError: no such network, a size that is not a positive integer, an image too small for its layers.

    >>> build("ResNet-50").parameters
    25557032
    """
    folded = {_fold(known): known for known in NETWORKS}
    known = choose("network", folded.get(_fold(name), name), NETWORKS)
    given = {"image_size": image_size, "classes": classes}
    changes = {key: value for key, value in given.items() if value is not None}
    for key, value in changes.items():
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise InputError(f"{key} of {known} must be a positive integer, not {value!r}")
    try:
        return NETWORKS[known](**changes)
    except InputError as error:
        raise InputError(f"image_size {image_size} is too small for {known} ({error})") from None


def _fold(name: str) -> str:
    return name.lower().replace("-", "").replace("_", "").replace(" ", "")
