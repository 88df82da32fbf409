"""The project as a whole: direction of imports, what is loaded when, links, version."""

import ast
import importlib.metadata
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest
from conftest import ROOT

import jaxscale

PACKAGE = Path(jaxscale.__file__).parent

FLOORS = (
    ("errors",),
    ("units", "nouns", "files", "tables"),
    ("runtime stored",),
    ("hardware_db", "layers network operators zoo onnx_import onnx_operators lowering plans levers"),
    ("kernels", "collectives"),
    ("memory", "schedule", "measurement_format measurements"),
    ("engine", "timing"),
    ("shapes",),
    ("convergence", "cost"),
    ("search",),
    ("hybrid", "training", "profiling", "codesign", "validate"),
    ("explain",),
    ("report",),
    ("plots",),
    ("cli __main__",),
)
"""From the ground up. A module imports from the floors below and from its own group (names in one string)."""

PLACE = {
    module: (floor, group)
    for floor, groups in enumerate(FLOORS)
    for group, modules in enumerate(groups)
    for module in modules.split()
}

HEAVY = (
    "jax",
    "jaxlib",
    "numpy",
    "pandas",
    "pyarrow",
    "pydantic",
    "rich",
    "flax",
    "optax",
    "matplotlib",
    "plotly",
)


def sources() -> list[Path]:
    # Path.glob does not follow links below Python 3.13, so the linked folders are named.
    folders = [PACKAGE, PACKAGE / "search", PACKAGE / "hardware_db"]
    found = {path for folder in folders for path in folder.rglob("*.py")}
    return sorted(found - {PACKAGE / "__init__.py"})


def imports(path: Path) -> Iterator[str]:
    """The modules directly under `jaxscale` that a source file imports, by name."""
    package = ("jaxscale", *path.relative_to(PACKAGE).parts[:-1])
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            targets = [alias.name.split(".") for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = list(package[: len(package) - node.level + 1]) if node.level else []
            base += node.module.split(".") if node.module else []
            targets = [[*base, alias.name] for alias in node.names]
        else:
            continue
        for first, *rest in targets:
            if first == "jaxscale" and rest and rest[0] != "__version__":
                # `from jaxscale import predict` means the module that the public name comes from.
                yield jaxscale._HOME.get(rest[0], f"jaxscale.{rest[0]}").split(".")[1]


def owner(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down(path):
    module = owner(path)
    assert module in PLACE, f"give the module {module!r} its place in FLOORS"
    for target in imports(path):
        assert target in PLACE, f"{module} imports {target}, which has no place in FLOORS"
        own, other = PLACE[module], PLACE[target]
        assert other[0] < own[0] or other == own, f"{module} imports {target}, which does not stand below it"


REPORT = f"""
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted({set(HEAVY)!r} & set(sys.modules))), file=sys.stderr))
"""


def loaded_by(program: str) -> list[str]:
    """The heavy packages in memory after `program` ran in a fresh interpreter."""
    run = subprocess.run([sys.executable, "-c", REPORT + program], capture_output=True, text=True, check=True)
    return json.loads(run.stderr)


@pytest.mark.parametrize(
    "program",
    [
        "import jaxscale; jaxscale.__version__; dir(jaxscale)",
        "import jaxscale.units, jaxscale.errors, jaxscale.files, jaxscale.runtime",
        "from jaxscale.cli import main; import sys; sys.argv = ['jaxscale', '--help']; main()",
        "from jaxscale.cli import main; import sys; sys.argv = ['jaxscale', '--version']; main()",
    ],
)
def test_nothing_heavy_is_loaded(program):
    assert loaded_by(program) == []


def test_the_check_itself_sees_what_is_loaded():
    assert loaded_by("import jaxscale.nouns") == ["jax", "jaxlib", "numpy"]


def test_importing_the_package_does_not_load_click():
    code = "import jaxscale, sys; sys.exit('click' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def declared_for_type_checkers() -> dict[str, str]:
    """Public name to module, as the `if TYPE_CHECKING` block of the package says."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    return {
        alias.name: f"{node.module}.{alias.name}" if node.module == "jaxscale" else str(node.module)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def test_public_names_are_listed_alike_three_times():
    assert (
        sorted(jaxscale._HOME)
        == sorted(jaxscale.__all__)
        == [n for n in dir(jaxscale) if n in jaxscale._HOME]
    )
    assert declared_for_type_checkers() == jaxscale._HOME


@pytest.mark.parametrize("name", jaxscale.__all__)
def test_public_names_resolve(name):
    assert isinstance(getattr(jaxscale, name), ModuleType) == (name == "zoo")


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="'jaxscale' has no attribute 'simulate'"):
        _ = jaxscale.simulate


def test_version_is_that_of_the_distribution():
    assert jaxscale.__version__ == importlib.metadata.version("jaxscale")


@pytest.mark.parametrize("name", ["search", "hardware_db"])
def test_the_top_level_folders_are_linked(name):
    if not (ROOT / "jaxscale").is_dir():
        pytest.skip("these tests run apart from a checkout")
    link = ROOT / "jaxscale" / name
    assert link.is_symlink()
    assert link.readlink() == Path("..", name)
    assert (ROOT / name / "__init__.py").is_file()
