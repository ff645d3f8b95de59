"""Write a report: the page, and its tables beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

from fedloom.core.digests import (
    extent_of,
    read_checked_json,
    text_digest,
    write_checked_json,
)
from fedloom.core.errors import ConfigError, MessageError, unknown
from fedloom.core.files import atomic_write
from fedloom.reports import csv_tables
from fedloom.reports.collect import collect
from fedloom.reports.findings import Findings, work_out
from fedloom.reports.gain_tables import gains_table
from fedloom.reports.headline import headline
from fedloom.reports.markup import render
from fedloom.reports.page import page
from fedloom.reports.report_tables import ranking_table, yardsticks_table
from fedloom.reports.run_tables import cost_table, failures_table
from fedloom.reports.summary import summary


def _text(template: str, findings: Findings) -> str:
    """The answer and its most important tables."""
    return render(
        template,
        collection=findings.collection,
        headline=headline(findings),
        summary=summary(findings),
        ranking=ranking_table(findings),
        yardsticks=yardsticks_table(findings),
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

_LIST = ".fedloom-report.json"
"""Lists the files of reports in a folder, with their digests."""
_LIST_FORMAT = "fedloom-report-1"


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
        ConfigError: the format is not known, or a file that no report wrote is in the
            way of one that was not named; nothing is written then.
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
    is_named = out is not None
    if out is None:
        folder = paths[0] if len(paths) == 1 else Path()
        out = folder / f"report{ending}"
    texts = {out: write(findings)}
    if format_ == "html":
        texts |= {out.with_name(out.stem + e): w(findings) for e, w in _BESIDE.items()}
    _claim(out.parent, texts, named=out if is_named else None)
    for path, text in texts.items():
        with atomic_write(path) as part:
            part.write_text(text, encoding="utf-8")
    return findings, list(texts)


def _claim(folder: Path, texts: Mapping[Path, str], named: Path | None) -> None:
    """Write down which files of a folder are a report's, before they are written.

    Args:
        folder: where they go.
        texts: what goes there.
        named: the file that the user named, which may be replaced whatever it is.

    Raises:
        ConfigError: another file is there that no report wrote, or one that was changed
            since; nothing was written.
    """
    digests: dict[str, list[str]] = {}
    with suppress(MessageError):  # not there, or not ours
        listed = read_checked_json(
            folder / _LIST, "a list of reports", ("files",), format_=_LIST_FORMAT
        )
        digests = dict(listed["files"])
    for path, text in texts.items():
        now = [extent_of(path).digest] if path.is_file() else []
        is_ours = set(now) <= set(digests.get(path.name, ()))
        if path != named and not is_ours:
            raise ConfigError(
                f"{path}: is there already, and no report wrote it, or it was changed "
                "since. Move it away, or choose another --out. Nothing was written."
            )
        # Both, for a process that is killed now has written one of them.
        digests[path.name] = [*now, text_digest(text)]
    table = {"format": _LIST_FORMAT, "files": digests}
    write_checked_json(folder / _LIST, table)
