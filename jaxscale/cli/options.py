"""Options that subcommands share, how their values are read, and what they stand for."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import click
from click.shell_completion import CompletionItem

from jaxscale.errors import InputError, choose
from jaxscale.units import parse_range

if TYPE_CHECKING:
    from jaxscale.network import Network

EXAMPLE_MODEL, EXAMPLE_CLUSTER, EXAMPLE_GPUS = "resnet50", "dgx-1-v100", 64
"""What `jaxscale optimize` works on when it is told nothing."""

SAMPLES_PER_DEVICE = 64
"""The global batch per device where no batch is given."""

PRECISIONS = ("fp32", "tf32", "fp16", "bf16", "fp8")
KERNELS = ("learned", "roofline")
OPTIMIZERS = ("sgd", "momentum", "adam")
MOST_DEVICES, MOST_SAMPLES = 10_000_000, 1_000_000_000
"""Beyond these a count is a slip of the keyboard."""

PER_LAYER = "per-layer"


class ShowGroup(click.Group):
    """A group with a command `show`, which also takes a name that stands where a command could."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        return super().resolve_command(ctx, args if args[0] in self.commands else ["show", *args])


class Counts(click.ParamType):
    """One positive whole number or a range of them, as a tuple."""

    name = "count"

    def __init__(self, most: int, single: bool = False) -> None:
        self.most = most
        self.single = single

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        option = f"--{param.name.replace('_', '-')}" if param and param.name else "the value"
        counts = counts_of(value, option, self.most)
        if not self.single:
            return counts
        if len(counts) != 1:
            raise InputError(f"{option} is {value!r}, but it takes one number")
        return counts[0]


class Named(click.ParamType):
    """One name out of a few, with the nearest in the message where it is none of them."""

    name = "name"

    def __init__(self, kind: str, allowed: Sequence[str]) -> None:
        self.kind = kind
        self.allowed = allowed

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return choose(self.kind, value, self.allowed)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return "|".join(self.allowed)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list:
        return [CompletionItem(name) for name in self.allowed if name.startswith(incomplete)]


class Messages(click.ParamType):
    """A number of gradient messages, or one per layer."""

    name = "messages"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if not isinstance(value, str):
            return value
        if value.replace("_", "-").lower() == "per-layer":
            return PER_LAYER
        return Counts(10_000, single=True).convert(value, param, ctx)


class Algorithms(click.ParamType):
    """Names of all-reduce algorithms separated by commas, or parameter_server."""

    name = "algorithms"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        from jaxscale.collectives import ALGORITHMS

        known = (*ALGORITHMS["all_reduce"], "parameter_server")
        names = [choose("algorithm", name.strip().replace("-", "_"), known) for name in value.split(",")]
        return tuple(dict.fromkeys(names))


class Kernels(click.ParamType):
    """The name of a kernel model, or the path of a file of weights."""

    name = "kernels"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return value if value.endswith(".npz") else choose("kernel model", value, KERNELS)

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        return f"{'|'.join(KERNELS)}|FILE"


def counts_of(text: str, option: str, most: int) -> tuple[int, ...]:
    """Read a whole number or a range of them.

    >>> counts_of("64:512:x2", "--batch", most=1000)
    (64, 128, 256, 512)
    """
    try:
        counts = tuple(map(int, parse_range(text, "count")))
    except InputError as refusal:
        raise InputError(f"{option}: {refusal}") from None
    if max(counts) > most:
        raise InputError(f"{option} is {text!r}, allowed are at most {most:,}")
    return counts


def _together(*options: Callable) -> Callable:
    """One decorator for several options, in the order of the help page."""

    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


training_options = _together(
    click.option("--precision", type=Named("precision", PRECISIONS), default="fp16", show_default=True),
    click.option("--optimizer", type=Named("optimizer", OPTIMIZERS), default="momentum", show_default=True),
    click.option("--image-size", type=Counts(100_000, single=True), help="Height and width in pixels."),
    click.option(
        "--classes", type=Counts(10_000_000, single=True), help="Classes that the network tells apart."
    ),
    click.option(
        "--messages",
        type=Messages(),
        default=8,
        show_default=True,
        metavar="N|per-layer",
        help="Messages in which gradients travel.",
    ),
)

cluster_options = _together(
    click.option(
        "--cluster", metavar="NAME", help="A cluster or node of the hardware database, or a .toml file."
    ),
    click.option(
        "--network", metavar="NAME", help="Network between nodes in place of their own (edr, 4xhdr)."
    ),
)

model_options = _together(
    click.option(
        "--algorithms",
        type=Algorithms(),
        metavar="NAMES",
        help="What may reduce gradients: ring, tree, ... or parameter_server.",
    ),
    click.option(
        "--kernels",
        type=Kernels(),
        default="learned",
        show_default=True,
        help="How kernels are timed: learned, roofline, or a file that train-kernels wrote.",
    ),
)

space_options = _together(
    click.option(
        "--batch", type=Counts(MOST_SAMPLES), metavar="B|RANGE", help="Samples per step, or a range."
    ),
    click.option(
        "--tp", type=Counts(MOST_DEVICES), metavar="VALUES", help="Devices that share a layer's filters."
    ),
    click.option(
        "--micro-batch", type=Counts(MOST_SAMPLES), metavar="VALUES", help="Samples per group at a time."
    ),
)

output_options = _together(
    click.option(
        "--out", "-o", metavar="FILE", help="Write the plans: .parquet, .csv or .json, in SI units."
    ),
    click.option("--plot", metavar="FILE", help="Draw a picture: .png, .svg or .pdf."),
    click.option("--json", "as_json", is_flag=True, help="One JSON document on stdout."),
)


def read_model(model: str, image_size: int | None = None, classes: int | None = None) -> Network:
    """The network that MODEL stands for: a name of the zoo or the path of an .onnx file.

    Raises:
        InputError: no such network or file, or a file of another kind.
    """
    if model.lower().endswith(".onnx"):
        from jaxscale.onnx_import import read_onnx

        if classes is not None:
            raise InputError(f"--classes does not apply to {model}, whose last layer is in the file")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            network = read_onnx(model, image_size)
        for warning in caught:
            note(str(warning.message))
        return network
    if os.sep in model or "/" in model or os.path.exists(model):
        raise InputError(f"MODEL {model!r} looks like a file, but only .onnx files can be read")
    from jaxscale import zoo

    return zoo.build(model, image_size, classes)


def require_cluster(cluster: str | None, network: str | None) -> None:
    """Refuse hardware that nobody knows before JAX is loaded, which takes a second."""
    from jaxscale.hardware_db import cluster_parts

    cluster_parts(EXAMPLE_CLUSTER if cluster is None else cluster, None, network)


def require_outputs(out: str | None, plot: str | None) -> None:
    """Refuse files that cannot be written before anything is computed."""
    if out:
        from jaxscale.files import TABLE_FORMATS, require_writable

        require_writable(out, TABLE_FORMATS)
    if plot:
        from jaxscale.plots import require_picture

        require_picture(plot)


def note(text: str) -> None:
    """Say something on stderr."""
    click.echo(f"jaxscale: note: {text}", err=True)
