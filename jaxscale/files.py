"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.errors import InputError, choose

if TYPE_CHECKING:
    import pandas as pd

TABLE_FORMATS = (".parquet", ".csv", ".json")
PICTURE_FORMATS = (".png", ".pdf", ".svg")


def require_writable(path: str | os.PathLike[str], formats: Iterable[str] = ()) -> Path:
    """Return `path` when a file can be written there, so that a long search need not end in an error.

    Args:
        path: where the file is to stand; an ordinary file there will be replaced.
        formats: the suffixes that may be written; any when empty.

    Raises:
        InputError: unknown suffix (with the nearest one), missing folder, folder without write permission,
            or something at `path` that is not an ordinary file.
    """
    path, formats = Path(path), tuple(formats)
    if formats:
        choose("file format", path.suffix, formats)
    if not path.parent.is_dir():
        raise InputError(f"cannot write {str(path)!r}: there is no folder {str(path.parent)!r}")
    if path.exists() and not path.is_file():
        raise InputError(f"cannot write {str(path)!r}: it is not an ordinary file")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InputError(f"cannot write {str(path)!r}: the folder {str(path.parent)!r} is read-only")
    return path


def write_atomically(path: str | os.PathLike[str], write: Callable[[Path], object]) -> Path:
    """Let `write` fill a temporary file beside `path`, then rename it; return the path.

    Whoever reads `path` sees the old content or the new, also when `write` fails or is interrupted.

    Args:
        path: where the file is to stand.
        write: called once with a path in the same folder that has the same suffix.

    Raises:
        InputError: as `require_writable`, and when the operating system refuses (a full disk).

    >>> import pathlib, tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     note = write_atomically(pathlib.Path(folder, "note.txt"), lambda path: path.write_text("64 GPUs"))
    ...     note.read_text()
    '64 GPUs'
    """
    path = require_writable(path).resolve()
    temporary = path.with_name(f".{path.stem}.{secrets.token_hex(4)}{path.suffix}")
    try:
        write(temporary)
        os.replace(temporary, path)
    except OSError as refusal:
        raise InputError(f"cannot write {str(path)!r}: {refusal.strerror or refusal}") from refusal
    finally:
        temporary.unlink(missing_ok=True)
    return path


def write_table(
    rows: pd.DataFrame | Iterable[Mapping[str, Any]],
    path: str | os.PathLike[str],
    metadata: Mapping[str, str] | None = None,
) -> Path:
    """Write a table in the format that the suffix names: .parquet, .csv or .json (a list of objects).

    Args:
        rows: a frame, or one mapping from column to value per row.
        path: where the file is to stand.
        metadata: units, sources and versions, kept in the schema of a Parquet file.

    Raises:
        InputError: as `write_atomically`, and for a suffix that is none of `TABLE_FORMATS`.
    """
    path = require_writable(path, TABLE_FORMATS)

    import pandas as pd

    frame = rows if isinstance(rows, pd.DataFrame) else pd.DataFrame(list(rows))
    if path.suffix.lower() == ".parquet":
        return write_atomically(path, lambda to: _write_parquet(frame, to, metadata or {}))
    if path.suffix.lower() == ".csv":
        return write_atomically(path, lambda to: frame.to_csv(to, index=False))
    return write_atomically(
        path, lambda to: frame.to_json(to, orient="records", indent=1, double_precision=15)
    )


def _write_parquet(frame: pd.DataFrame, path: Path, metadata: Mapping[str, str]) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.Table.from_pandas(frame, preserve_index=False)
    pq.write_table(table.replace_schema_metadata({**(table.schema.metadata or {}), **metadata}), path)
