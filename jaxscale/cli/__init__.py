"""The command line: `jaxscale optimize`, `predict`, `sweep`, `models`, `hardware`."""

from jaxscale.cli.main import main

__all__ = ["main"]
