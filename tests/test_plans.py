"""Plans: their rules, their text form, their lowering."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale import zoo
from jaxscale.errors import InputError
from jaxscale.plans import PlanSpec, parse_plan, split_text

ALEXNET = zoo.build("alexnet")


def test_lowering_gives_floats():
    plan = PlanSpec(2**20, 2**10, dp=16, tp=8, split="classifier", overlap=False).lower(ALEXNET)
    assert all(leaf.dtype == np.float32 for leaf in plan)
    assert plan.split.tolist() == [0, 0, 0, 0, 0, 1, 1, 1]  # five convolutions, three fully connected layers
    assert (float(plan.dp), float(plan.tp), float(plan.overlap)) == (16, 8, 0)


def test_flags_by_layer():
    flags = (True, False) * 4
    assert PlanSpec(64, 8, tp=4, split=flags).flags(ALEXNET) == flags
    with pytest.raises(InputError, match="splits 2 layers, but alexnet has 8"):
        PlanSpec(64, 8, tp=4, split=(True, False)).flags(ALEXNET)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((0, 1), "global_batch_size is 0"),
        ((64, -8), "micro_batch_size is -8"),
        ((64, 8, 0), "dp is 0"),
        ((64, 8.0), "micro_batch_size is 8.0"),
        ((True, 1), "global_batch_size is True"),
        ((4, 1, 8), "global batch 4 is smaller than dp = 8"),
        ((64, 24), "not a multiple of dp x micro-batch = 1 x 24"),
        ((64, 32, 4), "not a multiple of dp x micro-batch = 4 x 32"),
        ((64, 6, 1, 4, "classifier"), "not a multiple"),
        ((60, 6, 1, 4, "classifier"), "tp = 4 does not divide the micro-batch 6"),
        ((64, 8, 1, 2, "modle"), "did you mean 'model'"),
    ],
)
def test_rules(sizes, message):
    with pytest.raises(InputError, match=message):
        PlanSpec(*sizes)


@given(
    micro=st.integers(1, 64),
    count=st.integers(1, 64),
    dp=st.integers(1, 4096),
    tp=st.sampled_from([1, 2, 8]),
    overlap=st.booleans(),
)
def test_text_form_reads_back(micro, count, dp, tp, overlap):
    plan = PlanSpec(micro * count * dp, micro, dp, tp, "model" if tp > 1 else "data", overlap)
    sizes = f"batch={plan.global_batch_size},micro-batch={micro},dp={dp},tp={tp}"
    text = f"{sizes},overlap={'yes' if overlap else 'no'}"
    assert parse_plan(text) == plan
    assert plan.micro_batches == count


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dp", "not of the form key=value"),
        ("dp=2,dp=4", "twice"),
        ("micro-bach=2", "did you mean 'micro-batch'"),
        ("dp=two", "dp is 'two'"),
        ("dp=2", "the plan needs a batch"),
        ("batch=8,overlap=maybe", "unknown overlap 'maybe'"),
    ],
)
def test_text_that_is_no_plan(text, message):
    with pytest.raises(InputError, match=message):
        parse_plan(text)


def test_a_split_layer_by_layer_reads_back():
    plan = parse_plan("batch=64,dp=2,tp=4,split=ddddmddm")
    assert plan.flags(ALEXNET) == (False,) * 4 + (True, False, False, True)
    assert split_text(plan.split) == "ddddmddm"
