"""Timing kernels on the device that JAX sees."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxscale.measurement_format import MEASUREMENT_DIMENSIONS, Table
from jaxscale.profiling.programs import PROGRAMS

SOURCE = "jaxscale_profile"
"""What measured kernels name as their source: calls of single compiled programs from Python."""

LEAST = 2e-3
"""s that a repetition lasts at least, as many calls as that takes."""

DTYPES: dict[str, Any] = {
    "fp32": jnp.float32, "tf32": jnp.float32, "fp16": jnp.float16, "bf16": jnp.bfloat16,
    "fp8": jnp.float8_e4m3fn,
}  # fmt: skip

MATMUL_PRECISION = {"fp32": "highest", "tf32": "high"}
"""What JAX is told about products of 32-bit numbers."""


def measure(
    shapes: Table, repeats: int = 7, progress: Callable[[int, int], None] = lambda done, total: None
) -> Table:
    """Time every kernel of a table.

    A program is compiled, warmed up, and timed `repeats` times, several calls at a time where one is short.

    Args:
        shapes: columns of the measurement format, without `seconds`.
        repeats: how often.
        progress: called with kernels done and kernels in all.

    Returns:
        The table with `seconds`, the median over repetitions, and `spread`, the distance between their
        quartiles over the median.

    >>> import pandas as pd
    >>> product = {"family": "matmul", "direction": "forward", "precision": "fp32", "m": 8, "n": 8, "k": 8}
    >>> bool(measure(pd.DataFrame([product]), repeats=3).seconds[0] > 0)
    True
    """
    medians, spreads = [], []
    for done, row in enumerate(shapes.to_dict("records")):
        laps = _laps(row, repeats)
        quarter, middle, three_quarters = np.quantile(laps, (0.25, 0.5, 0.75))
        medians.append(float(middle))
        spreads.append(float((three_quarters - quarter) / middle))
        progress(done + 1, len(shapes))
    return shapes.assign(seconds=medians, spread=spreads)


def _laps(row: dict[str, Any], repeats: int) -> list[float]:
    """s per call, one per repetition."""
    sizes = {name: round(row[name]) for name in MEASUREMENT_DIMENSIONS[row["family"]]}
    function, arrays = PROGRAMS[row["family"]](sizes, row["direction"])
    dtype, key = DTYPES[row["precision"]], jax.random.key(0)
    with jax.default_matmul_precision(MATMUL_PRECISION.get(row["precision"], "default")):
        given = [_numbers(key, shape, dtype) for shape in arrays]
        run = jax.jit(function)
        jax.block_until_ready(run(*given))
        calls = max(1, round(LEAST / max(_time(run, given, 1), 1e-7)))
        return [_time(run, given, calls) for _ in range(repeats)]


def _time(run: Callable[..., Any], given: list[Any], calls: int) -> float:
    """s per call."""
    started = time.perf_counter()
    for _ in range(calls):
        result = run(*given)
    jax.block_until_ready(result)
    return (time.perf_counter() - started) / calls


def _numbers(key: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Some numbers between 0 and 1, the same ones over and over where an array is large."""
    few = jax.random.uniform(key, (min(prod(shape), 1 << 16),), jnp.float32)
    return jnp.resize(few, shape).astype(dtype)
