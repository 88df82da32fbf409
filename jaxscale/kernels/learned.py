"""Kernel times learned from measured kernels: one small network per group of families."""

from __future__ import annotations

from dataclasses import dataclass

from jax.tree_util import register_dataclass

from jaxscale.kernels.network import Network, seconds
from jaxscale.kernels.work import Work, describe
from jaxscale.nouns import Array, Device

GROUPS: dict[str, tuple[str, ...]] = {
    "convolution": ("convolution_forward", "convolution_backward_data", "convolution_backward_filter"),
    "matmul": ("matmul",),
    "batched_matmul": ("batched_matmul",),
    "attention": ("attention_forward", "attention_backward"),
    "memory_bound": ("normalization", "elementwise", "softmax", "pooling", "embedding", "optimizer"),
    "recurrent": ("recurrent",),
}
"""Families that share a network."""

GROUP_OF = {family: group for group, families in GROUPS.items() for family in families}

_ARITHMETIC, _FAST_CONVOLUTION = (1e-3, 1.5), (1e-3, 6.5)
_MEMORY, _ON_CHIP = (5e-3, 4.0), (1e-2, 4.0)
_PRODUCT_CHAIN, _CHAIN = (0.1, 256.0), (0.25, 4.0)

SHARES: dict[str, tuple[tuple[float, float], ...]] = {
    "convolution": (_FAST_CONVOLUTION, _MEMORY, _ON_CHIP, _PRODUCT_CHAIN),
    "matmul": (_ARITHMETIC, _MEMORY, _ON_CHIP, _PRODUCT_CHAIN),
    "batched_matmul": (_ARITHMETIC, _MEMORY, _ON_CHIP, _PRODUCT_CHAIN),
    "attention": (_ARITHMETIC, _MEMORY, _ON_CHIP, _PRODUCT_CHAIN),
    "memory_bound": (_ARITHMETIC, _MEMORY, _ON_CHIP, _CHAIN),
    "recurrent": (_ARITHMETIC, _MEMORY, _ON_CHIP, _PRODUCT_CHAIN),
}
"""[bound] the least and the largest share of each bound that kernels of a group reach.

Winograd and Fourier transforms need up to 6.5 times fewer operations than the direct count of a convolution;
other products exceed a peak by the boost of the clock. What the last kernel left in the cache is read
up to four times as fast as memory, and registers hold what a tile fetches more than once. A long sum may be
split into as many parts as there are multiprocessors. A kernel that only streams has no long chain: what a
framework takes to call it is not the kernel's.
"""

BACKWARD_ATTENTION = 73 / 63
"""Share of the peak forward over backward: 73 % and 63 % on A100 (Dao 2023, FlashAttention-2, section 4.1).

No measurement of attention backward is at hand, so it reaches what forward reaches, less by this ratio.
"""


@register_dataclass
@dataclass(frozen=True)
class Learned:
    """The kernel model that measurements have taught.

    Args:
        networks: by group of `GROUPS`.
    """

    networks: dict[str, Network]

    def __call__(
        self, family: str, dimensions: Array, itemsize: Array, precision: Array, device: Device
    ) -> Array:
        work = describe(family, dimensions, itemsize, precision)
        return device.launch_overhead + self.seconds(family, work, device)

    def seconds(self, family: str, work: Work, device: Device) -> Array:
        """[...] s of `work`, from `describe`, without launch."""
        group = GROUP_OF[family]
        slower = BACKWARD_ATTENTION if family == "attention_backward" else 1.0
        return slower * seconds(self.networks[group], SHARES[group], work, device)
