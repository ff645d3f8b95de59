"""A notebook as a page: it runs while the site is built, which fails if it does."""

import os
import re
import tempfile
import textwrap
from pathlib import Path
from typing import Any

import nbformat
from jupyter_client.manager import AsyncKernelManager
from nbclient import NotebookClient

SECONDS = 300
"""What one cell may take."""
WIDTH = 76
"""Characters of a printed sentence in a line."""


def notebook_page(path: Path, *, runs: bool = True) -> str:
    """The page of a notebook, with what its cells print.

    Args:
        path: the notebook.
        runs: whether it is run first; otherwise the page shows no output.

    Raises:
        nbclient.exceptions.CellExecutionError: a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    if runs:
        with tempfile.TemporaryDirectory() as folder:
            _run(notebook, folder)
    note = (
        f"*This page is a notebook, run when the site was built: "
        f"[download {path.name}]({path.name}).*"
    )
    parts = [part for cell in notebook.cells for part in _cell(cell)]
    return "\n\n".join([parts[0], note, *parts[1:]]) + "\n"


def _run(notebook: Any, folder: str) -> None:
    """Run all cells of a notebook in a folder of its own."""
    # Files of the machine carry what the kernel says; no port is opened for it.
    transport = "ipc" if os.name == "posix" else "tcp"
    kernel = AsyncKernelManager(kernel_name="python3", transport=transport)
    kernel.ip = str(Path(folder, "kernel")) if transport == "ipc" else kernel.ip
    place = {"metadata": {"path": folder}}
    NotebookClient(notebook, km=kernel, timeout=SECONDS, resources=place).execute()


def _cell(cell: Any) -> list[str]:
    """A cell and what it left, as parts of a page."""
    if cell.cell_type == "markdown":
        heading, blank, rest = cell.source.partition("\n\n")
        return [heading, rest] if blank and heading.startswith("# ") else [cell.source]
    parts = [f"```python\n{cell.source}\n```"]
    for output in cell.get("outputs", []):
        if output.output_type == "stream" and output.name == "stdout":
            parts.append(_text(output.text))
        elif output.output_type in ("execute_result", "display_data"):
            parts.append(_shown(output.data))
    return [part for part in parts if part]


def _shown(data: dict[str, Any]) -> str:
    """The best of the forms in which an output comes."""
    for kind in ("image/svg+xml", "text/html"):
        if kind in data:
            # A blank line would end the block for Markdown.
            body = re.sub(r"\n\s*\n", "\n", data[kind])
            return f'<div class="output">\n{body}\n</div>'
    if "image/png" in data:
        source = f"data:image/png;base64,{data['image/png'].strip()}"
        return f'<div class="output"><img alt="" src="{source}"></div>'
    if "text/markdown" in data:
        return str(data["text/markdown"]).strip()
    return _text(data.get("text/plain", ""))


def _text(text: str) -> str:
    """Printed text as a block, without the codes that colour a terminal."""
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text).rstrip()
    lines = [_folded(line) for line in plain.splitlines()]
    return "\n".join(["```text { .output }", *lines, "```"]) if lines else ""


def _folded(line: str) -> str:
    """A line as it is if it may be one of a table, a long sentence in several."""
    is_sentence = "  " not in line.strip() and not line.startswith("|")
    return textwrap.fill(line, WIDTH) if is_sentence else line
