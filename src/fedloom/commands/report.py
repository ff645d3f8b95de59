"""`fedloom report` and `view`: what came of runs."""

from __future__ import annotations

import webbrowser
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from fedloom.commands import options
from fedloom.commands.console import out as console
from fedloom.commands.console import print_json, print_numbers, say
from fedloom.commands.documents import report_document
from fedloom.commands.options import argument, option
from fedloom.core.errors import DataError
from fedloom_command import let_ctrl_c_interrupt

if TYPE_CHECKING:
    from fedloom.reports.findings import Findings
    from fedloom.reports.tables import Table


def report_command(
    paths: Annotated[
        list[Path],
        argument("Comparison, runs, or directories that hold runs."),
    ],
    out: Annotated[
        Path | None,
        option("File of the report; report.html in the directory by default."),
    ] = None,
    format_: Annotated[
        str,
        option(
            "Format of the report: html (with all tables beside), md, latex, csv.",
            "--format",
        ),
    ] = "html",
    as_json: options.Json = False,
) -> None:
    """Say which method to use and who gains: a page and tables from finished runs.

    Examples:
        fedloom report runs/compare
        fedloom report runs/ditto-seed0-1 runs/fedavg-seed0-1 --out both.html
        fedloom report runs/compare --format latex --out table.tex
    """
    options.expect_file(out, "--out")
    findings, written = write_and_show(paths, out, format_)
    if as_json:
        print_json(report_document("report", findings, written, ()))


def view_command(
    paths: Annotated[
        list[Path],
        argument("Runs, comparisons, or directories that (will) hold them."),
    ],
    port: Annotated[int, option("Port; 0 picks one that is free.")] = 0,
    browser: Annotated[bool, option("Open the page in the web browser.")] = True,
) -> None:
    """Follow runs while they go on, on a page that only this machine can open.

    Examples:
        fedloom view runs/compare
        fedloom view runs --port 8000 --no-browser
    """
    from fedloom.reports.live import Server
    from fedloom.reports.watch import Watch

    for path in paths:
        if not path.is_dir():
            raise DataError(f"{path}: no such directory.")
    with Server(Watch(paths), port) as server:
        say(f"{server.url} (Ctrl-C stops it)")
        if browser:
            webbrowser.open(server.url)
        let_ctrl_c_interrupt()
        with suppress(KeyboardInterrupt):
            server.serve_forever(poll_interval=0.2)
    say("Stopped.")


def write_and_show(
    paths: list[Path],
    out: Path | None = None,
    format_: str = "html",
    *,
    may_rename: bool = False,
) -> tuple[Findings, list[Path]]:
    """Write a report; print its ranking and where it is.

    Returns:
        What was found, and the files that were written.
    """
    from fedloom.reports import write_report

    findings, written = write_report(paths, out, format_, may_rename=may_rename)
    show_report(findings, written, may_be_renamed=may_rename)
    return findings, written


def show_report(
    findings: Findings, written: Sequence[Path], *, may_be_renamed: bool = False
) -> None:
    """Print the ranking of a report, its sentences, and where it is.

    Args:
        findings: what was found.
        written: its files, the asked-for one first.
        may_be_renamed: whether it has another name where files were in the way.
    """
    from fedloom.reports.headline import headline
    from fedloom.reports.report_tables import ranking_table, yardsticks_table
    from fedloom.reports.summary import summary

    show_table(ranking_table(findings, is_short=True))
    yardsticks = yardsticks_table(findings, is_short=True)
    if yardsticks is not None:
        show_table(yardsticks)
    for text in (headline(findings), *summary(findings), *findings.collection.remarks):
        console.print(f"\n{text}", highlight=False, markup=False)
    say(f"\nWritten to {written[0]}")
    if may_be_renamed and written[0].stem != "report":
        say(
            "Files under the names of the report were changed since it was written, or "
            "are not a report's; they were left as they are."
        )


def show_table(table: Table) -> None:
    """Print a table, all of it: what a row is about stands before every part of it."""
    from fedloom.reports.units import SPACE

    label, *headings = [column.title for column in table.columns]
    rows = [[cell.text.replace(" ", SPACE) for cell in row] for row in table.rows]
    console.print()
    print_numbers([label], headings, rows)
