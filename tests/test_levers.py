"""Levers: what they reach, and that they only scale."""

import jax
import numpy as np
import pytest
from machines import cluster

from jaxscale.errors import InputError
from jaxscale.levers import LEVERS, lever

MACHINE = cluster(bandwidth=(100e9, 10e9), latency=(1e-6, 5e-6), launch=5e-6, dtype=np.float32)


@pytest.mark.parametrize("name", LEVERS)
def test_setting_reads_back_and_touches_nothing_else(name):
    value = 3.0 * float(LEVERS[name].get(MACHINE))
    changed = LEVERS[name].set(MACHINE, value)
    assert float(LEVERS[name].get(changed)) == pytest.approx(value, rel=1e-6)
    others = [other for other in LEVERS if other != name]
    for other in others:
        assert float(LEVERS[other].get(changed)) == float(LEVERS[other].get(MACHINE)), other


def test_a_rate_keeps_the_ratio_of_protocols_and_precisions():
    changed = lever("inter-node-latency").set(MACHINE, 1e-5)
    np.testing.assert_allclose(changed.links.latency[1], 2 * MACHINE.links.latency[1], rtol=1e-6)
    np.testing.assert_array_equal(changed.links.bandwidth_share, MACHINE.links.bandwidth_share)
    faster = lever("peak_flops").scale(MACHINE, 2.0)
    np.testing.assert_allclose(faster.device.peak_flops, 2 * MACHINE.device.peak_flops)
    np.testing.assert_allclose(faster.device.vector_flops, 2 * MACHINE.device.vector_flops)


def test_levers_work_under_vmap():
    peaks = jax.vmap(lambda value: lever("peak_flops").set(MACHINE, value).device.peak_flops)(
        np.array([1e12, 2e12])
    )
    np.testing.assert_allclose(peaks[:, 0], [1e12, 2e12], rtol=1e-6)


def test_an_unknown_lever_is_named_with_the_nearest():
    with pytest.raises(InputError, match="did you mean 'memory_bandwidth'"):
        lever("memory_bandwith")
