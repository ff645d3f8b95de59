"""Draw docs/images/demo.svg: the real output of the demo, recorded by rich."""

import os
import re
import tempfile
from pathlib import Path

from rich.console import Console

from fedloom import cli

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Run the demo in a folder of its own and keep what it prints."""
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(record=True, width=110, file=nowhere, force_terminal=False)
        cli._out = console
        console.print("$ make demo", style="bold")
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            cli.compare_command(out=Path("runs/demo"))
        svg = console.export_svg(title="fedloom")
    # The picture must not fetch fonts from elsewhere.
    svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
    (ROOT / "docs" / "images" / "demo.svg").write_text(svg, encoding="utf-8")


if __name__ == "__main__":  # the demo starts processes, which import this file
    main()
