"""The command group: exit codes, one sentence per error, and what a closed pipe or a signal does."""

import os
import signal
import subprocess
import sys
import types

import click
import pytest

from jaxscale import __version__
from jaxscale.cli import main as cli_main
from jaxscale.cli import style
from jaxscale.errors import InfeasibleError, InputError


@pytest.fixture
def run(monkeypatch, capsys):
    """Runs the command line with `try` as its one subcommand, which does what the test says."""
    module = sys.modules["jaxscale.cli.main"]

    def call(action, *args):
        stand_in = types.ModuleType("stand_in")
        stand_in.command = click.command()(click.option("--gpus", type=int)(lambda gpus: action()))
        monkeypatch.setitem(sys.modules, "stand_in", stand_in)
        monkeypatch.setattr(module, "SUBCOMMANDS", {"try": ("stand_in:command", "Try it.")})
        code = module.run(["try", *args])
        return code, *capsys.readouterr()

    return call


def raising(error):
    def action():
        raise error

    return action


def test_main_is_the_function():
    assert callable(cli_main)


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (InputError("unknown network 'resnet5'"), 2, "unknown network 'resnet5'"),
        (InputError("two\nlines"), 2, "two lines"),
        (InfeasibleError("no plan fits 16 GB"), 1, "no plan fits 16 GB"),
        (KeyboardInterrupt(), 130, "interrupted before the answer was complete"),
        (click.FileError("runs.csv", "gone"), 2, "Could not open file 'runs.csv': gone"),
    ],
)
def test_an_error_is_one_sentence_and_a_code(run, error, code, message):
    assert run(raising(error)) == (code, "", f"jaxscale: error: {message}\n")


def test_an_answer_is_code_zero(run):
    assert run(lambda: click.echo("12.3 ms")) == (0, "12.3 ms\n", "")


def test_misuse_names_the_help_page(run):
    code, out, err = run(lambda: None, "--gpus", "many")
    assert (code, out) == (2, "")
    assert err.startswith("jaxscale: error: Invalid value for '--gpus'")
    assert err.endswith("(see 'jaxscale try --help')\n")


def test_a_defect_has_a_code_of_its_own_and_its_traceback_on_request(run, monkeypatch):
    monkeypatch.delenv("JAXSCALE_DEBUG", raising=False)
    code, out, err = run(lambda: 1 / 0)
    assert (code, out) == (70, "")  # EX_SOFTWARE of sysexits.h
    assert err.startswith(
        "jaxscale: error: a defect of jaxscale, ZeroDivisionError: division by zero; please report"
    )
    assert err.count("\n") == 1
    monkeypatch.setenv("JAXSCALE_DEBUG", "1")
    code, _, err = run(lambda: 1 / 0)
    assert code == 70
    assert err.startswith("Traceback") and "1 / 0" in err


def test_help_names_the_exit_codes():
    codes = command("--help").stdout.split("Exit codes:")[1]
    assert all(f" {code} " in codes for code in (0, 1, 2, 70))


def command(*args, **options):
    return subprocess.run(
        [sys.executable, "-m", "jaxscale", *args], capture_output=True, text=True, **options
    )


def test_unknown_command_names_the_nearest():
    answer = command("optimise")
    assert answer.returncode == 2
    assert answer.stderr.startswith("jaxscale: error: unknown command 'optimise': did you mean 'optimize'?")
    assert answer.stderr.count("\n") == 1


def test_help_and_version():
    assert command("--version").stdout == f"jaxscale {__version__}\n"
    bare, helped = command(), command("--help")
    assert bare.stdout == helped.stdout
    assert (bare.returncode, helped.returncode) == (0, 0)
    for name in ("optimize", "predict", "sweep", "models", "hardware"):
        assert f"\n  {name} " in helped.stdout


def test_a_closed_pipe_is_silent():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as closed:
        answer = subprocess.run(
            [sys.executable, "-m", "jaxscale", "--help"], stdout=closed, stderr=subprocess.PIPE, text=True
        )
    assert (answer.returncode, answer.stderr) == (141, "")


SLEEPER = """
import sys, time, types
import click
from jaxscale.cli.main import SUBCOMMANDS, main
from jaxscale.files import write_atomically

def slowly(path):
    path.write_text("half")
    print("writing", flush=True)
    time.sleep(60)

module = sys.modules["sleeper"] = types.ModuleType("sleeper")
module.command = click.command()(click.argument("path")(lambda path: write_atomically(path, slowly)))
SUBCOMMANDS["sleep"] = ("sleeper:command", "Sleep while writing.")
main()
"""


@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_an_interrupted_run_leaves_no_half_written_file(tmp_path, sent, code):
    target = tmp_path / "plans.csv"
    sleeper = subprocess.Popen(
        [sys.executable, "-c", SLEEPER, "sleep", str(target)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with sleeper:
        assert sleeper.stdout is not None
        assert sleeper.stdout.readline() == "writing\n"
        sleeper.send_signal(sent)
        _, err = sleeper.communicate(timeout=30)
    assert sleeper.returncode == code
    assert "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_results_and_notes_go_to_their_streams(capsys):
    style.results().print("[16] 1.23 ms")
    style.notes().print("half done")
    assert capsys.readouterr() == ("[16] 1.23 ms\n", "half done\n")


@pytest.mark.parametrize(("name", "value"), [("NO_COLOR", "1"), ("TERM", "dumb")])
def test_color_is_left_out_on_request(monkeypatch, name, value):
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    assert style.results().color_system is not None
    monkeypatch.setenv(name, value)
    console = style.results()
    assert console.no_color or console.color_system is None
