"""How far off a learned kernel time may be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxscale.kernels.learned import GROUP_OF, GROUPS, Learned
from jaxscale.kernels.network import Network
from jaxscale.kernels.work import describe
from jaxscale.nouns import GENERATIONS, Array, Device

LEVELS = (0.8, 0.95)
"""Shares of the kernels that an interval is to cover, in the order of every [level] axis."""

AGREEMENT = 0.02
"""Spread, in log time, that is added to that of the members: two that agree may both be wrong."""


class Doubt(NamedTuple):
    """Half-widths of the intervals of one group, in log time."""

    taught: Array
    """[family, precision, generation] 1 where kernels of the kind were measured; the first generation is
    that of devices that have none."""
    seen: Array
    """[level] half-width of a kind that was measured, over the spread of the members plus `AGREEMENT`."""
    unseen: Array
    """[level] half-width of any other kind, and of a device that no member has met."""


@register_dataclass
@dataclass(frozen=True)
class Stretched:
    """A learned kernel model at one end of its intervals.

    Args:
        learned: the middle.
        members: by group, networks with a leading axis [member], which differ where they are unsure.
        doubt: by group.
        reach: [] 1 for the upper ends, -1 for the lower ones.
        level: [] index of `LEVELS`.
    """

    learned: Learned
    members: dict[str, Network]
    doubt: dict[str, Doubt]
    reach: Array
    level: Array

    def __call__(
        self, family: str, dimensions: Array, itemsize: Array, precision: Array, device: Device
    ) -> Array:
        group = GROUP_OF[family]
        doubt = self.doubt[group]

        def one(network: Network) -> Array:
            work = describe(family, dimensions, itemsize, precision)
            return jnp.log(Learned({group: network}).seconds(family, work, device))

        spread = jax.vmap(one)(self.members[group]).std(0)
        known = is_taught(doubt, family, precision, device)
        seen, unseen = jnp.asarray(doubt.seen)[self.level], jnp.asarray(doubt.unseen)[self.level]
        half = jnp.where(known, seen * (spread + AGREEMENT), unseen)
        middle = self.learned(family, dimensions, itemsize, precision, device)
        return middle * jnp.exp(self.reach * half)


def is_taught(doubt: Doubt, family: str, precision: Array, device: Device) -> Array:
    """[...] Whether kernels of this family, format and generation were measured."""
    number = jnp.clip(device.generation + 1, 0, len(GENERATIONS)).astype(jnp.int32)
    kinds = jnp.asarray(doubt.taught)[GROUPS[GROUP_OF[family]].index(family)]
    return kinds[precision, number] > 0
