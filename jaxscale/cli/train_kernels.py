"""`jaxscale train-kernels`: kernel models from measured kernels."""

from __future__ import annotations

import sys
from importlib.util import find_spec

import click

from jaxscale.cli.options import Counts, note
from jaxscale.errors import InputError


@click.command("train-kernels")
@click.argument("files", nargs=-1, required=True)
@click.option("--out", "-o", required=True, metavar="FILE", help="Where the weights go: .npz.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of everything drawn.")
@click.option(
    "--steps", type=Counts(10_000_000, single=True), help="Training steps of each network, in place of ours."
)
@click.option("--alone", is_flag=True, help="Take nothing from the weights that come with jaxscale.")
def command(files, out, seed, steps, alone):
    """Teach kernel models from tidy FILES of measured kernels, of any mix of families and devices.

    A fifth of the shapes is held out and scored at the end. Families that the files do not measure are taken
    from the weights that come with jaxscale.
    """
    for package in ("flax", "optax"):
        if find_spec(package) is None:
            raise InputError(
                f"train-kernels needs {package}, which is not installed: pip install 'jaxscale[train]'"
            )
    from jaxscale.files import require_writable

    require_writable(out, (".npz",))
    import pandas as pd

    from jaxscale.measurements import median_of_repeats, read_measurements

    read = pd.concat([read_measurements(path) for path in files], ignore_index=True)
    frame = median_of_repeats(read)
    from jaxscale.runtime import use_compilation_cache

    use_compilation_cache()
    from jaxscale.cli.style import results
    from jaxscale.kernels.weights import shipped, write_weights
    from jaxscale.tables import table
    from jaxscale.training import train

    weights, judged = train(frame, seed=seed, steps=steps, progress=_progress)
    if not alone:
        taken = set(shipped().members) - set(weights.members)
        if taken:
            note(
                f"not measured, so taken from the weights that come with jaxscale: {', '.join(sorted(taken))}"
            )
        weights = weights.beside(shipped())
    write_weights(weights, out)
    kept = judged[judged.held_out]
    error = 100 * (kept.expected / kept.seconds - 1).abs()
    groups = error.groupby([kept.family, kept.direction, kept.precision, kept.device])
    rows = [(*key, str(len(part)), f"{part.mean():.1f}", f"{part.median():.1f}") for key, part in groups]
    columns = ("family", "direction", "precision", "device", "held out", "mape %", "median %")
    results().print(table("Error on shapes held out", columns, rows, left=range(4)))


def _progress(group, step, steps, error):
    if sys.stderr.isatty():
        end = "\n" if step >= steps else ""
        line = f"\r{group}: step {step:,} of {steps:,}, error {100 * error[0]:.1f} %   "
        click.echo(line + end, err=True, nl=False)
