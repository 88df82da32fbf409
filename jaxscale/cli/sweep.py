"""`jaxscale sweep`: the best plan for every combination of the values that are varied."""

from __future__ import annotations

import json
from itertools import islice
from math import prod
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from jaxscale.cli import options
from jaxscale.cli.options import EXAMPLE_CLUSTER, EXAMPLE_GPUS, Counts, counts_of, note
from jaxscale.errors import InputError, choose

if TYPE_CHECKING:
    from jaxscale.cli.problem import Problem
    from jaxscale.search import Candidate

COUNTS = {
    "batch": ("global_batch_size", options.MOST_SAMPLES),
    "gpus": ("gpus", options.MOST_DEVICES),
    "tp": ("tp", options.MOST_DEVICES),
    "micro_batch": ("micro_batch_size", options.MOST_SAMPLES),
}
"""Counts that may be varied: column of the space, largest value."""

ROWS_SHOWN = 40


class Varied(NamedTuple):
    """One quantity and its values, in SI units."""

    name: str
    """As the user writes it, with underscores."""
    factor: str
    """As the space knows it."""
    values: tuple[float, ...]
    dimension: str
    """As `units` knows it."""

    @property
    def label(self) -> str:
        """The name in words; peaks of all formats move together, and the values are those of FP32."""
        return ("FP32 " if self.name == "peak_flops" else "") + self.name.replace("_", " ")

    def shown(self, value: float) -> str:
        from jaxscale.units import format_quantity

        return format_quantity(value, self.dimension)


@click.command()
@click.argument("model")
@click.option(
    "--vary",
    "texts",
    multiple=True,
    required=True,
    metavar="QUANTITY=RANGE",
    help="batch=64:8192:x2, gpus=8:512:x2, inter_node_bandwidth=10GB/s:200GB/s ...; may be repeated.",
)
@options.cluster_options
@click.option("--gpus", type=Counts(options.MOST_DEVICES), metavar="N|RANGE", help="At most N devices.")
@options.space_options
@options.training_options
@options.model_options
@options.output_options
def command(
    model,
    texts,
    cluster,
    network,
    gpus,
    batch,
    tp,
    micro_batch,
    algorithms,
    kernels,
    out,
    plot,
    as_json,
    **given,
):
    """Vary quantities and find the best plan of MODEL for every combination of their values.

    Quantities: batch, gpus, tp, micro_batch, and the rates peak_flops (FP32), memory_bandwidth,
    memory_capacity, clock, launch_overhead, intra_node_bandwidth, inter_node_bandwidth, intra_node_latency,
    inter_node_latency.
    """
    options.require_outputs(out, plot)
    options.require_cluster(cluster, network)
    trained = options.read_model(model, given.pop("image_size"), given.pop("classes"))
    fixed = {"gpus": gpus, "batch": batch, "tp": tp, "micro_batch": micro_batch}
    varied = _read(texts, fixed)
    if plot:
        _axes(varied)
    from jaxscale.runtime import use_compilation_cache

    use_compilation_cache()
    from jaxscale.cli.problem import Problem, Training, note_format, search
    from jaxscale.kernels.weights import kernel_model
    from jaxscale.search import BestPer

    model_of_kernels = kernel_model(kernels)
    for each in varied:
        if each.name in COUNTS:
            fixed[each.name] = tuple(map(int, each.values))
    if cluster is None:
        cluster, fixed["gpus"] = EXAMPLE_CLUSTER, fixed["gpus"] or (EXAMPLE_GPUS,)
        note(
            f"not given, so assumed: --cluster {cluster}" + ("" if gpus else f" --gpus {max(fixed['gpus'])}")
        )
    hardware = {each.name: each.values for each in varied if each.name not in COUNTS}
    problem = Problem(Training(trained, **given), cluster, network, **fixed, hardware=hardware)
    note_format(problem.training.precision, problem.parts)
    if fixed["batch"] is None:
        note(f"not given, so assumed: --batch {problem.batches[0]}")
    for each in varied:
        _check_present(each, problem)
    best_of_each = BestPer(*(each.factor for each in varied))
    found = search(problem, problem.space(), [best_of_each], algorithms, model_of_kernels)
    best: dict[tuple[float, ...], Candidate] = dict(found.results[0])

    if out:
        from jaxscale.files import write_table

        write_table([_record(varied, key, candidate) for key, candidate in best.items()], out)
    if plot:
        _draw(plot, varied, best, problem.words)
    if as_json:
        from jaxscale.report import search_record

        points = [_record(varied, key, candidate) for key, candidate in best.items()]
        varying = [each.name for each in varied]
        document = {**problem.record(), "varied": varying, "points": points, "search": search_record(found)}
        click.echo(json.dumps(document, indent=1))
        return
    from jaxscale import report
    from jaxscale.cli.style import results

    console = results()
    console.print(_table(varied, best, problem))
    hidden = len(best) - ROWS_SHOWN
    if hidden > 0:
        console.print(f"... and {hidden:,} more (all of them: --out FILE)")
    console.print(report.search_words(found), soft_wrap=True)


