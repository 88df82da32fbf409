"""`jaxscale profile`: measured kernels of the device that JAX sees."""

from __future__ import annotations

import click

from jaxscale.cli import options
from jaxscale.cli.options import Counts, Named, note
from jaxscale.errors import InputError

FAMILIES = (
    "attention", "batched_matmul", "convolution", "elementwise", "embedding", "matmul", "normalization",
    "optimizer", "pooling", "recurrent", "softmax",
)  # fmt: skip


@click.command()
@click.argument("model", required=False)
@click.option(
    "--family", type=Named("family", FAMILIES), help="A designed sample of a family, in place of MODEL."
)
@click.option(
    "--samples", type=Counts(1_000_000, single=True), default=100, show_default=True, help="Its size."
)
@click.option(
    "--device", metavar="NAME|FILE", help="What the device is called in the hardware database, or a file."
)
@click.option(
    "--describe", metavar="FILE", help="Measure the device itself and write its file, .toml; no kernels."
)
@click.option(
    "--batch", type=Counts(options.MOST_SAMPLES), metavar="B|RANGE", help="Samples per step.  [default: 32]"
)
@click.option("--precision", type=Named("precision", options.PRECISIONS), default="fp32", show_default=True)
@click.option(
    "--optimizer", type=Named("optimizer", options.OPTIMIZERS), default="momentum", show_default=True
)
@click.option("--image-size", type=Counts(100_000, single=True), help="Height and width in pixels.")
@click.option(
    "--repeats", type=Counts(1000, single=True), default=7, show_default=True, help="Of every kernel."
)
@click.option(
    "--longest", default="1 s", show_default=True, help="Kernels that would take longer are left out."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Of the sample.")
@click.option("--out", "-o", metavar="FILE", help="Where the measurements go: .csv, .csv.gz or .parquet.")
def command(
    model,
    family,
    samples,
    device,
    describe,
    batch,
    precision,
    optimizer,
    image_size,
    repeats,
    longest,
    seed,
    out,
):
    """Measure the kernels of MODEL, or of a family, on the device that JAX sees.

    Every kernel is compiled, warmed up and timed; the file has the median and the spread. `train-kernels`
    learns from such files.
    """
    if describe:
        _describe(describe, model, family, out)
        return
    if (model is None) == (family is None):
        raise InputError("profile takes a MODEL or a --family, one of the two")
    if out is None or device is None:
        raise InputError(
            f"profile needs {'--out' if out is None else '--device'}, see jaxscale profile --help"
        )
    from jaxscale import hardware_db
    from jaxscale.files import require_writable
    from jaxscale.measurements import file_ending, least_seconds, write_measurements
    from jaxscale.units import parse_quantity

    limit = parse_quantity(longest, "time")
    file_ending(require_writable(out))
    hardware_db.load_device(device)
    network = options.read_model(model, image_size) if model else None
    from jaxscale.profiling import designed_shapes, measure, network_shapes
    from jaxscale.profiling.measure import SOURCE

    if network is None:
        shapes = designed_shapes(family, samples, precision, seed)
    else:
        shapes = network_shapes(network, batch or (32,), precision, optimizer)
    shapes = shapes.assign(device=device, source=SOURCE)
    short = shapes[least_seconds(shapes) <= limit].reset_index(drop=True)
    if len(short) < len(shapes):
        note(
            f"{len(shapes) - len(short)} of {len(shapes)} kernels would take longer than {longest}"
            " and are left out"
        )
    if short.empty:
        raise InputError(
            f"no kernel is left to measure within {longest}; give a larger --longest or a smaller --batch"
        )
    from jaxscale.cli.progress import Progress

    with Progress("measuring {total:,} kernels") as progress:
        measured = measure(short, repeats, progress)
    write_measurements(measured, out)
    total, spread = measured.seconds.sum(), measured.spread.median()
    click.echo(
        f"{len(measured)} kernels, {total:.3g} s in all, spread {100 * spread:.1f} %, written to {out}"
    )


def _describe(path, model, family, out):
    from pathlib import Path

    from jaxscale.files import require_writable, write_atomically

    if model or family or out:
        raise InputError("--describe measures the device alone: leave out MODEL, --family and --out")
    require_writable(path, (".toml",))
    from jaxscale.profiling import describe_device

    text = describe_device()
    write_atomically(Path(path), lambda to: to.write_text(text))
    click.echo(f"{text}written to {path}")
