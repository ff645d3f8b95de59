"""Files of the repository outside of docs, as pages and downloads of the site."""

import ast
import os.path
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
FOLDER = "project"
"""Where the site has what lies outside of docs."""

_LINK = re.compile(r"(?<=\]\()([^()\s#:]+)(#[^()\s]*)?(?=\))")
"""The target of a link to a file, and the part of the page that it means."""
_SHOWN = {".md", ".py"}
"""Kinds of files that are pages; others are downloads."""


def linked_files(docs: Path) -> set[Path]:
    """Files outside of docs that some page of it links to."""
    found = set()
    for page in docs.rglob("*.md"):
        for target, _ in _LINK.findall(page.read_text(encoding="utf-8")):
            path = Path(os.path.normpath(page.parent / target))
            if not path.is_relative_to(docs) and path.is_file():
                found.add(path)
    return found


def page_of(source: Path) -> tuple[str, str | None]:
    """Where the site has a file of the repository, and the page that shows it.

    Args:
        source: the file.

    Returns:
        The place, and the text of the page; None for a download.
    """
    place = source.relative_to(ROOT).as_posix()
    if source.suffix not in _SHOWN:
        return f"{FOLDER}/{place}", None
    text = source.read_text(encoding="utf-8")
    if source.suffix == ".py":
        about = ast.get_docstring(ast.parse(text)) or ""
        title, _, rest = about.partition("\n")
        text = (
            f"# {title.rstrip('.')}\n\n{rest.strip()}\n\n"
            f'```python title="{place}"\n{text}```\n'
        )
    return f"{FOLDER}/{place.removesuffix('.py').removesuffix('.md')}.md", text


def with_site_links(markdown: str, uri: str) -> str:
    """A page's text whose links lead to places of the site.

    Args:
        markdown: the text.
        uri: the page's own place in the site.
    """
    source = Path("docs", uri)
    if uri.startswith(f"{FOLDER}/"):
        source = Path(uri).relative_to(FOLDER)

    def moved(link: re.Match[str]) -> str:
        target, part = link[1], link[2] or ""
        path = os.path.normpath(source.parent / target)
        inside, is_docs = path.removeprefix("docs/"), path.startswith("docs/")
        if path.startswith("..") or not (is_docs or (ROOT / path).is_file()):
            return link[0]
        place = inside if is_docs else page_of(ROOT / path)[0]
        if place.endswith(".ipynb") and Path(place).stem != Path(uri).stem:
            place = place.removesuffix(".ipynb") + ".md"
        return os.path.relpath(place, Path(uri).parent).replace(os.sep, "/") + part

    return _LINK.sub(moved, markdown)
