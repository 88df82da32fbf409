"""`jaxscale validate`: how well kernel times agree with measured ones."""

from __future__ import annotations

import json

import click

from jaxscale.cli import options

TABLES = (["family", "direction", "precision"], ["device"], ["size"])


@click.command()
@click.option(
    "--measurements",
    "path",
    required=True,
    metavar="FILE",
    help="A tidy .csv, .csv.gz or .parquet file of measured kernels.",
)
@click.option(
    "--kernels",
    type=options.Kernels(),
    default="learned",
    show_default=True,
    help="How kernels are timed: learned, roofline, or a file that train-kernels wrote.",
)
@click.option("--plot", metavar="FILE", help="Draw predicted against measured: .png, .svg or .pdf.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(path, kernels, plot, as_json):
    """Score kernel times against a file of measurements.

    Prints what the file measures, the error by family, device and size, and how often the 80 % and the 95 %
    interval hold the measured time. Rows that the weights were taught with are scored too.
    """
    options.require_outputs(None, plot)
    from jaxscale.measurements import measurement_map, median_of_repeats, read_measurements

    frame = median_of_repeats(read_measurements(path))
    from jaxscale.runtime import use_compilation_cache

    use_compilation_cache()
    from jaxscale.kernels.weights import find_weights
    from jaxscale.validate import judge, summary

    judged = judge(frame, find_weights(kernels))
    mapped = measurement_map(frame)
    if plot:
        from jaxscale.plots import draw_agreement

        draw_agreement(plot, judged, f"{path}, {kernels} kernels")
    if as_json:
        tables = {f"by_{by[0]}": summary(judged, by).to_dict("records") for by in TABLES}
        click.echo(json.dumps({"map": mapped.to_dict("records"), **tables}, indent=1))
        return
    from jaxscale.cli.style import results
    from jaxscale.tables import table

    console = results()
    console.print(table("What was measured", list(mapped), _cells(mapped), left=(0, 1, 2, 3, 5, 6)))
    for by in TABLES:
        errors = summary(judged, by)
        names = [name.replace("_", " ") for name in errors]
        console.print(table(f"Error by {by[0]}, %", names, _cells(errors), left=range(len(by))))


def _cells(frame):
    for row in frame.itertuples(index=False, name=None):
        yield tuple(f"{value:.1f}" if isinstance(value, float) else str(value) for value in row)
