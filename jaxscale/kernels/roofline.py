"""Time of one kernel on one device: launch overhead plus the roofline, divided by the utilization reached.

The roofline (Williams, Waterman, Patterson 2009): a kernel takes at least FLOPs / peak and at least
bytes / bandwidth, and the larger of the two.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import jax.numpy as jnp
from jax.tree_util import register_dataclass

from jaxscale.kernels.counts import COUNTS, MATRIX_FAMILIES
from jaxscale.nouns import Array, Device


class KernelModel(Protocol):
    """Anything that times kernels; every caller of kernel times takes one of these.

    A pytree, so that its weights are arguments of compiled programs and can be exchanged, mapped over and
    differentiated like any other leaf.
    """

    def __call__(
        self, family: str, dimensions: Array, itemsize: Array, precision: Array, device: Device
    ) -> Array:
        """Time kernels of one family.

        Args:
            family: a key of `KERNEL_DIMENSIONS`.
            dimensions: [dimension, ...] sizes in the order of `KERNEL_DIMENSIONS[family]`.
            itemsize: [...] B per element.
            precision: [...] int32 index into `PRECISIONS`.
            device: where the kernel runs.

        Returns:
            [...] s.
        """
        ...


@register_dataclass
@dataclass(frozen=True)
class Roofline:
    """The kernel model without measurements.

    Args:
        counts: a key of `COUNTS`.

    >>> from jaxscale import hardware_db
    >>> v100 = hardware_db.device("v100-sxm2-16gb")._replace(launch_overhead=jnp.zeros(()), utilization={})
    >>> sizes = jnp.array([4096.0, 4096.0, 4096.0])
    >>> f"{Roofline()('matmul', sizes, jnp.array(4.0), jnp.array(0), v100):.5f}"  # 2 x 4096^3 / 15.7e12
    '0.00875'
    """

    counts: str = field(default="direct", metadata={"static": True})

    def __call__(
        self, family: str, dimensions: Array, itemsize: Array, precision: Array, device: Device
    ) -> Array:
        flops, moved = COUNTS[self.counts][family](dimensions, itemsize)
        peaks = device.peak_flops if family in MATRIX_FAMILIES else device.vector_flops
        ideal = jnp.maximum(flops / peaks[precision], moved / device.memory_bandwidth)
        shares = device.utilization.get(family)
        return device.launch_overhead + (ideal if shares is None else ideal / shares[precision])
