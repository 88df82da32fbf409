"""Records and tables hold the numbers they are given."""

import json

import jax.numpy as jnp
import numpy as np
import pytest
from machines import cluster
from rich.console import Console

from jaxscale import report
from jaxscale.explain import TIME_LEVERS, Explanation
from jaxscale.nouns import Memory, Prediction, Time
from jaxscale.plans import PlanSpec, parse_plan
from jaxscale.search import Candidate
from jaxscale.tables import number, table

TIME = Time(*map(np.float64, (0.010, 0.020, 0.001, 0.004, 0.005)))
MEMORY = Memory(*map(np.float64, (1e9, 1e9, 2e9, 3e9, 0.5e9, 0.5e9)))


def prediction(factor=1.0):
    time = Time(*(term * factor for term in TIME))
    return Prediction(
        step_time=np.float64(sum(time)),
        time=time,
        gradient_link_time=np.float64(0.007),
        peak_memory=np.float64(sum(MEMORY)),
        memory=MEMORY,
        feasible=np.bool_(True),
        reasons=np.int32(0),
        mfu=np.float64(0.4),
    )


MACHINE = cluster(capacity=16e9, dtype=jnp.float32)
PLAN = PlanSpec(512, 32, dp=4, tp=2, split="model")


def candidate(factor=1.0, **hardware):
    return Candidate(PLAN, hardware, MACHINE, prediction(factor))


def text(renderable, width=160):
    console = Console(width=width, markup=False, highlight=False)
    with console.capture() as captured:
        console.print(renderable)
    return captured.get()


def test_record_is_in_si_units_and_adds_up():
    record = report.candidate_record(candidate(inter_node_bandwidth=25e9))
    assert record["inter_node_bandwidth_bytes_per_s"] == 25e9
    assert record["step_time_s"] == pytest.approx(0.040)
    assert record["samples_per_s"] == pytest.approx(512 / 0.040)
    assert record["hidden_gradient_exchange_s"] == pytest.approx(0.003)
    assert sum(record[f"exposed_{name}_s"] for name in Time._fields) == pytest.approx(record["step_time_s"])
    assert sum(record[f"{name}_bytes"] for name in Memory._fields) == record["peak_memory_bytes"]
    assert (record["devices"], record["num_microbatches"]) == (8, 4)
    assert json.loads(json.dumps(record)) == record


def test_a_plan_is_written_as_it_is_read():
    assert parse_plan(report.describe_plan(PLAN)) == PLAN


def test_hidden_time_is_never_negative():
    shorter = prediction()._replace(gradient_link_time=np.float64(0.001))
    assert report.hidden(shorter) == 0


def test_plans_are_compared_with_the_best():
    shown = text(report.plans_table("Plans", [candidate(), candidate(1.1)], {"rank": ["1", "2"]}))
    first, second = (line for line in shown.splitlines() if "model" in line)
    assert first.split()[-1] == "best"
    assert second.split()[-1] == "+10.00%"
    assert "12,800" in first
    assert "8.00 GB" in first or "8 GB" in first


def test_explanation_shows_every_term():
    elasticities = dict.fromkeys(TIME_LEVERS, 0.0) | {"peak_flops": -0.75, "launch_overhead": 0.25}
    explanation = Explanation(prediction(), elasticities, "fp16", {"ring": 6, "tree": 2})
    shown = text(report.explanation_table(explanation, MACHINE))
    for name in (*report.TIME_NAMES.values(), *Memory._fields, *TIME_LEVERS):
        assert name in shown
    assert "75.0%" in shown
    assert "-0.7500" in shown
    assert "16 GB" in shown
    assert "Gradient messages: 6 by ring, 2 by tree" in shown
    record = report.explanation_record(explanation)
    assert record["bounds"]["compute"] == 0.75
    assert sum(record["bounds"].values()) == 1
    assert all(math_name.isidentifier() for math_name in record["bounds"])


def test_the_peak_is_that_of_the_format_in_use():
    """V100: 15.7 TFLOP/s in FP32, 125 TFLOP/s in FP16 (data sheet)."""
    peaks = jnp.array([15.7e12, 15.7e12, 125e12, 15.7e12, 125e12])
    machine = MACHINE._replace(device=MACHINE.device._replace(peak_flops=peaks))
    for precision, words in (("fp32", "(FP32)  15.7 TFLOP/s"), ("fp16", "(FP16)  125 TFLOP/s")):
        shown = text(report.elasticities_table({"peak_flops": -1.0}, machine, precision))
        assert words in " ".join(shown.split()).replace(") ", ")  ")


@pytest.mark.parametrize(
    ("value", "shown"), [(0.0, "0"), (999.94, "999.9"), (1e6, "1,000,000"), (1e-9, "1e-09")]
)
def test_numbers(value, shown):
    assert number(value) == shown


def test_a_table_does_not_read_markup():
    assert "[red]" in text(table("[red]", ("a",), [("[b]x",)]))
