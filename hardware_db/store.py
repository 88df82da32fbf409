"""Finding, reading and caching the files of the hardware database.

Folders of the user (environment variable JAXSCALE_HARDWARE_PATH, separated like PATH) come before the
folder of this package, each with the sub-folders devices, nodes, networks and clusters. The name of an
entry is the name of its file; an alias stands for a name, so an override keeps the aliases of what it
hides. A file is parsed only when it is asked for; aliases are looked for only when no file has the name.
"""

from __future__ import annotations

import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from jaxscale.errors import InputError, choose

if TYPE_CHECKING:
    from jaxscale.hardware_db.schema import ClusterEntry, DeviceEntry, NetworkEntry, NodeEntry

PACKAGE_FOLDER = Path(__file__).parent
FOLDERS = {"device": "devices", "node": "nodes", "network": "networks", "cluster": "clusters"}
PATH_VARIABLE = "JAXSCALE_HARDWARE_PATH"


def device_names() -> list[str]:
    """Return the names of all devices, sorted.

    >>> "v100-sxm2-16gb" in device_names()
    True
    """
    return sorted(_files("device"))


def node_names() -> list[str]:
    """Return the names of all nodes, sorted."""
    return sorted(_files("node"))


def network_names() -> list[str]:
    """Return the names of all networks, sorted."""
    return sorted(_files("network"))


def cluster_names() -> list[str]:
    """Return the names of all named clusters, sorted."""
    return sorted(_files("cluster"))


def load_device(name: str) -> DeviceEntry:
    """Return the entry of a device by name, alias or path of a .toml file.

    Raises:
        InputError: no such device, or its file breaks the schema.

    >>> load_device("v100").memory_bandwidth_gb_per_s
    900.0
    """
    return _load("device", name)


def load_node(name: str) -> NodeEntry:
    """Return the entry of a node by name, alias or path; errors as in `load_device`."""
    return _load("node", name)


def load_network(name: str) -> NetworkEntry:
    """Return the entry of a network by name, alias or path; errors as in `load_device`."""
    return _load("network", name)


def load_cluster(name: str) -> ClusterEntry:
    """Return the entry of a named cluster by name, alias or path; errors as in `load_device`."""
    return _load("cluster", name)


def locate(name: str, kinds: tuple[str, ...], besides: Path | None = None) -> tuple[str, Path]:
    """Return the kind and the file of the first of `kinds` that has an entry `name`.

    Args:
        name: a file name without .toml, an alias, or the path of a .toml file; case is ignored for names.
        kinds: which kinds to look through, in this order; file names of all kinds go before aliases.
        besides: a file that is passed over, so that an override can inherit from what it overrides.

    Raises:
        InputError: nothing has that name.

    >>> locate("V100", ("cluster", "node", "device"))[0]
    'device'
    """
    if name.endswith(".toml"):
        return _kind_of_file(Path(name), kinds), Path(name)
    folded = name.strip().lower()
    files = {kind: _files(kind, besides) for kind in kinds}
    for kind in kinds:
        if folded in files[kind]:
            return kind, files[kind][folded]
    for kind in kinds:
        for path in _paths(kind):
            stem = path.stem.lower()
            # Most files need not be parsed to see that they do not hold the word.
            if stem in files[kind] and folded in _text(path).lower() and folded in _aliases(path):
                return kind, files[kind][stem]
    aliases = {
        alias: (kind, files[kind][path.stem.lower()])
        for kind in reversed(kinds)
        for path in reversed(_paths(kind))
        if path.stem.lower() in files[kind]
        for alias in _aliases(path)
    }
    if folded not in aliases and os.path.exists(name):
        raise InputError(
            f"{name!r} is {'a folder' if os.path.isdir(name) else 'no .toml file'}, allowed are names and"
            f" .toml files; folders of entries belong in {PATH_VARIABLE}"
        )
    stems = [stem for kind in kinds for stem in files[kind]]
    return aliases[choose(" or ".join(kinds), name, [*stems, *aliases])]


