"""What every benchmark prints: a table for people, or with --json one object for machines."""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
from collections.abc import Mapping
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

Figures = Mapping[str, float | int | None]


def parser(description: str | None) -> argparse.ArgumentParser:
    """The options that all benchmarks share; a script adds its own."""
    made = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--json", action="store_true", help="print one JSON object instead of a table")
    made.add_argument("--quick", action="store_true", help="fewer repetitions, the same figures")
    return made


def report(name: str, figures: Figures, args: argparse.Namespace, accelerator: str = "") -> None:
    """Print the figures of one benchmark on stdout.

    Args:
        name: the benchmark.
        figures: value by dotted name; None and values that are not finite mean "not measured here".
        args: the options read by `parser`.
        accelerator: what the figures were measured on beside the CPU.
    """
    where = machine() | ({"accelerator": accelerator} if accelerator else {})
    if args.json:
        finite = {key: _finite(value) for key, value in figures.items()}
        print(json.dumps({"name": name, "figures": finite, "machine": where}))
        return
    width = max(map(len, figures), default=0)
    print(name)
    for key, value in figures.items():
        known = _finite(value)
        print(f"  {key:<{width}}  {'not measured' if known is None else format(known, '.4g'):>12}")
    print("  " + ", ".join(f"{key} {value}" for key, value in where.items()))


def machine() -> dict[str, str | int]:
    """The machine and the versions that a figure depends on."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "jax": _version("jax"),
        "jaxscale": _version("jaxscale"),
        "date": datetime.now(UTC).date().isoformat(),
    }


def _finite(value: float | int | None) -> float | int | None:
    return value if value is not None and math.isfinite(value) else None


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"


def _cpu_model() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"
