"""Plans, predictions and their explanation as records for machines and tables for people."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import starmap
from typing import TYPE_CHECKING, Any

from jaxscale.explain import bounds
from jaxscale.levers import LEVERS
from jaxscale.nouns import PRECISIONS
from jaxscale.plans import split_text
from jaxscale.tables import number, table
from jaxscale.units import format_quantity

if TYPE_CHECKING:
    from rich.table import Table

    from jaxscale.explain import Explanation, Interval
    from jaxscale.nouns import Cluster, Memory, Prediction
    from jaxscale.plans import PlanSpec
    from jaxscale.search import Candidate, Evaluation

TIME_NAMES = {
    "forward": "forward",
    "backward": "backward",
    "activation_exchange": "activation exchange",
    "gradient_exchange": "gradient exchange",
    "update": "weight update",
}
"""Exposed terms of a step, by field of `Time`."""

MEANINGS = {
    "forward": "kernels of the forward pass, all micro-batches",
    "backward": "kernels of the backward pass, all micro-batches",
    "activation_exchange": "activations and their gradients within a group, while nothing computes",
    "gradient_exchange": "gradients between replicas, as far as the backward pass does not hide them",
    "update": "the optimizer's pass over the weights",
}

SI_UNITS = {
    "bandwidth": "bytes_per_s",
    "flop_rate": "flop_per_s",
    "frequency": "hz",
    "time": "s",
    "memory": "bytes",
}
"""How the unit of a dimension ends the name of a column."""


def split_name(split: str | Sequence[bool], tp: int = 2) -> str:
    """What a plan's assignment of layers is called: data, model, classifier or mixed.

    >>> split_name((True, False, True)), split_name("model"), split_name("model", tp=1)
    ('mixed (2 of 3)', 'model', 'data')
    """
    if tp == 1:
        return "data"
    return split if isinstance(split, str) else f"mixed ({sum(split)} of {len(split)})"


def lever_column(name: str) -> str:
    """The name of a lever's column, unit included.

    >>> lever_column("inter_node_bandwidth"), lever_column("launch_overhead")
    ('inter_node_bandwidth_bytes_per_s', 'launch_overhead_s')
    """
    return f"{name}_{SI_UNITS[LEVERS[name].dimension]}"


def plan_record(plan: PlanSpec) -> dict[str, Any]:
    """A plan as plain values."""
    return {
        "global_batch_size": plan.global_batch_size,
        "devices": plan.devices,
        "dp": plan.dp,
        "tp": plan.tp,
        "split": split_name(plan.split, plan.tp),
        "micro_batch_size": plan.micro_batch_size,
        "num_microbatches": plan.micro_batches,
        "overlap": plan.overlap,
    }


def prediction_record(plan: PlanSpec, prediction: Prediction) -> dict[str, Any]:
    """What a plan costs as plain values in SI units, the unit in each name."""
    step = float(prediction.step_time)
    return {
        "step_time_s": step,
        "samples_per_s": plan.global_batch_size / step,
        "mfu": float(prediction.mfu),
        **{f"exposed_{name}_s": float(value) for name, value in prediction.time._asdict().items()},
        "hidden_gradient_exchange_s": hidden(prediction),
        "peak_memory_bytes": float(prediction.peak_memory),
        **{f"{name}_bytes": float(value) for name, value in prediction.memory._asdict().items()},
        "feasible": bool(prediction.feasible),
    }


def candidate_record(candidate: Candidate) -> dict[str, Any]:
    """A plan, the hardware that was varied, and what it costs."""
    hardware = {lever_column(name): value for name, value in candidate.hardware.items()}
    plan = candidate.plan
    return hardware | plan_record(plan) | prediction_record(plan, candidate.prediction)


def hidden(prediction: Prediction) -> float:
    """s that gradient messages occupy links while the devices compute."""
    return max(float(prediction.gradient_link_time) - float(prediction.time.gradient_exchange), 0.0)


def plans_table(
    title: str,
    candidates: Sequence[Candidate],
    leading: Mapping[str, Sequence[str]],
    best: float | None = None,
) -> Table:
    """Plans side by side.

    Args:
        title: above the table.
        candidates: one row each.
        leading: cells of the columns before the plan's own.
        best: s per sample that the rows are compared with; the best of them when None.
    """
    columns = (
        *leading,
        *("devices", "dp", "tp", "split", "micro-\nbatch", "micro-\nbatches", "overlap"),
        *("step", "samples/s", "memory", "MFU", "slower"),
    )
    if best is None:
        best = min(map(per_sample, candidates), default=1.0)
    rows = [
        (*first, *plan_cells(candidate.plan), *prediction_cells(candidate, best))
        for first, candidate in zip(zip(*leading.values(), strict=True), candidates, strict=True)
    ]
    return table(title, columns, rows, left=(len(leading) + 3,))


def plan_cells(plan: PlanSpec) -> tuple[str, ...]:
    """Devices, dp, tp, split, micro-batch, micro-batches, overlap."""
    sizes = (plan.devices, plan.dp, plan.tp)
    split = split_name(plan.split, plan.tp)
    overlap = "yes" if plan.overlap else "no"
    return (*map(str, sizes), split, str(plan.micro_batch_size), str(plan.micro_batches), overlap)


def prediction_cells(candidate: Candidate, best: float) -> tuple[str, ...]:
    """Step, samples/s, memory, MFU, and the slowdown against `best` s per sample."""
    prediction = candidate.prediction
    slower = per_sample(candidate) / best - 1
    return (
        format_quantity(float(prediction.step_time), "time"),
        number(1 / per_sample(candidate)),
        format_quantity(float(prediction.peak_memory), "memory"),
        f"{float(prediction.mfu):.1%}",
        "best" if slower < 5e-6 else f"+{slower:.2%}",
    )


def per_sample(candidate: Candidate) -> float:
    """s per sample."""
    return float(candidate.prediction.step_time) / candidate.plan.global_batch_size


def prediction_words(plan: PlanSpec, prediction: Prediction) -> str:
    """Devices, step, throughput, utilization and memory in one line."""
    step, peak = float(prediction.step_time), float(prediction.peak_memory)
    return (
        f"{plan.devices} devices, {plan.micro_batches} micro-batches,"
        f" {format_quantity(step, 'time')} per step, {number(plan.global_batch_size / step)} samples/s,"
        f" MFU {float(prediction.mfu):.1%}, {format_quantity(peak, 'memory')} per device"
    )


def time_table(prediction: Prediction) -> Table:
    """The exposed terms of a step, which add up to it, and what is hidden behind them."""
    step = float(prediction.step_time)
    terms = [(TIME_NAMES[name], float(value)) for name, value in prediction.time._asdict().items()]
    rows = [(name, format_quantity(value, "time"), f"{value / step:.1%}") for name, value in terms]
    rows.append(("step", format_quantity(step, "time"), "100.0%"))
    rows.append(("(gradients hidden)", format_quantity(hidden(prediction), "time"), ""))
    return table("Time", ("exposed", "per step", "share"), rows)


def memory_table(memory: Memory, capacity: float) -> Table:
    """The terms of the peak, which add up to it, against the capacity of a device."""
    terms = [(name, float(value)) for name, value in memory._asdict().items()]
    terms.append(("peak", sum(value for _, value in terms)))

    def row(name: str, value: float) -> tuple[str, str, str]:
        return name, format_quantity(value, "memory"), f"{value / capacity:.1%}"

    rows = [*starmap(row, terms), ("capacity", format_quantity(capacity, "memory"), "100.0%")]
    return table("Memory", ("held", "per device", "of capacity"), rows)


def bounds_table(shares: Mapping[str, float]) -> Table:
    """What the step waits for, largest first."""
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    return table(
        "Bound by", ("resource", "of step"), [(name, f"{_cleared(share):.1%}") for name, share in ordered]
    )


def elasticities_table(elasticities: Mapping[str, float], cluster: Cluster, precision: str) -> Table:
    """By how many percent the step grows when a lever grows by one percent.

    Args:
        elasticities: from `explain`.
        cluster: where the plan runs.
        precision: format of the matrix kernels, whose peak is shown; the peaks of all formats move together.
    """
    rows = []
    for name, elasticity in elasticities.items():
        label, value = name, LEVERS[name].get(cluster)
        if name == "peak_flops":
            label = f"{name} ({precision.upper()})"
            value = cluster.device.peak_flops[PRECISIONS.index(precision)]
        shown = format_quantity(float(value), LEVERS[name].dimension) if value > 0 else "absent"
        rows.append((label, shown, f"{elasticity:+.4f}" if _cleared(elasticity) else "0"))
    return table("Elasticities", ("lever", "now", "d log step / d log lever"), rows)


SIDE_BY_SIDE = 105
"""Columns of a terminal from which the tables of an explanation stand in pairs."""


def explanation_table(explanation: Explanation, cluster: Cluster, columns: int = SIDE_BY_SIDE) -> Table:
    """Where the time goes, what fills the memory, what bounds the step and what would change it.

    Args:
        explanation: from `explain`.
        cluster: where the plan runs.
        columns: width of the terminal.
    """
    from rich.table import Table

    prediction = explanation.prediction
    tables = (
        time_table(prediction),
        memory_table(prediction.memory, float(cluster.device.memory_capacity)),
        bounds_table(bounds(explanation.elasticities)),
        elasticities_table(explanation.elasticities, cluster, explanation.precision),
    )
    grid = Table.grid(padding=(0, 5))
    in_a_row = 2 if columns >= SIDE_BY_SIDE else 1
    for first in range(0, len(tables), in_a_row):
        grid.add_row(*tables[first : first + in_a_row])
    if explanation.gradients_by:
        by = ", ".join(f"{count} by {name}" for name, count in explanation.gradients_by.items())
        grid.add_row(f"Gradient messages: {by}")
    return grid


def explanation_record(explanation: Explanation) -> dict[str, Any]:
    """What bounds a plan, as plain values."""
    return {
        "elasticities": explanation.elasticities,
        "gradient_messages_by": explanation.gradients_by,
        "bounds": {
            name.replace(" ", "_").replace("-", "_"): share
            for name, share in bounds(explanation.elasticities).items()
        },
    }


def interval_record(interval: Interval | None) -> dict[str, Any]:
    """How sure the step time is, as plain values; nothing where nobody knows."""
    if interval is None:
        return {}
    ends = {f"step_time_{level:.0%}_s".replace("%", ""): list(pair) for level, pair in interval.ends.items()}
    return {**ends, "unmeasured_kernels": list(interval.unmeasured)}


def interval_words(interval: Interval) -> str:
    """The same in words."""
    words = " and ".join(
        f"{format_quantity(low, 'time')} to {format_quantity(high, 'time')} ({level:.0%})"
        for level, (low, high) in interval.ends.items()
    )
    said = f"By the doubt about its kernels, a step takes {words}."
    if interval.unmeasured:
        names = ", ".join(name.replace("_", " ") for name in interval.unmeasured)
        said += f" Nothing like these kernels was measured in this format on this generation: {names}."
    return said


def search_record(found: Evaluation) -> dict[str, Any]:
    """How much was judged in how long."""
    return {
        "candidates": found.candidates,
        "seconds": found.seconds,
        "compile_seconds": found.compile_seconds,
    }


def search_words(found: Evaluation) -> str:
    """The same in words."""
    return (
        f"{found.candidates:,} candidates judged in {format_quantity(found.seconds, 'time')},"
        f" after {format_quantity(found.compile_seconds, 'time')} of compilation"
    )


def terms_table(candidates: Sequence[Candidate]) -> Table:
    """The exposed terms of every plan, so that the plans can be told apart."""
    rows = [
        (str(rank), *(format_quantity(float(value), "time") for value in candidate.prediction.time))
        for rank, candidate in enumerate(candidates, 1)
    ]
    return table("Exposed time of each plan", ("rank", *TIME_NAMES.values()), rows, left=())


def describe_plan(plan: PlanSpec) -> str:
    """A plan in the words that `jaxscale predict --plan` reads, where it has a name.

    >>> from jaxscale.plans import PlanSpec
    >>> describe_plan(PlanSpec(512, 32, dp=4, tp=2, split="model"))
    'batch=512,dp=4,tp=2,micro-batch=32,split=model,overlap=yes'
    """
    return (
        f"batch={plan.global_batch_size},dp={plan.dp},tp={plan.tp},micro-batch={plan.micro_batch_size},"
        f"split={split_text(plan.split) if plan.tp > 1 else 'data'},overlap={'yes' if plan.overlap else 'no'}"
    )


def _cleared(value: float) -> float:
    """Without the sign of a zero."""
    return value if abs(value) >= 5e-5 else 0.0
