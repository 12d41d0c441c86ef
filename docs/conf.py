"""Sphinx configuration."""

import re

import otmd

project = "otmd"
author = copyright = "The otmd developers"
version = release = otmd.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.mathjax",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "otmd"
html_theme_options = {"show_prev_next": False, "show_toc_level": 2}

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# The tests run the pages' Python; the build only shows it.
nb_execution_mode = "off"

autosummary_generate = True
autodoc_typehints = "none"
numpydoc_show_class_members = False


def escape_unpacking(_app, _what, _name, _object, _options, lines):
    """Keep the star of a shape such as ``(*batch_shape, V)`` from opening an emphasis."""
    lines[:] = [re.sub(r"(?<=[(\s])\*(?=\w+,)", r"\\*", line) for line in lines]


def setup(app):
    """Connect the above, before numpydoc reads the docstrings."""
    app.connect("autodoc-process-docstring", escape_unpacking, priority=400)
