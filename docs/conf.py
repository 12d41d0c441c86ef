"""Sphinx configuration."""

import re
import sys
import tomllib
from pathlib import Path

from docutils import nodes
from sphinx.transforms import SphinxTransform

import otmd
from otmd.cli.app import app as command_line

sys.path.insert(0, str(Path(__file__).parent))
from formulas import mathml

project = "otmd"
author = copyright = "The otmd developers"
version = release = otmd.__version__

extensions = [
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build"]
templates_path = ["_templates"]

html_theme = "pydata_sphinx_theme"
html_title = "otmd"
html_theme_options = {
    "header_links_before_dropdown": 8,
    "navbar_align": "left",
    "navbar_persistent": ["search-button"],
    "show_toc_level": 2,
    # Where there is nothing but a few links the page takes the room of its contents.
    "secondary_sidebar_items": {
        "index": [],
        "reference/index": [],
        "**": ["page-toc"],
    },
}
# Of these, the bar on top has all that there is to list.
html_sidebars = {"index": [], "tutorial": [], "claims": []}
html_static_path = ["_static"]
html_css_files = ["otmd.css"]
html_math_renderer = "mathml"

myst_enable_extensions = ["colon_fence", "dollarmath"]
myst_heading_anchors = 3
# Quotes and ellipses alone: two hyphens begin an option.
smartquotes_action = "qe"
# The tests run the pages' Python; the build only shows it, but for the tutorial, which is a notebook.
nb_execution_mode = "off"
# What a cell prints is one box, however often its buffer was flushed.
nb_merge_streams = True

# A copied command or session is without its prompts and output.
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

autosummary_generate = True
autodoc_typehints = "none"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
numpydoc_show_class_members = False
PROJECT = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text("utf-8"))
numpydoc_validation_checks = {*PROJECT["tool"]["numpydoc_validation"]["checks"]}
# What it inherits from dict and from transformers is not ours to word.
numpydoc_validation_exclude = {r"TreeOutput\.(cache_params|clear|copy|past_key_values)$"}


def escape_unpacking(_app, _what, _name, _object, _options, lines):
    """Keep the star of a shape such as ``(*batch_shape, V)`` from opening an emphasis."""
    lines[:] = [re.sub(r"(?<=[(\s])\*(?=\w+,)", r"\\*", line) for line in lines]


def write_commands(app):
    """Write a page for each command of the command line, from its own help."""
    folder = Path(app.srcdir, "reference", "generated", "commands")
    folder.mkdir(parents=True, exist_ok=True)
    # The usage also says how Sphinx was started, as if it were the command; a usage of ours comes after that.
    text = command_line.generate_docs().replace(" -m sphinx", "").replace("solve solve", "solve")
    for part in re.split(r"^## otmd ", text, flags=re.M)[1:]:
        name, _, body = part.partition("\n")
        command = command_line[name]
        examples = re.findall(r"^(otmd .*\S)", command.help_epilogue, re.M)
        shown = "\n".join(f"$ {example}" for example in examples)
        page = f"# otmd {name}\n{body.rstrip()}\n\n**Examples**:\n\n```console\n{shown}\n```\n"
        path = folder / f"{name}.md"
        # Sphinx reads a page anew when its file is younger.
        if not path.is_file() or path.read_text("utf-8") != page:
            path.write_text(page, "utf-8")


def visit_inline(translator, node):
    """Write a formula as MathML."""
    translator.body.append(mathml(node.astext()))
    raise nodes.SkipNode


def visit_block(translator, node):
    """Write a formula as MathML on a line of its own."""
    formula = mathml(node.astext(), "block")
    translator.body.append(f'<div class="math-block">{formula}</div>')
    raise nodes.SkipNode


WIDE = 500
"""Width in points of a figure that fills the column."""


class Figures(SphinxTransform):
    """Show ``name-dark.svg`` in place of ``name.svg`` on dark pages, and mark wide figures."""

    default_priority = 200

    def apply(self, **_):
        """Add the dark version after each picture that has one."""
        folder = Path(self.env.doc2path(self.env.docname)).parent
        for light in list(self.document.findall(nodes.image)):
            uri = light["uri"].replace(".svg", "-dark.svg")
            if uri != light["uri"] and (folder / uri).is_file():
                width = re.search(r'<svg[^>]* width="([\d.]+)pt"', (folder / uri).read_text("utf-8"))
                light["classes"] += ["figure"] + ["wide-figure"] * (float(width[1]) >= WIDE)
                dark = light.copy()
                dark["uri"] = uri
                dark["classes"] = [*light["classes"], "only-dark"]
                light["classes"].append("only-light")
                light.parent.insert(light.parent.index(light) + 1, dark)


def setup(app):
    """Connect the above, the docstrings' part before numpydoc reads them."""
    app.add_transform(Figures)
    app.add_html_math_renderer("mathml", (visit_inline, None), (visit_block, None))
    app.connect("builder-inited", write_commands)
    app.connect("autodoc-process-docstring", escape_unpacking, priority=400)
