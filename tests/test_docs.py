"""The documentation: its commands run, with the hardware files beside them, and answer as printed."""

import re
import shlex

import click
import pytest
from conftest import ROOT

from jaxscale.cli.main import cli, run

DOCS = ROOT / "docs"
if not DOCS.is_dir():
    pytest.skip("the documentation is not part of an installed package", allow_module_level=True)

RUN = re.compile(r"^\$ jaxscale (.*)\n(.*)", re.M)
"""A command and the first line of its answer."""
FILE = re.compile(r"^```toml\n# (\S+)\n(.*?)^```", re.M | re.S)
"""Name and content of a hardware file."""
COMMAND = re.compile(r"^(?:\$ |    )(?:\.venv/bin/)?jaxscale (.*)$", re.M)

RUNS = [(page, *found) for page in sorted(DOCS.glob("*.md")) for found in RUN.findall(page.read_text())]


@pytest.mark.parametrize(("page", "command", "answer"), RUNS, ids=lambda part: getattr(part, "name", part))
def test_a_run_answers_as_printed(page, command, answer, tmp_path, monkeypatch, capsys):
    for name, content in FILE.findall(page.read_text()):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(content)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("JAXSCALE_HARDWARE_PATH", str(tmp_path))
    monkeypatch.setattr("jaxscale.runtime.use_compilation_cache", lambda: None)
    code = run(shlex.split(command))
    out, err = capsys.readouterr()
    assert (code, err) == (0, "")
    assert out.splitlines()[0].strip() == answer


@pytest.mark.parametrize("command", COMMAND.findall((ROOT / "README.md").read_text()))
def test_the_readme_names_options_that_exist(command):
    name, *args = shlex.split(command)
    subcommand = cli.get_command(click.Context(cli), name)
    assert subcommand is not None
    assert subcommand.make_context(name, args)


def test_every_page_is_in_the_table_of_contents():
    index = (DOCS / "index.md").read_text()
    assert all(f"\n{page.stem}\n" in index for page in DOCS.glob("*.md") if page.stem != "index")
