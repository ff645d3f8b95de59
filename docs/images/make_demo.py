"""Draw docs/images/demo.svg: the real output of the demo, recorded by rich."""

import re
import tempfile
from pathlib import Path

from rich.console import Console

from fedloom import cli
from fedloom.config import parse, read_toml
from fedloom.progress import watch
from fedloom.run import run_config

ROOT = Path(__file__).parents[2]

with Path("/dev/null").open("w") as nowhere:
    console = Console(record=True, width=100, file=nowhere, force_terminal=False)
    cli._out = console
    console.print("$ make demo", style="bold")
    with tempfile.TemporaryDirectory() as folder, watch(console) as progress:
        config = parse(read_toml(ROOT / "configs" / "demo.toml"))
        result = run_config(config, out=Path(folder) / "demo", progress=progress)
        result.history.directory.path = Path("runs/demo")
        cli._close(result)
    svg = console.export_svg(title="fedloom")

# The picture must not fetch fonts from elsewhere.
svg = re.sub(r"@font-face\s*{[^}]*}", "", svg)
(ROOT / "docs" / "images" / "demo.svg").write_text(svg)
