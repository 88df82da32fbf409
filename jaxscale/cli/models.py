"""`jaxscale models`: the networks of the zoo, and the layers of one."""

from __future__ import annotations

import json
from typing import Any

import click

from jaxscale.cli.options import Counts, ShowGroup, read_model


@click.group(cls=ShowGroup, invoke_without_command=True)
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
@click.pass_context
def command(ctx: click.Context, as_json: bool) -> None:
    """List the networks of the zoo; a name alone shows that one."""
    if ctx.invoked_subcommand is None:
        _list(as_json)


@command.command("list")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def list_(as_json: bool) -> None:
    """List the networks of the zoo."""
    _list(as_json)


@command.command()
@click.argument("model")
@click.option("--image-size", type=Counts(100_000, single=True), help="Height and width in pixels.")
@click.option("--classes", type=Counts(10_000_000, single=True), help="Classes that the network tells apart.")
@click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout.")
def show(model: str, image_size: int | None, classes: int | None, as_json: bool) -> None:
    """Show the layers of MODEL, a network of the zoo or an .onnx file."""
    network = read_model(model, image_size, classes)
    layers = []
    for i, node in enumerate(network.nodes):
        shapes = network.input_shapes(i)
        layers.append(
            {
                "name": node.name,
                "layer": str(node.layer),
                "output_shape": list(node.output_shape),
                "parameters": node.layer.parameters(*shapes),
                "multiply_adds": node.layer.multiply_adds(*shapes),
            }
        )
    totals = {"parameters": network.parameters, "multiply_adds": network.multiply_adds}
    if as_json:
        shape = list(network.input_shape)
        click.echo(
            json.dumps({"name": network.name, "input_shape": shape, "layers": layers, **totals}, indent=1)
        )
        return
    rows = [(each["name"], each["layer"], _shape(each["output_shape"]), *_counted(each)) for each in layers]
    rows.append(("total", "", "", *_counted(totals)))
    columns = ("name", "layer", "output", "parameters", "multiply-adds")
    _print(f"{network.name}, input {_shape(network.input_shape)}", columns, rows, left=(0, 1))


def _list(as_json: bool) -> None:
    from jaxscale import zoo

    found = []
    for name in zoo.names():
        network = zoo.build(name)
        found.append(
            {
                "name": name,
                "parameters": network.parameters,
                "multiply_adds": network.multiply_adds,
                "weighted_layers": len(network.weighted),
                "image_size": network.input_shape[-1],
            }
        )
    if as_json:
        click.echo(json.dumps(found, indent=1))
        return
    rows = [
        (each["name"], *_counted(each), str(each["weighted_layers"]), str(each["image_size"]))
        for each in found
    ]
    columns = ("network", "parameters", "multiply-adds", "layers with weights", "image size")
    _print("Networks, per sample", columns, rows, left=(0,))


def _print(title: str, columns: tuple[str, ...], rows: list[tuple[str, ...]], left: tuple[int, ...]) -> None:
    from jaxscale.cli.style import results
    from jaxscale.tables import table

    results().print(table(title, columns, rows, left))


def _counted(counts: dict[str, Any]) -> tuple[str, str]:
    return f"{counts['parameters']:,}", f"{counts['multiply_adds']:,}"


def _shape(shape: Any) -> str:
    return " x ".join(map(str, shape))
