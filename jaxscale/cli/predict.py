"""`jaxscale predict`: time, memory and bottleneck of one plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import click

from jaxscale.cli import options
from jaxscale.cli.options import Counts
from jaxscale.errors import InfeasibleError

if TYPE_CHECKING:
    from jaxscale.nouns import Cluster, Prediction
    from jaxscale.plans import PlanSpec


@click.command()
@click.argument("model")
@click.option(
    "--plan", "text", required=True, metavar="PLAN", help="dp=8,tp=2,micro-batch=32,split=model,overlap=no"
)
@options.cluster_options
@click.option(
    "--gpus", type=Counts(options.MOST_DEVICES, single=True), metavar="N", help="As many as the plan uses."
)
@click.option(
    "--batch", type=Counts(options.MOST_SAMPLES, single=True), metavar="B", help="Samples per step."
)
@options.training_options
@options.model_options
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def command(model, text, cluster, network, gpus, batch, algorithms, kernels, as_json, **given):
    """Predict one plan for MODEL, a network of the zoo or an .onnx file.

    A plan names dp (replicas), tp (devices per replica), micro-batch (samples per replica at a time),
    split (data, model or classifier) and overlap (yes or no).
    """
    if cluster is None:
        raise click.UsageError("Missing option '--cluster'.")
    options.require_cluster(cluster, network)
    trained = options.read_model(model, given.pop("image_size"), given.pop("classes"))
    from jaxscale.runtime import use_compilation_cache

    use_compilation_cache()
    from jaxscale import hardware_db, report
    from jaxscale.cli.problem import Training, note_format
    from jaxscale.explain import explain, step_interval
    from jaxscale.kernels import Roofline
    from jaxscale.kernels.weights import find_weights
    from jaxscale.plans import parse_plan

    weights = find_weights(kernels)
    plan = parse_plan(text, batch)
    training = Training(trained, **given)
    # A plan fills nodes as the devices of a search do, also where --gpus offers more of them.
    parts = hardware_db.cluster_parts(cluster, plan.devices, network)
    note_format(training.precision, parts)
    built = hardware_db.cluster(cluster, gpus or plan.devices, network)
    chosen = training.network, training.workload(), built, plan
    explanation = explain(*chosen, Roofline() if weights is None else weights.learned, algorithms)
    interval = None if weights is None else step_interval(*chosen, weights, algorithms)
    prediction = explanation.prediction
    if as_json:
        document = {
            **training.record(),
            "cluster": cluster,
            "plan": report.plan_record(plan),
            **report.prediction_record(plan, prediction),
            **report.explanation_record(explanation),
            **report.interval_record(interval),
        }
        click.echo(json.dumps(document, indent=1))
    else:
        from jaxscale.cli.style import results

        console = results()
        console.print(f"{training.network.name} on {cluster}, {report.describe_plan(plan)}:", soft_wrap=True)
        console.print(report.prediction_words(plan, prediction) + "\n", soft_wrap=True)
        console.print(report.explanation_table(explanation, built, console.width))
        if interval:
            console.print(report.interval_words(interval), soft_wrap=True)
    if not prediction.feasible:
        raise InfeasibleError(_why_not(plan, prediction, built))


def _why_not(plan: PlanSpec, prediction: Prediction, cluster: Cluster) -> str:
    from jaxscale.explain import reasons
    from jaxscale.units import format_quantity

    capacity, devices = float(cluster.device.memory_capacity), int(cluster.nodes * cluster.gpus_per_node)
    peak = float(prediction.peak_memory)
    broken = {
        "memory": f"it needs {format_quantity(peak, 'memory')} per device, which has"
        f" {format_quantity(capacity, 'memory')}: {format_quantity(peak - capacity, 'memory')} too much",
        "gpus": f"it uses {plan.devices} devices of {devices}",
    }
    return "the plan does not fit: " + " and ".join(broken[reason] for reason in reasons(prediction))
