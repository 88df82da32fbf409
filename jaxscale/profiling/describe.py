"""A description of the device that JAX sees, from what it does and what the system says of it."""

from __future__ import annotations

import os
import platform
from datetime import date
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxscale.profiling.measure import _time

EDGE, LARGE = 2048, 1 << 26
"""Of the product that shows the peak; numbers that are copied to show the bandwidth."""

SMALL, LINKS = 1 << 12, 256
"""Numbers that show the vector rate, and multiply-adds on each."""


def describe_device(repeats: int = 5) -> str:
    """The text of a device file for a processor that no data sheet describes; rates are measured.

    A product of 2048 x 2048 shows the peak, multiply-adds on numbers in the first cache the vector rate, and
    256 MB that are read and written the bandwidth of the memory.
    """
    square, long = jnp.ones((EDGE, EDGE)), jnp.ones(LARGE)
    product = _best(lambda a: a @ a, square, repeats)
    copied = _best(lambda a: a + 1, long, repeats)
    chained = _best(_chain, jnp.full(SMALL, 0.1), repeats)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    figures = {
        "vendor": '"other"',
        "generation": '"other"',
        "peak_fp32_tflop_per_s": 2 * EDGE**3 / product / 1e12,
        "vector_fp32_tflop_per_s": 2 * LINKS * SMALL / chained / 1e12,
        "memory_bandwidth_gb_per_s": 2 * 4 * LARGE / copied / 1e9,
        "memory_capacity_gb": _memory() / 1e9,
        "cache_capacity_mb": _cache() / 1e6,
        "host_bandwidth_gb_per_s": 2 * 4 * LARGE / copied / 1e9,
        "multiprocessors": cores,
        "clock_ghz": _clock() / 1e9,
        "launch_overhead_us": 0.5,
    }
    lines = [
        f"{key} = {value if isinstance(value, str | int) else format(value, '.4g')}"
        for key, value in figures.items()
    ]
    kind = f"{jax.devices()[0].device_kind} ({platform.machine()}), {cores} cores"
    lines += [f'source = "measured by jaxscale profile on {kind}"', f"date = {date.today().isoformat()}"]
    return "\n".join(lines) + "\n"


def _chain(numbers: Any) -> Any:
    for _ in range(LINKS):
        numbers = numbers * numbers + 0.1
    return numbers


def _best(function: Any, array: Any, repeats: int) -> float:
    run = jax.jit(function)
    jax.block_until_ready(run(array))
    return min(_time(run, [array], 3) for _ in range(repeats))


def _memory() -> float:
    """B of the device, or of the host where the device does not say."""
    statistics = jax.devices()[0].memory_stats() or {}
    host = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return float(statistics.get("bytes_limit", host))


def _cache(default: float = 32e6) -> float:
    """B of the largest cache of the first core."""
    sizes = []
    for path in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        text = path.read_text().strip()
        sizes.append(float(text.rstrip("KM")) * {"K": 1024, "M": 1024**2}.get(text[-1], 1))
    return max(sizes, default=default)


def _clock(default: float = 3e9) -> float:
    """Hz, as the system states them."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    stated = [float(line.split(":")[1]) * 1e6 for line in lines if line.startswith("cpu MHz")]
    return max(stated, default=default)
