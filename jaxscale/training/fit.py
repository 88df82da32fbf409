"""Teaching one group of families: several networks at once, each from its own choice of the rows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxscale.kernels.learned import SHARES
from jaxscale.kernels.network import BOUNDS, Layers, Network, inputs, seconds
from jaxscale.nouns import GENERATIONS, Array, Device
from jaxscale.training.arrange import Block

USUAL = 0.7
"""The share of every bound before anything is learned."""


class KernelMLP(nn.Module):
    """Residual layers; `kernels.network.evaluate` computes the same without flax."""

    width: int
    depth: int

    @nn.compact
    def __call__(self, x: Array) -> Array:
        x = nn.gelu(nn.Dense(self.width)(x))
        for _ in range(self.depth - 1):
            x = x + nn.gelu(nn.Dense(self.width)(x))
        return nn.Dense(len(BOUNDS))(x)


@dataclass(frozen=True)
class Recipe:
    """How a group is taught."""

    steps: int = 8000
    width: int = 96
    depth: int = 4
    batch: int = 1024
    learning_rate: float = 3e-3
    decay: float = 1e-2
    coordinates: int = 8
    """Of a generation."""
    hidden: float = 0.4
    """Share of the rows that are shown without their generation, so that an unknown one is nothing new."""
    jitter: float = 0.4
    """Of the logarithms of multiprocessors and cache in such rows, lest a device be known by its numbers."""
    huber: float = 0.05
    """Error beyond which an error counts in proportion and no longer squared."""


class Taught(NamedTuple):
    """What is fitted; with a leading axis [member, ...] where several are."""

    layers: Layers
    generations: Array
    """[generation, coordinate]"""
    sharpness: Array
    """[] power = 1.5 + softplus(sharpness)"""
    overhead: Array
    """[source] log s per kernel"""
    deviation: Array
    """[source, device] log factor on it"""
    share: Array
    """[source] logit of the share of the bandwidth that extra kernels reach"""

    @property
    def network(self) -> Network:
        return Network(self.layers, self.generations, 1.5 + jax.nn.softplus(self.sharpness))


class Rows(NamedTuple):
    """A block on its way to JAX, with what the table says of each row."""

    block: Block
    device: Array
    """[row]"""
    source: Array
    """[row]"""
    seconds: Array
    """[row]"""


def fit(
    group: str,
    rows: list[Rows],
    devices: Device,
    sources: int,
    chances: list[np.ndarray],
    validation: list[np.ndarray],
    recipe: Recipe,
    seed: int = 0,
    progress: Callable[[int, np.ndarray], None] = lambda step, error: None,
) -> Taught:
    """Teach the members of a group and return each at the step where it was best on its validation rows.

    Args:
        group: a key of `GROUPS`.
        rows: one per block.
        devices: leaves [device, ...].
        sources: how many there are.
        chances: per block, [member, row] how often a row is shown to a member, in proportion.
        validation: per block, [row] whether a row says when to stop; such rows are never shown.
        recipe: how.
        seed: of everything drawn.
        progress: called with the step and [member] mean absolute error on the validation rows.

    Returns:
        Leaves [member, ...].
    """
    members = len(chances[0])
    draw = np.random.default_rng(seed)
    module = KernelMLP(recipe.width, recipe.depth)
    start = _start(
        group, module, rows, devices, sources, recipe, jax.random.split(jax.random.key(seed), members)
    )
    schedule = optax.warmup_cosine_decay_schedule(
        0.0, recipe.learning_rate, recipe.steps // 20, recipe.steps, recipe.learning_rate / 100
    )
    decayed: Any = jax.tree.map(lambda leaf: False, start)
    decayed = decayed._replace(
        layers=jax.tree.map(lambda leaf: leaf.ndim > 2, start.layers), generations=True
    )
    adam = optax.adamw(schedule, weight_decay=recipe.decay, mask=decayed)
    state = jax.vmap(adam.init)(start)
    loss = partial(_loss, group, module, recipe, devices)

    @jax.jit
    def advance(taught: Taught, state: Any, rows: list[Rows], chosen: list[Array], key: Array) -> Any:
        def step(carry: Any, drawn: Any) -> Any:
            def one(taught: Taught, state: Any, chosen: list[Array], key: Array) -> Any:
                gradient = jax.grad(loss)(taught, _take(rows, chosen), key)
                updates, state = adam.update(gradient, state, taught)
                return optax.apply_updates(taught, updates), state

            taught, state = carry
            chosen, key = drawn
            return jax.vmap(one)(taught, state, chosen, jax.random.split(key, members)), None

        steps = len(chosen[0])
        return jax.lax.scan(step, (taught, state), (chosen, jax.random.split(key, steps)))[0]

    @jax.jit
    def error(taught: Taught, rows: list[Rows], chosen: list[Array]) -> Array:
        def one(taught: Taught, chosen: list[Array]) -> Array:
            parts = [
                jnp.abs(jnp.expm1(_predicted(group, module, devices, taught, part) - jnp.log(part.seconds)))
                for part in _take(rows, chosen)
            ]
            return jnp.concatenate(parts).mean()

        return jax.vmap(one)(taught, chosen)

    rows = jax.tree.map(jnp.asarray, rows)
    sizes = _sizes(chances, recipe.batch)
    watched = [chance * held for chance, held in zip(chances, validation, strict=True)]
    shown = [chance * ~held for chance, held in zip(chances, validation, strict=True)]
    watching = _drawn(draw, watched if all(map(_any, watched)) else shown, [4 * size for size in sizes], 1)
    watching = [part[0] for part in watching]
    taught, best, least = start, start, np.full(members, np.inf)
    done, chunk = 0, max(recipe.steps // 40, 1)
    while done < recipe.steps:
        chunk = min(chunk, recipe.steps - done)
        chosen = _drawn(draw, shown, sizes, chunk)
        taught, state = advance(taught, state, rows, chosen, jax.random.key(int(draw.integers(2**31))))
        done += chunk
        now = np.asarray(error(taught, rows, watching))
        better = now < least
        best = jax.tree.map(lambda new, old, which=better: _where(which, new, old), taught, best)
        least = np.minimum(now, least)
        progress(done, now)
    return best


def predicted(group: str, recipe: Recipe, devices: Device, taught: Taught, rows: Rows) -> Array:
    """[row] log s that one member expects the rows to measure."""
    return _predicted(group, KernelMLP(recipe.width, recipe.depth), devices, taught, rows)


def _predicted(
    group: str, module: KernelMLP, devices: Device, taught: Taught, rows: Rows, noise: Any = None
) -> Array:
    return jnp.log(_measured(devices, taught, rows, _kernels(group, module, devices, taught, rows, noise)))


def _kernels(
    group: str,
    module: KernelMLP,
    devices: Device,
    taught: Taught,
    rows: Rows,
    noise: Any = None,
    doubled: bool = False,
) -> Array:
    """[row] s of the kernels alone; `noise` as from `_noise`, when devices are not shown as they are."""
    network = taught.network

    def apply(layers: Layers, x: Array) -> Array:
        outputs: Any = module.apply({"params": layers}, x)
        return outputs

    def one(work: Any, device: Array, noise: Any) -> Array:
        own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[device], devices)
        seen = own
        if noise is not None:
            hidden, shift = noise
            seen = own._replace(
                generation=jnp.where(hidden, -1.0, own.generation),
                multiprocessors=own.multiprocessors * jnp.exp(jnp.where(hidden, shift[0], 0.0)),
                cache_capacity=own.cache_capacity * jnp.exp(jnp.where(hidden, shift[1], 0.0)),
            )
        return seconds(network, SHARES[group], work, own, seen, apply)

    work = rows.block.doubled if doubled else rows.block.work
    return (rows.block.slower * jax.vmap(one)(work, rows.device, noise)).sum(1)


def _measured(devices: Device, taught: Taught, rows: Rows, kernels: Array) -> Array:
    count = rows.block.slower.shape[1] + rows.block.extra_kernels
    overhead = jnp.exp(taught.overhead[rows.source] + taught.deviation[rows.source, rows.device])
    bandwidth = jnp.asarray(devices.memory_bandwidth)[rows.device] * jax.nn.sigmoid(taught.share[rows.source])
    return kernels + count * overhead + rows.block.extra_bytes / bandwidth


def _loss(
    group: str,
    module: KernelMLP,
    recipe: Recipe,
    devices: Device,
    taught: Taught,
    blocks: list[Rows],
    key: Array,
) -> Array:
    total, count = 0.001 * (taught.deviation**2).sum(), 0
    for number, rows in enumerate(blocks):
        noise = _noise(recipe, jax.random.fold_in(key, number), len(rows.seconds))
        kernels = _kernels(group, module, devices, taught, rows, noise)
        error = jnp.log(_measured(devices, taught, rows, kernels)) - jnp.log(rows.seconds)
        total += optax.huber_loss(error, delta=recipe.huber).sum() / recipe.huber
        few = max(len(error) // 8, 1)
        some = jax.tree.map(lambda leaf, n=few: leaf[:n], (rows, noise))
        more = _kernels(group, module, devices, taught, *some, doubled=True)
        total += 8 * (jax.nn.relu(jnp.log(kernels[: len(more)]) - jnp.log(more)) ** 2).sum()
        count += len(error)
    return total / count


def _noise(recipe: Recipe, key: Array, count: int) -> tuple[Array, Array]:
    """[row] Whether the generation is hidden, and [row, 2] how far two numbers of a device are moved then."""
    hide, shift = jax.random.split(key)
    hidden = jax.random.bernoulli(hide, recipe.hidden, (count,))
    return hidden, recipe.jitter * jax.random.normal(shift, (count, 2))


def _start(
    group: str,
    module: KernelMLP,
    rows: list[Rows],
    devices: Device,
    sources: int,
    recipe: Recipe,
    keys: Array,
) -> Taught:
    generations = jnp.zeros((len(GENERATIONS), recipe.coordinates))
    own = jax.tree.map(lambda leaf: jnp.asarray(leaf)[0], devices)
    work = jax.tree.map(lambda leaf: jnp.asarray(leaf[:1]), rows[0].block.work)
    example = inputs(generations, work, own)
    low, high = jnp.log(jnp.asarray(SHARES[group])).T

    def one(key: Array) -> Taught:
        layers: Any = module.init(key, example)["params"]
        *_, last = layers
        layers[last]["bias"] = jax.scipy.special.logit((jnp.log(USUAL) - low) / (high - low))
        return Taught(
            layers=layers,
            generations=generations,
            sharpness=jnp.array(1.0),
            overhead=jnp.log(jnp.asarray(_least_overhead(rows, sources))),
            deviation=jnp.zeros((sources, len(devices.memory_bandwidth))),
            share=jnp.full(sources, jax.scipy.special.logit(USUAL)),
        )

    return jax.vmap(one)(keys)


def _least_overhead(rows: list[Rows], sources: int) -> np.ndarray:
    """[source] s per kernel of its quickest rows, of which a fiftieth are quicker still."""
    source = np.concatenate([part.source for part in rows])
    each = [part.seconds / (part.block.slower.shape[1] + part.block.extra_kernels) for part in rows]
    each = np.concatenate(each)
    return np.array([np.quantile(each[source == i], 0.02) for i in range(sources)], np.float32)


def _take(rows: list[Rows], chosen: list[Array]) -> list[Rows]:
    return [
        jax.tree.map(lambda leaf, which=which: leaf[which], part)
        for part, which in zip(rows, chosen, strict=True)
    ]


def _sizes(chances: list[np.ndarray], batch: int) -> list[int]:
    """Rows of each block in a batch."""
    whole = sum(float(chance.sum()) for chance in chances)
    return [max(round(batch * float(chance.sum()) / whole), 32) for chance in chances]


def _drawn(
    draw: np.random.Generator, chances: list[np.ndarray], sizes: list[int], steps: int
) -> list[np.ndarray]:
    """Per block, [step, member, size] rows."""

    def picked(chance: np.ndarray, size: int) -> np.ndarray:
        total = np.cumsum(chance, dtype=float)
        return np.searchsorted(total, draw.random((steps, size)) * total[-1], side="right").astype(np.int32)

    return [
        np.stack([np.minimum(picked(own, size), len(own) - 1) for own in chance], 1)
        for chance, size in zip(chances, sizes, strict=True)
    ]


def _any(chances: np.ndarray) -> bool:
    """Whether every member can be shown a row."""
    return bool((chances.sum(1) > 0).all())


def _where(which: np.ndarray, new: Array, old: Array) -> Array:
    return jnp.where(which.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
