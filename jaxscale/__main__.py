"""`python -m jaxscale` is the command `jaxscale`."""

from jaxscale.cli import main

main()
