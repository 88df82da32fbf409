"""What jaxscale raises, and how it words it: what was given, what is allowed, the closest match."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class InputError(ValueError):
    """The caller gave something that jaxscale cannot use; the message is one sentence for a person."""

    exit_code = 2


class InfeasibleError(Exception):
    """The question was well formed and no plan answers it."""

    exit_code = 1


def choose(kind: str, given: str, allowed: Iterable[str]) -> str:
    """Return `given` when it is one of `allowed`, otherwise raise with the closest match.

    Args:
        kind: what is being named, for the message ("network", "device").
        given: the name that the caller wrote; case is ignored.
        allowed: every name there is.

    Raises:
        InputError: `given` is not among `allowed`.

    >>> choose("network", "ResNet50", ["resnet50", "vgg16"])
    'resnet50'
    >>> choose("network", "resnet5", ["resnet50", "vgg16"])
    Traceback (most recent call last):
    jaxscale.errors.InputError: unknown network 'resnet5': did you mean 'resnet50'? (2 known: resnet50, vgg16)
    """
    names = sorted(allowed)
    folded = {name.lower(): name for name in names}
    if given.lower() in folded:
        return folded[given.lower()]
    close = difflib.get_close_matches(given.lower(), folded, n=1, cutoff=0.4)
    hint = f": did you mean {folded[close[0]]!r}?" if close else ":"
    shown = ", ".join(names[:12]) + (", ..." if len(names) > 12 else "")
    raise InputError(f"unknown {kind} {given!r}{hint} ({len(names)} known: {shown})")
