"""Plans as people write them, their rules, and their lowering to numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import numpy as np

from jaxscale.errors import InputError, choose
from jaxscale.layers import Linear
from jaxscale.network import Network
from jaxscale.nouns import Plan

Split = tuple[bool, ...]
"""Per layer with weights: True where the ranks of a group share its filters, False where samples."""


def _classifier(network: Network) -> Split:
    """Convolutions by samples, fully connected layers by neurons (Krizhevsky 2014)."""
    return tuple(isinstance(network.nodes[i].layer, Linear) for i in network.weighted)


SPLITS: dict[str, Callable[[Network], Split]] = {
    "data": lambda network: (False,) * len(network.weighted),
    "model": lambda network: (True,) * len(network.weighted),
    "classifier": _classifier,
}
"""Named assignments of layers to data or model parallelism within a group of `tp` ranks."""


@dataclass(frozen=True)
class PlanSpec:
    """One plan.

    Args:
        global_batch_size: samples per step, over all devices.
        micro_batch_size: samples that a group of `tp` devices works on at a time.
        dp: groups, each a replica.
        tp: devices per group.
        split: a name of `SPLITS`, or one flag per layer with weights.
        overlap: whether gradient messages run behind the backward pass.

    Raises:
        InputError: sizes that are no positive integers or do not divide.

    >>> PlanSpec(512, 32, dp=4, tp=2, split="model").micro_batches
    4
    >>> PlanSpec(512, 48, dp=4)
    Traceback (most recent call last):
    jaxscale.errors.InputError: global batch 512 is not a multiple of dp x micro-batch = 4 x 48
    """

    global_batch_size: int
    micro_batch_size: int
    dp: int = 1
    tp: int = 1
    split: str | Split = "data"
    overlap: bool = True

    def __post_init__(self) -> None:
        for name in ("global_batch_size", "micro_batch_size", "dp", "tp"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise InputError(f"{name} is {value!r}, but it must be a positive integer")
        if self.global_batch_size < self.dp:
            raise InputError(f"global batch {self.global_batch_size} is smaller than dp = {self.dp}")
        if self.global_batch_size % (self.dp * self.micro_batch_size):
            raise InputError(
                f"global batch {self.global_batch_size} is not a multiple of dp x micro-batch ="
                f" {self.dp} x {self.micro_batch_size}"
            )
        if isinstance(self.split, str):
            choose("split", self.split, SPLITS)
        shares_samples = self.split != "model" and not (isinstance(self.split, tuple) and all(self.split))
        if shares_samples and self.micro_batch_size % self.tp:
            raise InputError(
                f"tp = {self.tp} does not divide the micro-batch {self.micro_batch_size},"
                " whose samples it shares in some layers"
            )

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step and group."""
        return self.global_batch_size // (self.dp * self.micro_batch_size)

    @property
    def devices(self) -> int:
        return self.dp * self.tp

    def flags(self, network: Network) -> Split:
        """The split, layer by layer."""
        if isinstance(self.split, str):
            return SPLITS[self.split](network)
        if len(self.split) != len(network.weighted):
            raise InputError(
                f"the plan splits {len(self.split)} layers, but {network.name} has"
                f" {len(network.weighted)} with weights"
            )
        return self.split

    def lower(self, network: Network, dtype: type = np.float32) -> Plan:
        """The plan as numbers, for `predict`."""

        def number(value: float | Split) -> jax.Array:
            return jax.device_put(np.asarray(value, dtype))

        return Plan(
            global_batch_size=number(self.global_batch_size),
            micro_batch_size=number(self.micro_batch_size),
            dp=number(self.dp),
            tp=number(self.tp),
            split=number(self.flags(network)),
            overlap=number(self.overlap),
        )


_KEYS = {
    "batch": "global_batch_size",
    "global-batch": "global_batch_size",
    "micro-batch": "micro_batch_size",
    "dp": "dp",
    "tp": "tp",
    "split": "split",
    "overlap": "overlap",
}


def parse_plan(text: str, global_batch_size: int | None = None) -> PlanSpec:
    """Read a plan such as `dp=8,tp=2,micro-batch=32,split=model,overlap=no`, or `split=ddm` layer by layer.

    Args:
        text: comma-separated key=value pairs; the micro-batch is the whole batch of a group unless given.
        global_batch_size: used where the text has no `batch`.

    >>> parse_plan("dp=4,tp=2,split=model", global_batch_size=256).micro_batch_size
    64
    """
    if not text.strip():
        raise InputError("the plan is empty: write for example dp=8,tp=2,micro-batch=32")
    given: dict[str, str] = {}
    for pair in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = pair.partition("=")
        if not equals:
            raise InputError(f"{pair!r} in the plan is not of the form key=value")
        name = _KEYS[choose("plan key", key.strip().replace("_", "-"), _KEYS)]
        if name in given:
            raise InputError(f"the plan gives {key.strip()!r} twice")
        given[name] = value.strip()
    numbers = {
        name: _integer(name, value) for name, value in given.items() if name not in ("split", "overlap")
    }
    batch = numbers.pop("global_batch_size", global_batch_size)
    if batch is None:
        raise InputError("the plan needs a batch: write batch=... or give --batch")
    dp = numbers.get("dp", 1)
    micro_batch = numbers.pop("micro_batch_size", max(batch // max(dp, 1), 1))
    split = _split(given.get("split", "model" if numbers.get("tp", 1) > 1 else "data"))
    overlap = choose("overlap", given.get("overlap", "yes"), ("yes", "no")) == "yes"
    return PlanSpec(batch, micro_batch, split=split, overlap=overlap, **numbers)


def split_text(split: str | Split) -> str:
    """A split as `parse_plan` reads it: its name, or one letter per layer, d by samples, m by filters.

    >>> split_text("classifier"), split_text((False, False, True))
    ('classifier', 'ddm')
    """
    return split if isinstance(split, str) else "".join("dm"[flag] for flag in split)


def _split(text: str) -> str | Split:
    letters = set(text) <= {"d", "m"}
    return tuple(letter == "m" for letter in text) if letters else choose("split", text, SPLITS)


def _integer(name: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        raise InputError(f"{name} is {value!r}, but it must be a positive integer") from None
