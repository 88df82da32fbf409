"""Bytes that one device holds while training."""

from __future__ import annotations

import jax.numpy as jnp

from jaxscale.nouns import Array, Memory, Workload


def memory(workload: Workload, batch: Array, held: Array, messages: Array) -> Memory:
    """Memory of one rank at its peak, the moment the backward pass begins.

    Args:
        workload: L layers.
        batch: [L, ...] samples that the rank works on in each layer.
        held: [L, ...] share of each layer's parameters that the rank holds.
        messages: [J, ...] B of the gradient messages, the largest of which is being reduced.

    Returns:
        Memory with leaves [...].
    """
    parameters = jnp.tensordot(workload.layers.parameters, held, 1)
    saved = jnp.tensordot(workload.layers.saved, batch, 1)
    layers = workload.layers.workspace.reshape(-1, *(1,) * (batch.ndim - 1))
    return Memory(
        weights=parameters * workload.weight_bytes,
        gradients=parameters * workload.gradient_bytes,
        optimizer=parameters * workload.moment_bytes,
        activations=saved * workload.activation_bytes,
        workspace=(layers * batch).max(0) * workload.activation_bytes,
        buffers=messages.max(0),
    )
