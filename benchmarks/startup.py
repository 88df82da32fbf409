"""How long the command line takes to answer.

startup.help.ratio            `jaxscale --help` over a click program with one empty command
startup.optimize_cold.seconds `jaxscale optimize` with an empty compilation cache
startup.optimize_warm.seconds the same again, with the cache that the first run filled
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping

from common import parser, report

BARE = "import click; click.command()(lambda: None)()"
JAXSCALE = "from jaxscale.cli import main; main()"


def seconds(program: list[str], environment: Mapping[str, str] | None = None) -> float:
    """Wall-clock time of one run of the interpreter that runs this script."""
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, *program],
        env={**os.environ, **(environment or {})},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    elapsed = time.perf_counter() - start
    if done.returncode != 0:
        raise SystemExit(
            f"startup: {' '.join(program)} ended with code {done.returncode}: {done.stderr.strip()}"
        )
    return elapsed


def help_ratio(repetitions: int) -> float:
    """Ratio of the medians; the two programs take turns, so that a busy machine slows both."""
    bare, helped = [], []
    for _ in range(repetitions + 1):
        bare.append(seconds(["-c", BARE, "--help"]))
        helped.append(seconds(["-c", JAXSCALE, "--help"]))
    # The first round reads the files from disk.
    return statistics.median(helped[1:]) / statistics.median(bare[1:])


def optimize_seconds(repetitions: int) -> tuple[float, float]:
    """Time of `jaxscale optimize` with an empty cache and, as a median, with a full one."""
    with tempfile.TemporaryDirectory() as folder:
        runs = [
            seconds(["-m", "jaxscale", "optimize"], {"JAXSCALE_CACHE_DIR": folder})
            for _ in range(repetitions + 1)
        ]
    return runs[0], statistics.median(runs[1:])


def main() -> None:
    """Measure and print."""
    args = parser(__doc__).parse_args()
    cold, warm = optimize_seconds(1 if args.quick else 5)
    figures = {
        "startup.help.ratio": help_ratio(5 if args.quick else 15),
        "startup.optimize_cold.seconds": cold,
        "startup.optimize_warm.seconds": warm,
    }
    report("startup", figures, args)


if __name__ == "__main__":
    main()
