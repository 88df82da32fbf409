"""The command group and what becomes of an error.

The group knows its subcommands by name and one line of help; the module of a subcommand is imported when it
is run, so `jaxscale --help` loads nothing but click.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Sequence
from importlib import import_module
from typing import NoReturn

import click

from jaxscale import __version__
from jaxscale.errors import InfeasibleError, InputError, choose

SUBCOMMANDS = {
    "optimize": ("jaxscale.cli.optimize:command", "Find the best plans for a network on a cluster."),
    "predict": ("jaxscale.cli.predict:command", "Time, memory and bottleneck of one plan."),
    "sweep": ("jaxscale.cli.sweep:command", "Vary batch, devices or hardware and tabulate the best plans."),
    "profile": ("jaxscale.cli.profile:command", "Measure kernels on the device that JAX sees."),
    "validate": ("jaxscale.cli.validate:command", "Score kernel times against measured kernels."),
    "train-kernels": ("jaxscale.cli.train_kernels:command", "Teach kernel models from measured kernels."),
    "models": ("jaxscale.cli.models:command", "List the networks, or show one."),
    "hardware": ("jaxscale.cli.hardware:command", "List devices, nodes, networks, clusters, or show one."),
}
"""Per subcommand, in the order of the help page: where the command is defined, and one line about it."""

INTERRUPTED, BROKEN_PIPE, TERMINATED = 130, 141, 143
"""Exit codes of a shell command that ends by SIGINT, SIGPIPE, SIGTERM."""

DEFECT = 70
"""Exit code of an error inside the program (EX_SOFTWARE of sysexits.h)."""

DEBUG_VARIABLE = "JAXSCALE_DEBUG"


class LazyGroup(click.Group):
    """A group that imports a subcommand when it is run, after the pattern in click's documentation."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        home, help_line = SUBCOMMANDS[cmd_name]
        module, attribute = home.split(":")
        command: click.Command = getattr(import_module(module), attribute)
        command.short_help = help_line
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0] if ctx.resilient_parsing else choose("command", args[0], SUBCOMMANDS)
        return super().resolve_command(ctx, [name, *args[1:]])

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in SUBCOMMANDS.items()])


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 answered, 1 no feasible plan, 2 bad input, 70 a defect of jaxscale."
    " Try: jaxscale optimize",
)
@click.version_option(__version__, prog_name="jaxscale", message="%(prog)s %(version)s")
@click.pass_context
def cli(ctx: click.Context) -> None:
    """Predict the time, memory and cost of training on a GPU cluster, and find the best parallelization."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


def main() -> NoReturn:
    """Run the command line of this process and exit with the code that `run` returns."""
    if "_JAXSCALE_COMPLETE" in os.environ:
        cli(prog_name="jaxscale")  # a shell asks for completions
    # SIGTERM unwinds like an exception, so that no temporary file stays behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(TERMINATED))
    code = run(sys.argv[1:])
    if code == INTERRUPTED:
        # Threads of JAX may still compute; the interpreter's own way out would end in a crash.
        sys.stderr.flush()
        os._exit(code)
    sys.exit(code)


def run(args: Sequence[str]) -> int:
    """Run the command line and return its exit code; an error becomes one sentence on stderr.

    Returns:
        0 answered, 1 no feasible plan, 2 bad input, 70 a defect of jaxscale itself, whose traceback is shown
        where JAXSCALE_DEBUG is set, 130 interrupted, 141 stdout was closed.
    """
    try:
        return _invoke(args)
    except (InputError, InfeasibleError) as refusal:
        return _fail(str(refusal), refusal.exit_code)
    except click.UsageError as misuse:
        where = misuse.ctx.command_path if misuse.ctx else "jaxscale"
        return _fail(f"{misuse.format_message().rstrip('.')} (see '{where} --help')", misuse.exit_code)
    except click.ClickException as refusal:
        return _fail(refusal.format_message(), InputError.exit_code)
    except (KeyboardInterrupt, EOFError, click.Abort):
        return _fail("interrupted before the answer was complete", INTERRUPTED)
    except BrokenPipeError:
        return _discard_output()
    except Exception as defect:
        if os.environ.get(DEBUG_VARIABLE):
            traceback.print_exc()
        return _fail(
            f"a defect of jaxscale, {type(defect).__name__}: {defect}; please report it with the command and"
            f" what {DEBUG_VARIABLE}=1 adds",
            DEFECT,
        )


def _invoke(args: Sequence[str]) -> int:
    # click's own main() turns a closed pipe into exit code 1, which stands for "no feasible plan" here.
    try:
        with cli.make_context("jaxscale", list(args)) as ctx:
            cli.invoke(ctx)
        code = 0
    except click.exceptions.Exit as ending:
        code = ending.exit_code
    sys.stdout.flush()
    return code


def _fail(message: str, code: int) -> int:
    click.echo(f"jaxscale: error: {' '.join(message.split())}", err=True)
    return code


def _discard_output() -> int:
    """Whoever read stdout has gone (`jaxscale models | head -1`): say nothing, also at interpreter exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return BROKEN_PIPE
