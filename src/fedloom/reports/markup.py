"""Text from the templates in templates/: HTML, Markdown and LaTeX.

Whatever enters an HTML template is escaped, except `Markup`. Templates of the others
escape by the filters `markdown` and `latex`.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

from markupsafe import Markup

if TYPE_CHECKING:
    from jinja2 import Environment


def render(template: str, **values: object) -> str:
    """A template with its values; `Markup` if it is HTML.

    Args:
        template: name of a file in templates/.
        **values: what it needs.
    """
    text = _environment().get_template(template).render(values)
    return Markup(text) if template.endswith(".html") else text


def latex(text: str) -> str:
    """Text that LaTeX sets as it stands."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


def markdown(text: str) -> str:
    """Text that a cell of a Markdown table shows as it stands."""
    return text.replace("|", r"\|").replace("<", "&lt;")


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
    "\N{MINUS SIGN}": "$-$",
    "\N{PLUS-MINUS SIGN}": r"$\pm$",
    "\N{MULTIPLICATION SIGN}": r"$\times$",
    "\N{EN DASH}": "--",
    "\N{NO-BREAK SPACE}": "~",
}


def _asset(name: str) -> Markup:
    """A style sheet or script, to stand in a page."""
    text = (files("fedloom.reports") / "assets" / name).read_text("utf-8")
    return Markup(text.strip())


@cache
def _environment() -> Environment:
    # Here, for Jinja2 is slow to import and most runs of the library write no report.
    from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape

    environment = Environment(
        loader=PackageLoader("fedloom.reports"),
        autoescape=select_autoescape(["html"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.globals["asset"] = _asset
    environment.filters |= {"latex": latex, "markdown": markdown}
    return environment