def shown(path: Path) -> str:
    """Return `path` as messages show it: files of this package from hardware_db on."""
    inside = path.is_relative_to(PACKAGE_FOLDER)
    return str(Path("hardware_db") / path.relative_to(PACKAGE_FOLDER)) if inside else str(path)


def read(path: Path) -> dict[str, Any]:
    """Return the parsed content of a .toml file, from memory when it has not changed.

    Raises:
        InputError: there is no such file, it cannot be read, or it is not TOML.
    """
    try:
        status = path.stat()
        return _parse(path, status.st_mtime_ns, status.st_size)
    except OSError as failure:
        reason = failure.strerror or "it cannot be read"
        raise InputError(f"cannot read the hardware file {shown(path)!r}: {reason.lower()}") from None


@functools.lru_cache(maxsize=1024)
def _parse(path: Path, _modified: int, _size: int) -> dict[str, Any]:
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except ValueError as failure:
        raise InputError(f"{shown(path)} is not a TOML file: {failure}") from None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError):
        return ""  # not the file that is looked for; it is reported when it is asked for by name


def _aliases(path: Path) -> list[str]:
    try:
        aliases = read(path).get("aliases")
    except InputError:
        return []
    return [alias.lower() for alias in aliases if isinstance(alias, str)] if isinstance(aliases, list) else []


def _files(kind: str, besides: Path | None = None) -> dict[str, Path]:
    """Return name -> file of every entry of one kind; a user's file hides the one of the same name."""
    found: dict[str, Path] = {}
    for path in _paths(kind):
        if path != besides:
            found.setdefault(path.stem.lower(), path)
    return found


def _paths(kind: str) -> list[Path]:
    """Return every file of one kind, those of the user first."""
    return [path for root in _roots() for path in sorted((root / FOLDERS[kind]).glob("*.toml"))]


def _roots() -> list[Path]:
    """Return the folders of the user, then the folder of the package."""
    roots = [Path(part) for part in os.environ.get(PATH_VARIABLE, "").split(os.pathsep) if part]
    for root in roots:
        if not root.is_dir():
            raise InputError(f"{PATH_VARIABLE} names {str(root)!r}, allowed are folders that exist")
    return [*roots, PACKAGE_FOLDER]


def _kind_of_file(path: Path, kinds: tuple[str, ...]) -> str:
    """Return what a file given by path describes: by its distinctive key, or else as its base does."""
    if len(kinds) == 1:
        return kinds[0]
    data = read(path)
    for key, kind in (("node", "cluster"), ("device", "node"), ("link", "network")):
        if key in data and kind in kinds:
            return kind
    base = data.get("base")
    return locate(base, kinds, besides=path)[0] if isinstance(base, str) else "device"


def load(kind: str, path: Path) -> Any:
    """Return the checked entry of one file, with what it inherits."""
    return _entry(kind, path, ())


def _load(kind: str, name: str) -> Any:
    return load(kind, locate(name, (kind,))[1])


def _entry(kind: str, path: Path, heirs: tuple[Path, ...]) -> Any:
    """Return the checked entry of `path`, with what it inherits; `heirs` inherit from it."""
    from jaxscale.hardware_db.schema import ENTRIES
    from jaxscale.hardware_db.validation import validate

    data = read(path)
    if isinstance(data.get("base"), str):
        if path in heirs:
            raise InputError(f"{shown(path)}: base = {data['base']!r} leads back to the file itself")
        parent = _entry(kind, locate(data["base"], (kind,), besides=path)[1], (*heirs, path))
        data = _inherit(data, parent.model_dump(exclude_defaults=True))
    return validate(ENTRIES[kind], data, shown(path), kind)


def _inherit(data: dict[str, Any], parent: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with the keys of `parent` that it does not write itself, and where each came from."""
    keys = {key: parent[key] for key in parent if key not in ("source", "date", "aliases", "base", "sources")}
    kept = [key for key in keys if key not in data]
    origin = dict.fromkeys(kept, parent["source"]) | {
        key: text for key, text in parent.get("sources", {}).items() if key.split(".")[0] in kept
    }
    own = data.get("sources", {})
    sources = origin | own if isinstance(own, dict) else own
    return keys | data | {"sources": sources}
