"""Quantities with units, as people write them: "900 GB/s", "312 TFLOP/s", "5 us", "16 GiB", "$20M".

Everything inside jaxscale is in SI units; text is converted here, at the edge, and nowhere else. The parser
is strict because the usual spellings differ by one letter: "900 GB/s" is bytes, "900 Gb/s" is bits, and
"900 G" is refused. Prefixes are decimal (1 GB = 1e9 B); the binary ones are written Ki, Mi, Gi, Ti, Pi.
"""

from __future__ import annotations

import difflib
import math
import re
from decimal import Decimal
from itertools import accumulate, repeat
from typing import NamedTuple

from jaxscale.errors import InputError, choose

MAX_POINTS = 1_000_000
DEFAULT_POINTS = 9

_UP = {"": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12", "P": "1e15", "E": "1e18"}
_DOWN = {"": "1", "n": "1e-9", "u": "1e-6", "µ": "1e-6", "m": "1e-3"}
_BINARY = {f"{p}i": str(2**power) for p, power in zip("KMGTP", range(10, 60, 10), strict=True)}
_BYTES = _UP | _BINARY
_DECIMAL_NAMES = "k, M, G, T, P, E"
_BYTE_NAMES = f"{_DECIMAL_NAMES} or Ki, Mi, Gi, Ti, Pi"


class Dimension(NamedTuple):
    """The units of one kind of quantity."""

    units: dict[str, Decimal]
    """SI value of every unit that is read, prefixes included."""
    ladder: tuple[str, ...]
    """Units that are written, in ascending order."""
    allowed: str
    """For messages: the units in words."""


def _prefixed(unit: str, prefixes: dict[str, str], value: str = "1") -> dict[str, Decimal]:
    return {prefix + unit: Decimal(scale) * Decimal(value) for prefix, scale in prefixes.items()}


def _up(unit: str) -> tuple[str, ...]:
    return tuple(p + unit for p in _UP)


_DURATIONS = _prefixed("s", _DOWN) | {"min": Decimal(60), "h": Decimal(3600), "d": Decimal(86400)}
_DOLLARS = {"": "1", "k": "1e3", "M": "1e6", "B": "1e9"}

DIMENSIONS = {
    "bandwidth": Dimension(
        _prefixed("B/s", _BYTES) | _prefixed("b/s", _BYTES, "0.125"),
        _up("B/s"),
        f"B/s (bytes) or b/s (bits), after {_BYTE_NAMES} or nothing",
    ),
    "memory": Dimension(
        _prefixed("B", _BYTES) | _prefixed("b", _BYTES, "0.125"),
        _up("B"),
        f"B (bytes) or b (bits), after {_BYTE_NAMES} or nothing",
    ),
    "flop_rate": Dimension(
        _prefixed("FLOP/s", _UP) | _prefixed("FLOPS", _UP),
        _up("FLOP/s"),
        f"FLOP/s or FLOPS, after {_DECIMAL_NAMES} or nothing",
    ),
    "flops": Dimension(
        _prefixed("FLOPs", _UP) | _prefixed("FLOP", _UP),
        _up("FLOPs"),
        f"FLOPs, after {_DECIMAL_NAMES} or nothing",
    ),
    "time": Dimension(_DURATIONS, ("ns", "us", "ms", "s", "min", "h", "d"), "ns, us, ms, s, min, h, d"),
    "frequency": Dimension(_prefixed("Hz", _UP), _up("Hz"), f"Hz, after {_DECIMAL_NAMES} or nothing"),
    "power": Dimension(_prefixed("W", _UP), _up("W"), f"W, after {_DECIMAL_NAMES} or nothing"),
    "money": Dimension(
        _prefixed("", _DOLLARS) | _prefixed("$", _DOLLARS) | _prefixed("USD", _DOLLARS),
        tuple(_DOLLARS),
        "US dollars such as $950, $20M or 1.5k USD",
    ),
    "count": Dimension({"": Decimal(1)}, ("",), "a whole number without a unit"),
    "number": Dimension({"": Decimal(1)}, ("",), "a number without a unit"),
}
"""Every kind of quantity that can be read, by name."""

_RANGES = "start:stop, start:stop:xFACTOR, start:stop:+STEP, or values separated by commas"

_QUANTITY = re.compile(
    r"(?P<number>[+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][+-]?[0-9]+)?|[+-]?inf)(?P<unit>.*)"
)


def parse_quantity(
    text: str, dimension: str, *, allow_zero: bool = False, allow_infinite: bool = False
) -> float:
    """Read one quantity and return it in SI units (bytes, seconds, FLOP/s, Hz, W, US dollars).

    Args:
        text: a number and its unit; space between the two is optional.
        dimension: what is being read, one of `DIMENSIONS`.
        allow_zero: accept zero, as for a latency.
        allow_infinite: accept "inf", as for a rate that never limits.

    Raises:
        InputError: no number, a unit that this dimension does not have, or a value that is negative, not a
            number, zero or infinite where that is not allowed.

    >>> parse_quantity("900 GB/s", "bandwidth"), parse_quantity("900 Gb/s", "bandwidth")
    (900000000000.0, 112500000000.0)
    >>> parse_quantity("5us", "time"), parse_quantity("$20M", "money")
    (5e-06, 20000000.0)
    >>> parse_quantity("900 G", "bandwidth")
    Traceback (most recent call last):
    jaxscale.errors.InputError: unknown unit 'G' in the bandwidth '900 G', did you mean ...
    """
    choose("dimension", dimension, DIMENSIONS)
    units = DIMENSIONS[dimension].units
    match = _QUANTITY.fullmatch(_dollar_last(text.strip()) if dimension == "money" else text.strip())
    if match is None:
        allowed = DIMENSIONS[dimension].allowed
        raise InputError(f"the {_named(text, dimension)} does not start with a number, allowed: {allowed}")
    number, unit = match["number"], "".join(match["unit"].split())
    if unit not in units and not (unit == "" and number.endswith("inf")):
        raise InputError(_unit_message(text, unit, dimension))
    value = float(number)
    if math.isfinite(value) and value != 0:
        # Decimal scales exactly, so "5 us" is the float 5e-06 and not its neighbour.
        value = float(Decimal(number) * units[unit])
    _check(value, text, dimension, allow_zero, allow_infinite)
    return value


def parse_range(text: str, dimension: str, *, allow_zero: bool = False) -> tuple[float, ...]:
    """Read the values of a sweep and return them in SI units, distinct.

    "1,2,4" is a list, "64:8192:x2" multiplies, "64:512:+64" adds, "10GB/s:200GB/s" stands for nine points in
    equal ratios (for a count: doublings), and a single quantity for itself. Ranges stop at the last
    point that is not beyond the upper bound; points of a count are rounded to whole numbers.

    Raises:
        InputError: a quantity that `parse_quantity` refuses, reversed bounds, a step of zero, a factor of one
            or less, a value given twice, or more than `MAX_POINTS` points.

    >>> parse_range("64:512:x2", "count")
    (64.0, 128.0, 256.0, 512.0)
    >>> parse_range("1 us, 5 us", "time")
    (1e-06, 5e-06)
    """
    if ":" not in text:
        values = [parse_quantity(item, dimension, allow_zero=allow_zero) for item in text.split(",")]
        if len(set(values)) < len(values):
            raise InputError(f"the list {text!r} gives a value twice, each may be given once")
        return tuple(values)
    parts = [part.strip() for part in text.split(":")]
    if len(parts) > 3 or (len(parts) == 3 and parts[2][:1] not in ("x", "+")):
        raise InputError(f"cannot read the range {text!r}, allowed: {_RANGES}")
    start = parse_quantity(parts[0], dimension, allow_zero=allow_zero)
    stop = parse_quantity(parts[1], dimension, allow_zero=allow_zero)
    if start > stop:
        raise InputError(f"the range {text!r} starts above its end, the smaller bound comes first")
    if parts[2:] and parts[2][0] == "+":
        points = _arithmetic(text, start, stop, parse_quantity(parts[2][1:], dimension))
    elif start == 0:
        raise InputError(f"the range {text!r} multiplies and cannot start at zero, allowed: start:stop:+STEP")
    elif parts[2:]:
        points = _geometric(text, start, stop, parse_quantity(parts[2][1:], "number"))
    else:
        points = _geometric(text, start, stop, 2.0) if dimension == "count" else _spaced(start, stop)
    return tuple(dict.fromkeys(float(round(p)) for p in points) if dimension == "count" else points)


def format_quantity(value: float, dimension: str) -> str:
    """Write a value in SI units with three significant digits and the unit that suits its size.

    >>> format_quantity(0.00123, "time"), format_quantity(312e12, "flop_rate"), format_quantity(2e7, "money")
    ('1.23 ms', '312 TFLOP/s', '$20M')
    """
    choose("dimension", dimension, DIMENSIONS)
    units, ladder, _ = DIMENSIONS[dimension]
    if dimension == "count" and math.isfinite(value):
        return f"{value:.0f}"
    sign, size = ("-" if value < 0 else ""), abs(value)
    if not math.isfinite(size) or size == 0:
        unit, shown = next(u for u in ladder if units[u] == 1), f"{size:g}"
    else:
        rounded = Decimal(f"{size:.3g}")
        unit = max((u for u in ladder if units[u] <= rounded), key=units.__getitem__, default=ladder[0])
        shown = f"{float(Decimal(size) / units[unit]):.3g}"
    return f"{sign}${shown}{unit}" if dimension == "money" else f"{sign}{shown} {unit}".rstrip()


def _dollar_last(text: str) -> str:
    """Moves the sign of "$20M" to where units stand."""
    return text[1:].lstrip() + "$" if text.startswith("$") else text


def _named(text: str, dimension: str) -> str:
    return f"{dimension.replace('_', ' ')} {text!r}"


def _unit_message(text: str, unit: str, dimension: str) -> str:
    units, _, allowed = DIMENSIONS[dimension]
    if unit == "":
        return f"the {_named(text, dimension)} has no unit, allowed: {allowed}"
    # Case is ignored here alone, so that "gb/s" is answered with both of its meanings.
    likeness = {u: difflib.SequenceMatcher(None, unit.lower(), u.lower()).ratio() for u in units}
    best = max(likeness.values())
    close = [repr(u) for u in units if likeness[u] == best and best >= 0.4][:2]
    hint = f", did you mean {' or '.join(close)}" if close else ""
    return f"unknown unit {unit!r} in the {_named(text, dimension)}{hint} (allowed: {allowed})"


def _check(value: float, text: str, dimension: str, allow_zero: bool, allow_infinite: bool) -> None:
    if value < 0:
        raise InputError(f"the {_named(text, dimension)} is negative, it must be positive")
    if value == 0 and not allow_zero:
        raise InputError(f"the {_named(text, dimension)} is zero, it must be positive")
    if math.isinf(value) and not allow_infinite:
        raise InputError(f"the {_named(text, dimension)} is infinite, it must be finite")
    if dimension == "count" and math.isfinite(value) and value != int(value):
        raise InputError(f"the {_named(text, dimension)} is not a whole number")


def _spaced(start: float, stop: float) -> list[float]:
    ratio = (math.log(stop) - math.log(start)) / (DEFAULT_POINTS - 1)
    inner = [start * math.exp(ratio * k) for k in range(1, DEFAULT_POINTS - 1)]
    return [start, *inner, stop] if start < stop else [start]


def _geometric(text: str, start: float, stop: float, factor: float) -> list[float]:
    if factor <= 1:
        raise InputError(f"the factor of the range {text!r} must be above 1")
    steps = _steps(text, (math.log(stop) - math.log(start)) / math.log(factor))
    return list(accumulate(repeat(factor, steps), lambda value, by: min(value * by, stop), initial=start))


def _arithmetic(text: str, start: float, stop: float, step: float) -> list[float]:
    steps = _steps(text, (stop - start) / step)
    return [min(start + k * step, stop) for k in range(steps + 1)]


def _steps(text: str, steps: float) -> int:
    if steps >= MAX_POINTS:
        raise InputError(f"the range {text!r} has over {MAX_POINTS:,} points, a wider step gives fewer")
    return int(steps + 1e-9)
