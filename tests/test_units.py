"""Quantities: what each spelling means, what is refused, and that writing and reading agree."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jaxscale.errors import InputError
from jaxscale.units import DIMENSIONS, MAX_POINTS, format_quantity, parse_quantity, parse_range

READ = [
    ("900 GB/s", "bandwidth", 900e9),
    ("900 Gb/s", "bandwidth", 112.5e9),
    ("2.5e12 B/s", "bandwidth", 2.5e12),
    ("1GiB/s", "bandwidth", 1024**3),
    ("312 TFLOP/s", "flop_rate", 312e12),
    ("312 TFLOPS", "flop_rate", 312e12),
    ("3 GFLOPs", "flops", 3e9),
    ("5 us", "time", 5e-6),
    ("5µs", "time", 5e-6),
    ("90 min", "time", 5400.0),
    ("2 d", "time", 172800.0),
    ("16 GiB", "memory", 17179869184.0),
    ("16 GB", "memory", 16e9),
    ("16 Gb", "memory", 2e9),
    ("1.38 GHz", "frequency", 1.38e9),
    ("300 W", "power", 300.0),
    ("$20M", "money", 20e6),
    ("20M USD", "money", 20e6),
    ("20M", "money", 20e6),
    (" $ 1.5k ", "money", 1500.0),
    ("4096", "count", 4096.0),
    ("1e6", "count", 1e6),
    (".5", "number", 0.5),
]


@pytest.mark.parametrize(("text", "dimension", "expected"), READ)
def test_each_spelling_means_what_it_says(text, dimension, expected):
    assert parse_quantity(text, dimension) == expected


REFUSED = [
    ("900 G", "bandwidth", "unknown unit 'G'.* did you mean 'GB/s' or 'Gb/s'"),
    ("900 gb/s", "bandwidth", "did you mean 'GB/s' or 'Gb/s'"),
    ("900 GB", "bandwidth", "did you mean 'GB/s'"),
    ("900", "bandwidth", "has no unit, allowed: B/s"),
    ("312 TFLOP", "flop_rate", "did you mean"),
    ("nan GB/s", "bandwidth", "does not start with a number"),
    ("GB/s", "bandwidth", "does not start with a number"),
    ("", "time", "does not start with a number"),
    ("\u0661 s", "time", "does not start with a number"),
    ("1,000 s", "time", "unknown unit"),
    ("inf", "bandwidth", "is infinite"),
    ("inf GB/s", "bandwidth", "is infinite"),
    ("-inf s", "time", "is negative"),
    ("1e400 B", "memory", "is infinite"),
    ("1e308 TB", "memory", "is infinite"),
    ("1e99999999999999999999 B", "memory", "is infinite"),
    ("1e-400 s", "time", "is zero"),
    ("0 GB/s", "bandwidth", "is zero"),
    ("-1 GB/s", "bandwidth", "is negative"),
    ("$-3", "money", "is negative"),
    ("8k", "count", "unknown unit 'k'.*whole number"),
    ("4.5", "count", "not a whole number"),
    ("5 us", "duration", "unknown dimension"),
]


@pytest.mark.parametrize(("text", "dimension", "message"), REFUSED)
def test_bad_quantities_are_refused_in_one_sentence(text, dimension, message):
    with pytest.raises(InputError, match=message) as refusal:
        parse_quantity(text, dimension)
    assert "\n" not in str(refusal.value)


def test_zero_and_infinity_are_read_where_they_have_a_meaning():
    assert parse_quantity("0 us", "time", allow_zero=True) == 0.0
    assert parse_quantity("inf", "flop_rate", allow_infinite=True) == math.inf
    assert parse_quantity("inf TFLOP/s", "flop_rate", allow_infinite=True) == math.inf


@given(st.text(max_size=20), st.sampled_from(sorted(DIMENSIONS)))
def test_any_text_is_read_or_refused(text, dimension):
    for parse in (parse_quantity, parse_range):
        try:
            parse(text, dimension)
        except InputError as refusal:
            assert str(refusal)


@given(
    value=st.floats(min_value=1e-30, max_value=1e30),
    unit=st.sampled_from([(name, u) for name, d in DIMENSIONS.items() for u in d.units if name != "count"]),
)
def test_every_unit_scales_exactly(value, unit):
    dimension, symbol = unit
    expected = value * float(DIMENSIONS[dimension].units[symbol])
    assert parse_quantity(f"{value!r} {symbol}", dimension) == pytest.approx(expected, rel=1e-15)


@given(st.floats(min_value=1e-12, max_value=1e24), st.sampled_from(sorted(set(DIMENSIONS) - {"count"})))
def test_what_is_written_reads_back_to_three_digits(value, dimension):
    assert parse_quantity(format_quantity(value, dimension), dimension) == pytest.approx(value, rel=5.1e-3)


@given(st.integers(min_value=1, max_value=10**15))
def test_counts_read_back_exactly(value):
    assert parse_quantity(format_quantity(value, "count"), "count") == value


@pytest.mark.parametrize(
    ("value", "dimension", "expected"),
    [
        (1.234e-3, "time", "1.23 ms"),
        (25.6e9, "memory", "25.6 GB"),
        (312e12, "flop_rate", "312 TFLOP/s"),
        (999.96e6, "bandwidth", "1 GB/s"),
        (59.99, "time", "1 min"),
        (5400.0, "time", "1.5 h"),
        (20e6, "money", "$20M"),
        (0.0, "time", "0 s"),
        (math.inf, "time", "inf s"),
        (math.nan, "memory", "nan B"),
        (-3e-3, "time", "-3 ms"),
        (4096, "count", "4096"),
    ],
)
def test_written_form(value, dimension, expected):
    assert format_quantity(value, dimension) == expected


@pytest.mark.parametrize(
    ("text", "dimension", "expected"),
    [
        ("64:512:x2", "count", (64, 128, 256, 512)),
        ("64:500:x2", "count", (64, 128, 256)),
        ("64:512", "count", (64, 128, 256, 512)),
        ("64:256:+64", "count", (64, 128, 192, 256)),
        ("1:6:x1.5", "count", (1, 2, 3, 5)),
        ("1,2,4", "count", (1, 2, 4)),
        ("8", "count", (8,)),
        ("1 us:2 us:+0.5us", "time", (1e-6, 1.5e-6, 2e-6)),
        ("5us : 5us", "time", (5e-6,)),
        ("1e-300 s:1e300 s:x1e300", "time", (1e-300, 1.0, 1e300)),
    ],
)
def test_ranges(text, dimension, expected):
    assert parse_range(text, dimension) == pytest.approx(expected)


def test_two_bounds_alone_give_equal_ratios():
    values = parse_range("10GB/s:200GB/s", "bandwidth")
    ratios = [after / before for before, after in pairwise(values)]
    assert (values[0], values[-1], len(values)) == (10e9, 200e9, 9)
    assert ratios == pytest.approx([20 ** (1 / 8)] * 8)


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(1, 10**6))
def test_additive_ranges_equal_pythons(start, span, step):
    if span / step < MAX_POINTS:
        expected = tuple(range(start, start + span + 1, step))
        assert parse_range(f"{start}:{start + span}:+{step}", "count") == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("512:64", "starts above its end"),
        ("1:9:+0", "is zero"),
        ("1:9:x1", "must be above 1"),
        ("1:9:x0.5", "must be above 1"),
        ("1:9:xinf", "is infinite"),
        ("1:9:3", "cannot read the range.*start:stop:xFACTOR"),
        ("1:9:x2:x2", "cannot read the range"),
        ("1:1e9:+1", "over 1,000,000 points"),
        ("1:1e9:x1.000000001", "over 1,000,000 points"),
        ("1,1", "twice"),
        ("1,,2", "does not start with a number"),
        (":", "does not start with a number"),
    ],
)
def test_bad_ranges_are_refused(text, message):
    with pytest.raises(InputError, match=message):
        parse_range(text, "count")


def test_a_range_from_zero_can_only_add():
    assert parse_range("0 us:2 us:+1us", "time", allow_zero=True) == pytest.approx((0, 1e-6, 2e-6))
    with pytest.raises(InputError, match="cannot start at zero"):
        parse_range("0 us:2 us:x2", "time", allow_zero=True)