def _read(texts: tuple[str, ...], fixed: dict[str, Any]) -> list[Varied]:
    """What is to be varied, in the order given."""
    from jaxscale.levers import LEVERS
    from jaxscale.units import parse_range

    varied: list[Varied] = []
    for text in texts:
        written, equals, values = text.partition("=")
        if not equals:
            raise InputError(f"--vary is {text!r}, but it takes QUANTITY=RANGE such as batch=64:8192:x2")
        name = choose("quantity to vary", written.strip().replace("-", "_"), (*COUNTS, *LEVERS))
        if name in (each.name for each in varied):
            raise InputError(f"--vary gives {name} twice")
        if fixed.get(name):
            raise InputError(
                f"{name} is both varied and fixed by --{name.replace('_', '-')}, give one of the two"
            )
        if name in COUNTS:
            factor, most = COUNTS[name]
            varied.append(Varied(name, factor, counts_of(values, f"--vary {name}", most), "count"))
            continue
        dimension = LEVERS[name].dimension
        try:
            points = parse_range(values, dimension)
        except InputError as refusal:
            raise InputError(f"--vary {name}: {refusal}") from None
        varied.append(Varied(name, name, points, dimension))
    return varied


def _check_present(varied: Varied, problem: Problem) -> None:
    """A link that the cluster does not have cannot be made faster."""
    from jaxscale.levers import LEVERS

    if varied.name in LEVERS and not float(LEVERS[varied.name].get(problem.cluster)) > 0:
        raise InputError(
            f"{varied.name} cannot be varied: {problem.words.split(' on ')[-1]} have no such link"
        )


def _record(varied: list[Varied], key: tuple[float, ...], candidate: Candidate) -> dict[str, Any]:
    from jaxscale.report import candidate_record, lever_column

    counted = {
        f"varied_{each.name}": int(value)
        for each, value in zip(varied, key, strict=True)
        if each.name in COUNTS
    }
    rates = {
        lever_column(each.name): value
        for each, value in zip(varied, key, strict=True)
        if each.name not in COUNTS
    }
    return counted | candidate_record(candidate) | rates


def _table(varied: list[Varied], best: dict[tuple[float, ...], Candidate], problem: Problem):
    """The first rows; combinations without a feasible plan are missing."""
    from jaxscale.report import per_sample, plans_table

    keys = list(islice(best, ROWS_SHOWN))
    leading = {each.label: [each.shown(key[i]) for key in keys] for i, each in enumerate(varied)}
    total = prod(len(each.values) for each in varied)
    missing = total - len(best)
    title = f"Best plans for {problem.words}" + (
        f"; nothing fits at {missing} of {total} points" if missing else ""
    )
    fastest = min(map(per_sample, best.values()), default=1.0)
    return plans_table(title, [best[key] for key in keys], leading, fastest)


def _axes(varied: list[Varied]) -> tuple[int, int | None]:
    """Which quantity stands along the x axis, the one with the most values, and which one has a line each."""
    from jaxscale.plots import MOST_LINES

    if len(varied) > 2:
        raise InputError(f"--plot draws one or two varied quantities, not {len(varied)}")
    along = max(range(len(varied)), key=lambda i: len(varied[i].values))
    if len(varied) == 1:
        return along, None
    apart = varied[1 - along]
    if len(apart.values) > MOST_LINES:
        raise InputError(
            f"--plot draws at most {MOST_LINES} lines, but {apart.name} has {len(apart.values)} values"
        )
    return along, 1 - along


def _draw(plot: str, varied: list[Varied], best: dict[tuple[float, ...], Candidate], title: str) -> None:
    """Throughput of the best plans, on logarithmic axes."""
    from jaxscale.plots import draw_lines
    from jaxscale.report import per_sample

    along, apart = _axes(varied)
    lines: dict[str, tuple[list[float], list[float]]] = {}
    for key, candidate in best.items():
        xs, ys = lines.setdefault("" if apart is None else varied[apart].shown(key[apart]), ([], []))
        xs.append(key[along])
        ys.append(1 / per_sample(candidate))
    legend = None if apart is None else _axis_label(varied[apart])
    draw_lines(plot, lines, _axis_label(varied[along]), "samples/s", title, legend)


def _axis_label(varied: Varied) -> str:
    units = {
        "bandwidth": "B/s",
        "time": "s",
        "flop_rate": "FLOP/s",
        "frequency": "Hz",
        "memory": "B",
        "count": "",
    }
    unit = units[varied.dimension]
    return varied.label + (f" ({unit})" if unit else "")
