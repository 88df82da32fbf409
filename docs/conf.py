"""Sphinx: `pip install -e '.[docs]'`, then `sphinx-build docs docs/_build`."""

from jaxscale import __version__

project = "jaxscale"
author = "The jaxscale developers"
release = __version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
html_theme = "alabaster"
