"""Text from the templates in templates/: HTML, Markdown and LaTeX.

Whatever enters an HTML template is escaped, except `Markup`. Templates of the others
escape by the filters `markdown` and `latex`.
"""

from __future__ import annotations

import base64
import hashlib
from functools import cache
from importlib.resources import files
from pathlib import PurePath
from typing import TYPE_CHECKING

from markupsafe import Markup

from fedloom.core.foreign_text import markdown_text

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


def _tight(text: str) -> str:
    """Numbers that a line may only break before a bracket."""
    space = "\N{NO-BREAK SPACE}"
    return text.replace(" ", space).replace(f"{space}(", " (")


def _asset(name: str) -> Markup:
    """A style sheet or script, to stand alone in an element of a page."""
    text = (files("fedloom.reports") / "assets" / name).read_text("utf-8")
    return Markup(text.strip())


def content_policy(*assets: str) -> str:
    """What a page may load: nothing but some style sheets and scripts, by their hashes.

    Args:
        *assets: names of files in assets/, each of which stands in the page alone in an
            element.
    """
    hashes: dict[str, list[str]] = {".css": [], ".js": []}
    for name in assets:
        digest = hashlib.sha256(_asset(name).encode()).digest()
        source = f"'sha256-{base64.b64encode(digest).decode()}'"
        hashes[PurePath(name).suffix].append(source)
    return (
        f"default-src 'none'; style-src {' '.join(hashes['.css'])}; "
        f"script-src {' '.join(hashes['.js'])}; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )


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
    environment.filters |= {"latex": latex, "markdown": markdown_text, "tight": _tight}
    return environment
