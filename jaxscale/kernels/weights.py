"""What measurements have taught, as one file: networks, how far to doubt them, and where they come from."""

from __future__ import annotations

import functools
import json
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import numpy as np

from jaxscale.errors import InputError, choose
from jaxscale.files import write_atomically
from jaxscale.kernels.doubt import FOLDS, Doubt
from jaxscale.kernels.learned import GROUPS, Learned
from jaxscale.kernels.network import Network
from jaxscale.kernels.roofline import KernelModel, Roofline

if TYPE_CHECKING:
    import os

FORMAT = "jaxscale kernel weights 1"

SHIPPED = Path(__file__).with_name("weights.npz")

NAMES = ("learned", "roofline")
"""Kernel models that have a name; any other is the path of a file of weights."""


@dataclass(frozen=True)
class Measuring:
    """What a source's way of measuring adds to the kernels."""

    overhead: float
    """s per kernel"""
    deviations: Mapping[str, float]
    """Device -> factor on the overhead, 1 where it is not named."""
    bandwidth_share: float
    """Share of the memory bandwidth that the extra kernels of a row reach."""


@dataclass(frozen=True)
class Weights:
    """What a file of weights holds."""

    members: dict[str, Network]
    """Group -> networks with a leading axis [member]: the first has seen all devices, each of the others
    lacks some."""
    doubt: dict[str, Doubt]
    """Group -> how far to doubt the first member."""
    measuring: dict[tuple[str, str], Measuring]
    """(source, family of a measurement) -> how it measures."""
    about: dict[str, Any]
    """Provenance: data, split, date, errors, versions."""

    @property
    def learned(self) -> Learned:
        """The kernel model that searches use."""
        return self.member(0)

    def member(self, number: int) -> Learned:
        """One of the members; groups that have fewer answer with their first."""

        def pick(network: Network) -> Network:
            index = number if number < len(network.power) else 0
            return jax.tree.map(lambda leaf: leaf[index], network)

        return Learned({group: pick(network) for group, network in self.members.items()})

    @property
    def all_members(self) -> list[Learned]:
        """The member that has seen all devices, then those that each lack some."""
        return [self.member(number) for number in range(1 + FOLDS)]

    def beside(self, other: Weights) -> Weights:
        """These weights, and those of `other` for the groups that these lack."""
        lacking = [group for group in other.members if group not in self.members]
        members = self.members | {group: other.members[group] for group in lacking}
        doubt = self.doubt | {group: other.doubt[group] for group in lacking}
        about = self.about | {"taken": {"groups": lacking, "from": other.about}} if lacking else self.about
        return Weights(members, doubt, {**other.measuring, **self.measuring}, about)


def kernel_model(name: str = "learned") -> KernelModel:
    """Return the kernel model called `name`, or that of a file of weights.

    Raises:
        InputError: neither a name nor a file of weights of this version.

    >>> kernel_model("roofline")
    Roofline(counts='direct')
    """
    weights = find_weights(name)
    return Roofline() if weights is None else weights.learned


def find_weights(name: str) -> Weights | None:
    """Return the weights behind the kernel model called `name`, None for the roofline.

    Raises:
        InputError: neither a name nor a file of weights of this version.
    """
    if Path(name).suffix:
        return read_weights(name)
    return shipped() if choose("kernel model", name, NAMES) == "learned" else None


@functools.cache
def shipped() -> Weights:
    """Return the weights that come with the package."""
    return read_weights(SHIPPED)


def read_weights(path: str | os.PathLike[str]) -> Weights:
    """Return what a file of weights holds.

    Raises:
        InputError: no such file, one that is not whole, or one of another version.

    >>> sorted(read_weights(SHIPPED).members)[:3]
    ['attention', 'batched_matmul', 'convolution']
    """
    path, name = Path(path), str(path)
    if not path.is_file():
        raise InputError(f"cannot read {name!r}: there is no such file of kernel weights")
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
            arrays = {key: stored[key] for key in stored.files}
    except (OSError, ValueError, EOFError, KeyError, zipfile.BadZipFile, zlib.error):
        raise InputError(f"{name!r} is not a whole file of kernel weights (.npz)") from None
    try:
        about = json.loads(str(arrays.pop("about")))
        found = about.pop("format")
    except (KeyError, ValueError, TypeError, AttributeError):
        raise InputError(f"{name!r} holds no kernel weights") from None
    if found != FORMAT:
        raise InputError(f"{name!r} holds {found!r}, this version of jaxscale reads {FORMAT!r}")
    try:
        return _unpacked(arrays, about)
    except (KeyError, ValueError, TypeError, AttributeError):
        raise InputError(f"{name!r} holds kernel weights of another shape than {FORMAT!r}") from None


def write_weights(weights: Weights, path: str | os.PathLike[str]) -> Path:
    """Write weights to a file that appears whole or not at all."""
    arrays: dict[str, Any] = {}
    for group, network in weights.members.items():
        for layer, parts in network.layers.items():
            for part, leaf in parts.items():
                arrays[f"{group}/layers/{layer}/{part}"] = np.asarray(leaf, np.float16)
        arrays[f"{group}/generations"] = np.asarray(network.generations, np.float16)
        arrays[f"{group}/power"] = np.asarray(network.power, np.float32)
        for part, leaf in weights.doubt[group]._asdict().items():
            arrays[f"{group}/doubt/{part}"] = np.asarray(leaf, np.float32)
    measuring = [
        [source, family, how.overhead, dict(how.deviations), how.bandwidth_share]
        for (source, family), how in weights.measuring.items()
    ]
    about = json.dumps({"format": FORMAT, "measuring": measuring} | weights.about)

    def save(temporary: Path) -> None:
        with temporary.open("wb") as file:
            np.savez_compressed(file, about=np.array(about), **arrays)

    return write_atomically(path, save)


def _unpacked(arrays: dict[str, Any], about: dict[str, Any]) -> Weights:
    members, doubt = {}, {}
    for group in GROUPS:
        if f"{group}/power" not in arrays:
            continue
        layers: dict[str, dict[str, Any]] = {}
        for key, leaf in arrays.items():
            if key.startswith(f"{group}/layers/"):
                _, _, layer, part = key.split("/")
                layers.setdefault(layer, {})[part] = leaf.astype(np.float32)
        generations = arrays[f"{group}/generations"].astype(np.float32)
        members[group] = Network(layers, generations, arrays[f"{group}/power"])
        doubt[group] = Doubt(**{part: arrays[f"{group}/doubt/{part}"] for part in Doubt._fields})
    if not members:
        raise KeyError("groups")
    measuring = {
        (source, family): Measuring(overhead, deviations, share)
        for source, family, overhead, deviations, share in about.pop("measuring")
    }
    return Weights(members, doubt, measuring, about)
