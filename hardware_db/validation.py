"""From the content of a file to a checked entry, with errors in one sentence for a person."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from jaxscale.errors import InputError
from jaxscale.hardware_db import keys
from jaxscale.hardware_db.schema import Link, Price, ProtocolConstants

Model = TypeVar("Model", bound=BaseModel)

_ALLOWED = {
    "float": "a finite number{unit}",
    "finite": "a finite number{unit}",
    "greater": "a finite number{unit} from {bound} up",
    "less": "a finite number{unit} up to {bound}",
    "int": "a whole number of at least 1",
    "string": "a text that is not empty",
    "literal": "{expected}",
    "date": "a date written like 2024-01-31, without quotes",
    "list": "a list",
    "dict": "a table of texts",
    "model": "a table of keys",
}
"""First word of pydantic's error type -> what is allowed there."""


def validate(model: type[Model], data: dict[str, Any], where: str, kind: str) -> Model:
    """Check `data`, the content of the file `where`, and return it as `model`.

    Raises:
        InputError: naming the file, the key and what is allowed there.
    """
    try:
        return model.model_validate(data)
    except ValidationError as failure:
        # A mistyped key is both unknown and missing: the unknown one is what the reader has written.
        errors = sorted(failure.errors(), key=lambda error: error["type"] != "extra_forbidden")
        raise InputError(f"{where}: {_sentence(model, errors[0], kind)}") from None


def _sentence(model: type[BaseModel], error: ErrorDetails, kind: str) -> str:
    """Word one pydantic error: the key, what was given, what is allowed."""
    path = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in error["loc"]).lstrip(".")
    key = str(error["loc"][-1]) if error["loc"] else ""
    path = path or "the whole file"
    unit = f" in {keys.split(key)[1]}" if keys.split(key)[1] else ""
    if error["type"] == "extra_forbidden":
        known = list(_model_at(model, error["loc"][:-1]).model_fields)
        close = difflib.get_close_matches(key, known, n=1, cutoff=0.4)
        hint = f", did you mean {close[0]!r}?" if close else ""
        return f"{path!r} is not a key of a {kind}{hint} (allowed: {', '.join(known)})"
    if error["type"] == "missing":
        return f'{path!r} is missing; a {kind} needs it{unit} (or a base = "NAME" to inherit it from)'
    context = error.get("ctx", {})
    if error["type"] == "value_error":
        return f"{path!r} {context['error']}"
    bound = next((context[name] for name in ("ge", "gt", "le", "lt") if name in context), "")
    words = _ALLOWED.get(error["type"].split("_")[0], error["msg"])
    allowed = words.format(unit=unit, bound=bound, expected=context.get("expected", ""))
    return f"{path!r} is {error['input']!r}, allowed is {allowed}"


def _model_at(model: type[BaseModel], path: Iterable[int | str]) -> type[BaseModel]:
    """Return the model of the table that `path` leads to inside `model`."""
    inner = {
        "intra_node": Link,
        "price": Price,
        "low_latency": ProtocolConstants,
        "simple": ProtocolConstants,
    }
    for part in path:
        model = inner.get(str(part), model)
    return model
