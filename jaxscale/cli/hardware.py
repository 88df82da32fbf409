"""`jaxscale hardware`: the hardware database."""

from __future__ import annotations

import json

import click

from jaxscale.cli.options import Named, ShowGroup

KINDS = {"devices": "device", "nodes": "node", "networks": "network", "clusters": "cluster"}


@click.group(cls=ShowGroup, invoke_without_command=True)
@click.pass_context
def command(ctx: click.Context) -> None:
    """List devices, nodes, networks and clusters; a name alone shows that one."""
    if ctx.invoked_subcommand is None:
        ctx.invoke(list_, kind=None, as_json=False)


@command.command("list")
@click.option("--kind", type=Named("kind", tuple(KINDS)), help="List one kind only.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def list_(kind: str | None, as_json: bool) -> None:
    """List the entries, one a line."""
    from jaxscale.hardware_db import summary

    lines = [line for line in summary() if kind is None or line.kind == KINDS[kind]]
    if as_json:
        click.echo(json.dumps([line._asdict() for line in lines], indent=1))
        return
    from jaxscale.cli.style import results
    from jaxscale.tables import table

    title = f"{kind or 'entries'} of the hardware database".capitalize()
    results().print(table(title, ("kind", "name", "also called", "what it is"), lines, left=range(4)))


@command.command()
@click.argument("name")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def show(name: str, as_json: bool) -> None:
    """Show every figure of NAME with its unit and source."""
    from jaxscale.hardware_db import describe

    facts = describe(name)
    if as_json:
        click.echo(json.dumps([fact._asdict() for fact in facts], indent=1, default=str))
        return
    from jaxscale.cli.style import results
    from jaxscale.tables import table

    rows = [(fact.key, f"{_value(fact.value)} {fact.unit}".strip(), fact.source) for fact in facts]
    results().print(table(name, ("figure", "value", "source"), rows, left=(0, 2)))


def _value(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
