"""Settings of the JAX runtime that a program makes once; importing jaxscale changes none of them."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from jaxscale import stored


def use_compilation_cache() -> Path | None:
    """Keep traced and compiled programs between runs; return their folder, or None where none can be had.

    The folder is `JAXSCALE_CACHE_DIR` when that is set, else `JAX_COMPILATION_CACHE_DIR`, else jaxscale's own
    in the user's cache folder. A folder made here is open to its owner alone, and one that belongs to
    somebody else is not used, because what is found there is run.
    """
    import jax
    import platformdirs

    given = os.environ.get("JAXSCALE_CACHE_DIR") or os.environ.get("JAX_COMPILATION_CACHE_DIR")
    folder = Path(given) if given else platformdirs.user_cache_path("jaxscale")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = not hasattr(os, "getuid") or folder.stat().st_uid == os.getuid()
    except OSError:
        return None
    if not owned or not os.access(folder, os.W_OK | os.X_OK):
        return None
    jax.config.update("jax_compilation_cache_dir", str(folder))
    # Most of jaxscale's programs compile in under a second, and a run needs several of them.
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    stored.keep_in(folder)
    return folder


QUICK_COMPILE = (
    {
        "xla_backend_optimization_level": 0,
        "xla_cpu_use_fusion_emitters": False,
        "xla_cpu_parallel_codegen_split_count": 1,
    },
    {"xla_backend_optimization_level": 0, "xla_cpu_use_fusion_emitters": False},
    {"xla_backend_optimization_level": 0},
    {},
)
"""Compiler options by preference: the first compiles in a third of the time. XLA's options come and go."""


def quick_jit(function: Callable[..., Any], **options: Any) -> Callable[..., Any]:
    """`jax.jit` for what runs a few times only, where tracing and compiling take longer than all runs.

    >>> double = quick_jit(lambda x: 2 * x)
    >>> float(double(1.5))
    3.0
    """
    return functools.wraps(function)(
        lambda *args, **kwargs: _quick(function, tuple(options.items()))(*args, **kwargs)
    )


@functools.cache
def _quick(function: Callable[..., Any], options: tuple[tuple[str, Any], ...]) -> Callable[..., Any]:
    return stored.jit(function, **dict(options), compiler_options=dict(_accepted()))


@functools.cache
def _accepted() -> tuple[tuple[str, Any], ...]:
    """The first of `QUICK_COMPILE` that this version of XLA knows."""
    import jax

    for options in QUICK_COMPILE[:-1]:
        try:
            jax.jit(lambda: 0.0, compiler_options=options).lower().compile()
        except jax.errors.JaxRuntimeError:
            continue
        return tuple(options.items())
    return ()
