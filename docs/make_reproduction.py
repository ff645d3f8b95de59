"""Write docs/reproduction.md and its figures from the stored results."""

import sys
from pathlib import Path

from fedloom.experiments.page import Page

ROOT = Path(__file__).parents[1]


def main(folder: Path = ROOT / "docs") -> None:
    """Write the page, and replace the figures.

    Args:
        folder: where the page goes; its figures go below.
    """
    page = Page(ROOT / "results")
    figures = folder / "images" / "reproduction"
    figures.mkdir(parents=True, exist_ok=True)
    for old in figures.glob("*.svg"):
        old.unlink()
    for name, svg in page.figures.items():
        (figures / name).write_text(svg, encoding="utf-8")
    (folder / "reproduction.md").write_text(page.text, encoding="utf-8")


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
