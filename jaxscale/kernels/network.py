"""From the work of a kernel and the place where it runs to seconds: a network bounded by physics.

A kernel is bound by arithmetic, by memory, by what its tiles fetch on chip, and by the length of its chain of
dependent instructions. The network says which share of each it reaches. It sees sizes and counts and never a
rate, so that a kernel gets no slower on a device with a higher rate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxscale.kernels.work import Work
from jaxscale.nouns import GENERATIONS, Array, Device

Layers = dict[str, dict[str, Array]]
"""Name of a layer -> its `kernel` [input, output] and `bias` [output]."""

LOAD = 64.0
"""B per cycle that a multiprocessor takes from the cache."""

BOUNDS = ("arithmetic", "memory", "on chip", "chain")
"""What bounds a kernel, in the order of every [bound] axis."""

EVEN = 16.0
"""Waves after which the last, partly filled one no longer matters."""


class Network(NamedTuple):
    """What is learned of one group of families."""

    layers: Layers
    generations: Array
    """[generation, coordinate]"""
    power: Array
    """[] of the norm that joins the bounds: the larger, the more they overlap."""


def evaluate(layers: Layers, inputs: Array) -> Array:
    """[..., bound] The outputs of residual layers for inputs [..., input]."""
    first, *middle, last = layers.values()
    x = jax.nn.gelu(inputs @ first["kernel"] + first["bias"])
    for layer in middle:
        x += jax.nn.gelu(x @ layer["kernel"] + layer["bias"])
    return x @ last["kernel"] + last["bias"]


def place(generations: Array, device: Device) -> Array:
    """[feature] Where a device stands: how many multiprocessors and how much cache, and its generation."""
    number = jnp.clip(device.generation, 0).astype(jnp.int32)
    known = jnp.where((device.generation >= 0) & (device.generation < len(GENERATIONS)), 1.0, 0.0)
    described = jnp.stack(
        [jnp.log2(device.multiprocessors) / 4 - 1.5, jnp.log2(device.cache_capacity) / 8 - 3]
    )
    return jnp.concatenate([described, jnp.asarray(generations)[number] * known])


def inputs(generations: Array, work: Work, device: Device) -> Array:
    """[..., input] What the network sees of `work` on `device`."""
    where = place(generations, device)
    waves = work.tiles / device.multiprocessors
    held = jnp.log2(work.moved / device.cache_capacity)[..., None] / 8
    around = jnp.broadcast_to(where, (*work.flops.shape, *where.shape))
    return jnp.concatenate(
        [work.sizes, jnp.log2(jnp.maximum(waves, 1e-6)) / 8, _unfilled(waves), held, around], -1
    )


def bounds(work: Work, device: Device) -> Array:
    """[..., bound] s that the work takes at every rate of the device."""
    peaks = jnp.where(work.matrix > 0, device.peak_flops[work.precision], device.vector_flops[work.precision])
    waves = work.waiting / device.multiprocessors
    # As many waves as have begun, less sharply the more there are.
    begun = waves + 0.5 + _unfilled(waves)
    cycles = jnp.stack([work.traffic / (device.multiprocessors * LOAD), work.chain * begun], -1)
    return jnp.concatenate(
        [
            jnp.stack([work.flops / peaks, work.moved / device.memory_bandwidth], -1),
            cycles / device.clock,
        ],
        -1,
    )


def seconds(
    network: Network,
    limits: tuple[tuple[float, float], ...],
    work: Work,
    device: Device,
    seen: Device | None = None,
    apply: Callable[[Layers, Array], Array] = evaluate,
) -> Array:
    """[...] s of `work` on `device`, without launch.

    Args:
        network: leaves without leading axes.
        limits: [bound] the least and the largest share that a kernel can reach.
        work: leaves [...].
        device: one.
        seen: the device as the network sees it; as it is when None.
        apply: how the layers are evaluated.
    """
    outputs = apply(network.layers, inputs(network.generations, work, device if seen is None else seen))
    low, high = jnp.log(jnp.asarray(limits)).T
    times = bounds(work, device) / jnp.exp(low + (high - low) * jax.nn.sigmoid(outputs))
    longest = jax.lax.stop_gradient(times.max(-1, keepdims=True))
    joined = ((times / longest + 1e-6) ** network.power).sum(-1) ** (1 / network.power)
    return longest[..., 0] * joined


def _unfilled(waves: Array) -> Array:
    """Half a wave less the filled part of the last one, smoothed, and less the more waves there are.

    The sum of the series r^n sin(2 pi n waves) / n is the arc tangent below: a smooth sawtooth.
    """
    smooth = 0.97
    angle = 2 * jnp.pi * jnp.minimum(waves, 4 * EVEN)
    saw = jnp.arctan2(smooth * jnp.sin(angle), 1 - smooth * jnp.cos(angle)) / jnp.pi
    return saw * jnp.exp(-((jnp.minimum(waves, 4 * EVEN) / EVEN) ** 2))
