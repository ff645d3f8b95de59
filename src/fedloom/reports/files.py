"""Write a report: the page, and its tables beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from fedloom.core.errors import ConfigError, unknown
from fedloom.core.files import atomic_write
from fedloom.reports import csv_tables
from fedloom.reports.collect import collect
from fedloom.reports.findings import Findings, headline, summary, work_out
from fedloom.reports.gain_tables import gains_table
from fedloom.reports.markup import render
from fedloom.reports.page import page
from fedloom.reports.report_tables import ranking_table
from fedloom.reports.run_tables import cost_table, failures_table


def _text(template: str, findings: Findings) -> str:
    """The answer and its most important tables."""
    return render(
        template,
        collection=findings.collection,
        headline=headline(findings),
        summary=summary(findings),
        ranking=ranking_table(findings),
        gains=gains_table(findings) if findings.gains is not None else None,
        failures=failures_table(findings),
        cost=cost_table(findings),
    )


FORMATS: Mapping[str, tuple[str, Callable[[Findings], str]]] = {
    "html": (".html", page),
    "md": (".md", partial(_text, "report.md")),
    "latex": (".tex", partial(_text, "report.tex")),
    "csv": (".csv", csv_tables.ranking_csv),
}
"""Name of each format, how its files end, and what writes it."""

_BESIDE: Mapping[str, Callable[[Findings], str]] = {
    **{ending: write for name, (ending, write) in FORMATS.items() if name != "html"},
    "-pairs.csv": csv_tables.pairs_csv,
    "-clients.csv": csv_tables.clients_csv,
}
"""What lies beside the page: how each name ends, and what writes it."""


def report(
    paths: Path | str | Sequence[Path | str],
    out: Path | str | None = None,
    *,
    format_: str = "html",
) -> Path:
    """Write the report of some runs, as `fedloom report` does.

    Args:
        paths: a comparison, a run directory or a folder that holds such; or several.
        out: the file to write; report.html in the one directory that was given, or in
            the working directory if there are several.
        format_: html writes the page and all tables beside it; md, latex and csv one
            file.

    Returns:
        The file that was written; for html the page.

    Raises:
        ConfigError: the format is not known.
        DataError: there is no run, runs cannot be put into one report, or the file
            cannot be written.
    """
    listed = [paths] if isinstance(paths, Path | str) else paths
    file = Path(out) if out is not None else None
    return write_report([Path(path) for path in listed], file, format_)[1][0]


def write_report(
    paths: Sequence[Path], out: Path | None = None, format_: str = "html"
) -> tuple[Findings, list[Path]]:
    """The same as `report`, for those who also want to know what was found.

    Args:
        paths: as there.
        out: as there.
        format_: as there.

    Returns:
        What was found, and the files that were written, the asked-for one first.

    Raises:
        ConfigError: as there.
        DataError: as there.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"report: {unknown('format', format_, FORMATS)}")
    findings = work_out(collect(paths))
    ending, write = FORMATS[format_]
    if out is None:
        folder = paths[0] if len(paths) == 1 else Path()
        out = folder / f"report{ending}"
    texts = {out: write(findings)}
    if format_ == "html":
        texts |= {out.with_name(out.stem + e): w(findings) for e, w in _BESIDE.items()}
    for path, text in texts.items():
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")
    return findings, list(texts)
