"""The documentation site: Sphinx over Markdown, built offline by `make docs`, where a broken link is an error."""

import os
from importlib.metadata import version as installed
from typing import Any

from docutils import nodes
from docutils.utils.math import MathError
from docutils.utils.math.latex2mathml import tex2mathml
from pygments.lexers.special import TextLexer
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective

from factorcell.commands.cli.main import GROUPS, make_parser

project = "factorcell"
version = release = installed("factorcell")
copyright = "the authors of factorcell; Apache-2.0"

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

nitpicky = True
# Types in signatures that no page describes: those of other libraries, and those that only the code names.
nitpick_ignore_regex = [(r"py:.*", r"(?!factorcell\.).*"), (r"py:.*", r"factorcell\..*\..*")]
default_role = "code"  # a name between single back ticks in a docstring

autoclass_content = "both"  # the arguments of some constructors are in `__init__`
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True
autodoc_default_options = {"members": True}

html_theme = "furo"
html_title = "factorcell"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False


def mathml(tex: str, block: bool) -> str:
    """Return an equation as MathML, which browsers draw without scripts, fonts or a network."""
    try:
        return tex2mathml(tex, as_block=block)
    except MathError as error:
        logging.getLogger(__name__).warning("not an equation (%s): %s", error, tex)
        return ""


def inline_math(writer: Any, node: nodes.math) -> None:
    """Write an equation within a sentence."""
    writer.body.append(mathml(node.astext(), block=False))
    raise nodes.SkipNode


def block_math(writer: Any, node: nodes.math_block) -> None:
    """Write an equation on separate lines."""
    writer.body.append(f'<div class="math">{mathml(node.astext(), block=True)}</div>')
    raise nodes.SkipNode


def help_of(command: str) -> str:
    """Return the output of `factorcell COMMAND --help-all` as a block of text."""
    text = make_parser(command, ["--help-all"]).format_help().strip()
    return f"```{{code-block}} text\n:class: help\n\n{text}\n```\n"


class CommandHelp(SphinxDirective):
    """The help of every command, in a section per group and a subsection per command."""

    def run(self) -> list[nodes.Node]:
        """Return the sections."""
        os.environ |= {"COLUMNS": "92", "NO_COLOR": "1"}
        parts = []
        for title, (_, commands) in GROUPS.items():
            parts.append(f"## {title.capitalize()}\n")
            for command in commands:
                parts += [f"### {command}\n", help_of(command)]
        return self.parse_text_to_nodes("\n".join(parts), allow_section_headings=True)


def remove_inherited_lines(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """Remove the generic lines that constructors without a docstring inherit from PyTorch and named tuples."""
    generic = "Initialize internal Module state", "Create new instance of"
    lines[:] = [line for line in lines if not line.startswith(generic)]


def setup(app: Sphinx) -> None:
    """Draw equations as MathML, and register the directive and the lexer of this site."""
    app.connect("autodoc-process-docstring", remove_inherited_lines)
    app.add_html_math_renderer("mathml", (inline_math, None), (block_math, None))
    app.add_directive("commands", CommandHelp)
    app.add_lexer("order", TextLexer)  # the order of layers in architecture.md
