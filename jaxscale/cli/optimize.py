"""`jaxscale optimize`: the best plans for a network on a cluster, and why they are the best."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click

from jaxscale.cli import options
from jaxscale.cli.options import EXAMPLE_CLUSTER, EXAMPLE_GPUS, EXAMPLE_MODEL, Counts, note

if TYPE_CHECKING:
    from jaxscale.cli.problem import Problem
    from jaxscale.explain import Explanation, Interval
    from jaxscale.kernels import KernelModel
    from jaxscale.search import Candidate, Evaluation, Space


@click.command()
@click.argument("model", required=False)
@options.cluster_options
@click.option(
    "--gpus",
    type=Counts(options.MOST_DEVICES),
    metavar="N|RANGE",
    help="At most N devices, or exactly these counts.",
)
@options.space_options
@options.training_options
@options.model_options
@click.option("--top", type=Counts(1000, single=True), default=10, show_default=True, help="Plans to list.")
@click.option("--explain", "terms", is_flag=True, help="Also the exposed terms of every listed plan.")
@click.option("--per-layer", is_flag=True, help="Also let every layer choose data or model parallelism.")
@options.output_options
def command(model, cluster, network, gpus, batch, tp, micro_batch, algorithms, kernels, top, **given):
    """Find the best plans for MODEL, a network of the zoo or an .onnx file.

    Without arguments: a complete example, ResNet-50 on 64 V100.
    """
    out, plot, as_json, terms, per_layer = map(given.pop, ("out", "plot", "as_json", "terms", "per_layer"))
    options.require_outputs(out, plot)
    options.require_cluster(cluster, network)
    trained = options.read_model(
        EXAMPLE_MODEL if model is None else model, given.pop("image_size"), given.pop("classes")
    )
    from jaxscale.runtime import use_compilation_cache

    use_compilation_cache()
    from jaxscale.cli.problem import Problem, Training, note_format, search
    from jaxscale.explain import explain, step_interval
    from jaxscale.kernels import Roofline
    from jaxscale.kernels.weights import find_weights
    from jaxscale.report import candidate_record
    from jaxscale.search import BestPer, TopK

    weights = find_weights(kernels)
    kernel_model = Roofline() if weights is None else weights.learned
    gpus = gpus or ((EXAMPLE_GPUS,) if cluster is None else None)
    training = Training(trained, **given)
    problem = Problem(training, cluster or EXAMPLE_CLUSTER, network, gpus, batch, tp, micro_batch)
    _say_what_was_assumed(model, cluster, batch, problem)
    note_format(training.precision, problem.parts)
    space = problem.space()
    several = [BestPer("global_batch_size")] if len(problem.batches) > 1 else []
    found = search(problem, space, [TopK(top), *several], algorithms, kernel_model)
    plans = found.results[0]
    if per_layer:
        plans = _each_layer_free(space, plans, algorithms, top, kernel_model)
    best = plans[0]
    per_batch = [candidate for _, candidate in found.results[1]] if several else []
    chosen = training.network, space.workload, best.cluster, best.plan
    explanation = explain(*chosen, kernel_model, algorithms)
    interval = None if weights is None else step_interval(*chosen, weights, algorithms)

    if out:
        from jaxscale.files import write_table

        write_table([{"rank": i} | candidate_record(plan) for i, plan in enumerate(plans, 1)], out)
    if plot:
        from jaxscale.plots import draw_plans

        draw_plans(plot, per_batch or plans, problem.words)
    if as_json:
        click.echo(json.dumps(_document(problem, found, plans, per_batch, explanation, interval), indent=1))
    else:
        _show(problem, found, plans, per_batch, explanation, interval, terms)


def _each_layer_free(
    space: Space, plans: list[Candidate], algorithms: Any, top: int, kernel_model: KernelModel
) -> list[Candidate]:
    """The best plans once every layer chooses for itself."""
    from jaxscale.engine import GRADIENT_ALGORITHMS
    from jaxscale.search.refine import refine

    algorithms = algorithms or GRADIENT_ALGORITHMS
    refined = refine(space, plans, kernel_model=kernel_model, algorithms=algorithms, top=top)
    note(
        f"layers free to choose: {refined.solved} plans solved, {refined.pruned} ruled out by their bound,"
        f" {refined.unsolved} left open"
    )
    return list(refined.candidates[:top])


def _say_what_was_assumed(model: str | None, cluster: str | None, batch: object, problem: Problem) -> None:
    assumed = []
    if model is None:
        assumed.append(EXAMPLE_MODEL)
    if cluster is None:
        assumed.append(f"--cluster {EXAMPLE_CLUSTER} --gpus {problem.devices}")
    if batch is None:
        assumed.append(f"--batch {problem.batches[0]}")
    if assumed and model is None:
        assumed.append(f"--precision {problem.training.precision}")
        note(f"an example, the same as: jaxscale optimize {' '.join(assumed)}")
    elif assumed:
        note(f"not given, so assumed: {' '.join(assumed)}")


def _document(
    problem: Problem,
    found: Evaluation,
    plans: list[Candidate],
    per_batch: list[Candidate],
    explanation: Explanation,
    interval: Interval | None,
) -> dict[str, Any]:
    from jaxscale import report

    return {
        **problem.record(),
        "plans": list(map(report.candidate_record, plans)),
        "best_per_batch": list(map(report.candidate_record, per_batch)),
        **report.explanation_record(explanation),
        **report.interval_record(interval),
        "search": report.search_record(found),
    }


def _show(
    problem: Problem,
    found: Evaluation,
    plans: list[Candidate],
    per_batch: list[Candidate],
    explanation: Explanation,
    interval: Interval | None,
    terms: bool,
) -> None:
    from jaxscale import report
    from jaxscale.cli.style import results

    def batches(candidates: list[Candidate]) -> dict[str, list[str]]:
        return {"batch": [str(candidate.plan.global_batch_size) for candidate in candidates]}

    console = results()
    ranks = {"rank": [str(rank) for rank in range(1, len(plans) + 1)]}
    title = f"Best plans for {problem.words}"
    console.print(report.plans_table(title, plans, ranks | (batches(plans) if per_batch else {})))
    if per_batch:
        console.print(report.plans_table("Best plan of each batch", per_batch, batches(per_batch)))
    if terms:
        console.print(report.terms_table(plans))
        for name, meaning in report.MEANINGS.items():
            console.print(f"{report.TIME_NAMES[name]}: {meaning}")
        console.print()
    console.print(f"The best, {report.describe_plan(plans[0].plan)}:\n", soft_wrap=True)
    console.print(report.explanation_table(explanation, plans[0].cluster, console.width))
    if interval:
        console.print(report.interval_words(interval), soft_wrap=True)
    console.print(report.search_words(found), soft_wrap=True)
