"""How many plans per second the search judges on a GPU, and how that compares with the CPU beside it.

    python benchmarks/gpu.py [--quick] [--json]

The spaces and the way of timing are those of `throughput.py`; each run has a process of its own. Needs a JAX
that sees a GPU (`pip install 'jaxscale[cuda12]'`).

cnn.<device>.candidates_per_second            eight gradient messages per step
cnn.<device>.compile.seconds                  before the first candidate
cnn.gpu_over_cpu.ratio                        of the two rates
cnn.per_layer...                              the same with one message per layer
"""

from __future__ import annotations

import os
import subprocess
import sys

import common
from throughput import apart

ASK = "import jax; device = jax.devices()[0]; print(device.platform, device.device_kind)"


def default_device() -> tuple[str, str]:
    """Platform and kind of the device that JAX takes; asked apart, since whoever asks reserves its memory."""
    asked = subprocess.run([sys.executable, "-c", ASK], capture_output=True, text=True)
    if asked.returncode != 0:
        raise SystemExit(f"gpu: JAX does not start: {asked.stderr.strip().splitlines()[-1]}")
    platform, kind = asked.stdout.split(maxsplit=1)
    return platform, kind.strip()


def figures(points: int) -> dict[str, float]:
    """Rates on the default device, on the CPU, and their ratio, with buckets and with a message per layer."""
    cores = len(os.sched_getaffinity(0))
    found: dict[str, float] = {}
    for space, messages in (("cnn", 8), ("cnn.per_layer", None)):
        runs = {
            "gpu": apart(cores, messages, points),
            "cpu": apart(cores, messages, points, platform="cpu"),
        }
        rates = {device: run["candidates_per_second"] for device, run in runs.items()}
        for device, run in runs.items():
            found[f"{space}.{device}.candidates_per_second"] = rates[device]
            found[f"{space}.{device}.compile.seconds"] = run["compile_seconds"]
        found[f"{space}.gpu_over_cpu.ratio"] = rates["gpu"] / rates["cpu"]
    return found


def main() -> None:
    """Measure and print."""
    args = common.parser(__doc__).parse_args()
    platform, kind = default_device()
    if platform != "gpu":
        raise SystemExit(f"gpu: JAX sees no GPU here, its default device is {kind} ({platform})")
    common.report("gpu", figures(1536 if args.quick else 8192), args, accelerator=kind)


if __name__ == "__main__":
    main()
