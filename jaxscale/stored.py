"""Traced programs, kept between runs of a program.

JAX keeps what it compiled (see `use_compilation_cache`), but has to trace and lower a function in Python to
learn which of its files holds the result, and for `predict` that takes longer than all that follows. Here
the lowered program is kept too (StableHLO, by `jax.export`), under a name that says everything it depends on.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import hashlib
import inspect
import os
import pickle
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from jaxscale.errors import InputError
from jaxscale.files import write_atomically

PACKAGE = __name__.split(".")[0]

SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision")
"""Settings of JAX that change what a trace gives."""

_folder: Path | None = None
"""Where programs are kept; nowhere when None."""


def keep_in(folder: Path | None) -> None:
    """Keep programs in `folder` from now on, whose owner decides what runs here; nowhere when None."""
    global _folder
    _folder = None
    with contextlib.suppress(OSError):  # a package that is no folder of files
        _source_digest()
        _folder = folder


def jit(
    function: Callable[..., Any],
    static_argnames: Iterable[str] = (),
    compiler_options: dict[str, Any] | None = None,
) -> Callable[..., Any]:
    """`jax.jit`, except that a program which an earlier process has traced is not traced again.

    A program that cannot be named, read or written is traced, as ever; so are calls within a trace.

    Args:
        function: of this package.
        static_argnames: parameters whose values are part of the program. What a value takes from outside
            this package, such as the content of a file, has to be written in the value itself.
        compiler_options: for XLA.

    >>> double = jit(lambda x: {"twice": 2 * x})
    >>> float(double(1.5)["twice"])
    3.0
    """
    import jax

    plain = jax.jit(function, static_argnames=tuple(static_argnames), compiler_options=compiler_options)
    signature = inspect.signature(function)
    programs: dict[Path, Callable[..., Any]] = {}

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if _folder is None:
            return plain(*args, **kwargs)
        given = signature.bind(*args, **kwargs).arguments
        static = {name: given.pop(name) for name in static_argnames if name in given}
        leaves, tree = jax.tree.flatten(given)
        try:
            path = _folder / _file_name(function, static, leaves, tree)
        except _NamelessError:
            return plain(*args, **kwargs)
        if path not in programs:
            program = _read(path) or _trace(functools.partial(function, **static), leaves, tree, path)
            programs[path] = _runnable(*program, compiler_options) if program else plain
        run = programs[path]
        return plain(*args, **kwargs) if run is plain else run(*leaves)

    return call


class _NamelessError(Exception):
    """A program depends on something that has no name in another process."""


def _runnable(exported: Any, tree: Any, compiler_options: dict[str, Any] | None) -> Callable[..., Any]:
    import jax

    flat = jax.jit(exported.call, compiler_options=compiler_options)
    return lambda *leaves: jax.tree.unflatten(tree, flat(*leaves))


def _trace(function: Callable[..., Any], leaves: list, tree: Any, path: Path) -> tuple[Any, Any] | None:
    """The program and the structure of its result, traced now and kept at `path`; None where it cannot be."""
    import jax
    from jax import export

    def flat(*leaves: Any) -> list:
        nonlocal structure
        result, structure = jax.tree.flatten(function(**jax.tree.unflatten(tree, leaves)))
        return result

    structure: Any = None
    try:
        exported = export.export(jax.jit(flat))(*leaves)
        # An example of the result stands for its structure, which has no form for files of its own.
        example = jax.tree.unflatten(structure, range(structure.num_leaves))
        content = pickle.dumps((bytes(exported.serialize()), example))
    except Exception:  # whatever is wrong is reported where the function is traced without being kept
        return None
    with contextlib.suppress(InputError, OSError):  # a full disk: the next process traces once more
        # A module that was edited while this process ran may have been traced in its old form.
        if _source_digest.__wrapped__() == _source_digest():
            write_atomically(path, lambda to: to.write_bytes(hashlib.sha256(content).digest() + content))
    return exported, structure


def _read(path: Path) -> tuple[Any, Any] | None:
    """What `_trace` kept at `path`; None where there is nothing, or nothing whole."""
    import jax
    from jax import export

    try:
        kept = path.read_bytes()
        content = kept[hashlib.sha256().digest_size :]
        if not kept.startswith(hashlib.sha256(content).digest()):
            return None
        program, example = pickle.loads(content)
        return export.deserialize(bytearray(program)), jax.tree.structure(example)
    except Exception:  # the readers of damaged files raise whatever they like
        return None


def _file_name(function: Callable[..., Any], static: dict[str, Any], leaves: list, tree: Any) -> str:
    """A name for the program that is another one whenever the program could be.

    Raises:
        _NamelessError: there is none.
    """
    import jax
    from jaxlib.version import __version__ as jaxlib_version

    if jax.config.jax_default_device is not None:  # pyright: ignore[reportAttributeAccessIssue]
        raise _NamelessError
    said = (
        _words(function),
        *(f"{name}={_words(value)}" for name, value in static.items()),
        *map(_kind, leaves),
        str(tree),
        jax.__version__,
        jaxlib_version,
        jax.default_backend(),
        *(f"{setting}={getattr(jax.config, setting)}" for setting in SETTINGS),
        _source_digest(),
    )
    return f"{function.__name__.strip('_')}-{hashlib.sha256(repr(said).encode()).hexdigest()}.traced"


def _words(value: Any) -> str:
    """What a static argument is, in words that mean the same in another process."""
    if value is None or isinstance(value, bool | int | float | str):
        return repr(value)
    if isinstance(value, tuple):
        return f"({','.join(map(_words, value))})"
    kind = value if inspect.isfunction(value) else type(value)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if kind.__module__.split(".")[0] == PACKAGE and "<" not in name:
        if inspect.isfunction(value):
            return name
        if dataclasses.is_dataclass(value):
            fields = dataclasses.fields(value)
            return f"{name}({','.join(_words(getattr(value, field.name)) for field in fields)})"
    raise _NamelessError


def _kind(leaf: Any) -> str:
    """The type of an argument, as far as a trace sees it."""
    import jax
    import numpy as np
    from jax.core import Tracer

    # A program that was stored runs on the first device.
    if isinstance(leaf, Tracer) or (isinstance(leaf, jax.Array) and leaf.devices() != {jax.devices()[0]}):
        raise _NamelessError
    weak = getattr(leaf, "weak_type", False)
    return f"{getattr(leaf, 'dtype', type(leaf).__name__)}{np.shape(leaf)}{weak}"


@functools.cache
def _source_digest() -> str:
    """Of every file of this package: modules and the data beside them."""
    digest, package = hashlib.sha256(), Path(__file__).parent
    # Path.rglob does not follow links below Python 3.13.
    for where, folders, names in os.walk(package, followlinks=True):
        folders[:] = sorted(set(folders) - {"__pycache__"})
        for name in sorted(names):
            path = Path(where, name)
            content = path.read_bytes()
            digest.update(f"{path.relative_to(package)} {len(content)} ".encode() + content)
    return digest.hexdigest()
