"""The documentation site: `make docs` builds guides and API reference into build/docs, readable without a network.

Docstrings document arguments as `name: what it is`; here those become definition lists. The pages of commands come from
the command line itself.
"""

import os
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from docutils.parsers.rst import Directive
from pygments.lexers.shell import BashLexer
from sphinx import addnodes

import multidds

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # importing the trainers must not reach for a network

project = "multidds"
author = "the multidds authors"
release = version = multidds.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc"]
templates_path: list[str] = []
exclude_patterns = ["_build"]

html_theme = "furo"
html_title = f"multidds {release}"
html_static_path = ["static"]
html_css_files = ["site.css"]
html_show_sphinx = html_show_copyright = False
smartquotes = False  # options of commands begin with two hyphens
html_copy_source = False
html_show_sourcelink = False
pygments_style, pygments_dark_style = "friendly", "monokai"

myst_enable_extensions = ["attrs_inline", "deflist"]
myst_heading_anchors = 3
suppress_warnings = ["ref.python"]  # `step()` is the name of several methods: any of them will do

default_role = "py:obj"  # `Balancer` in a docstring leads to it where there is such a name
autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
autodoc_class_signature = "mixed"
python_maximum_signature_line_length = 90

_NORM = re.compile(r"\|(\w+)\|")  # the norm |v|, which would be a substitution
_ENTRY = re.compile(r"(\w+(?:, \w+)*): (.*)")


def arguments_as_definitions(app: Any, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    """`every: steps between updates.` becomes a definition list; code after `>>>` and other text stay as they are."""
    made: list[str] = []
    inside = False
    for line in (_NORM.sub(r"\\|\1\\|", line) for line in lines):
        entry = _ENTRY.fullmatch(line)
        if entry and entry[1][0].islower():
            terms = ", ".join(f"**{term}**" for term in entry[1].split(", "))
            made += ["", terms, f"    {entry[2]}"]
            inside = True
        elif inside and line.startswith("    "):
            made.append(line)
        else:
            made += [""] * inside + [line]
            inside = False
    lines[:] = made


class Commands(Directive):
    """Every command of `multidds` with its arguments and options, from the texts of `--help`."""

    def run(self) -> list[nodes.Node]:
        from multidds.commands.cli import parsers
        from multidds.nmt.commands import cli  # noqa: F401  (adds its commands)

        _, commands = parsers()
        return [self._section(f"multidds {word}", parser) for word, parser in commands.choices.items()]

    def _section(self, name: str, parser: Any) -> nodes.Node:
        section = nodes.section(ids=[nodes.make_id(name)], names=[name])
        actions = [action for action in parser._actions if action.dest != "help"]
        usage = " ".join([name, *(a.metavar or a.dest.upper() for a in actions if not a.option_strings)])
        section += [nodes.title(name, name), nodes.paragraph("", parser.description), nodes.literal_block(usage, usage)]
        entries = nodes.definition_list()
        for action in actions:
            term = nodes.term("", "", nodes.literal(text=", ".join(action.option_strings) or action.dest))
            entries += nodes.definition_list_item("", term, nodes.definition("", nodes.paragraph("", action.help)))
        section += entries
        self.state.document.note_implicit_target(section)
        return section


def pages_outside_as_downloads(app: Any, doctree: nodes.document) -> None:
    """Links to Markdown files outside the site, such as the log, become downloads. MyST would look for a page."""
    for link in list(doctree.findall(addnodes.pending_xref)):
        if link.get("refdomain") == "doc" and link["reftarget"] not in app.env.found_docs:
            file = Path(app.srcdir, link["reftarget"] + ".md")
            target = os.path.relpath(file, Path(app.srcdir, link["refdoc"]).parent)
            link.replace_self(
                addnodes.download_reference("", "", *link.children, refdoc=link["refdoc"], reftarget=target)
            )


def setup(app: Any) -> None:
    app.connect("doctree-read", pages_outside_as_downloads, priority=400)  # before Sphinx collects downloads
    app.connect("autodoc-process-docstring", arguments_as_definitions)
    app.add_directive("commands", Commands)
    app.add_lexer("console", BashLexer)  # our blocks are commands without a prompt, which would look like output
