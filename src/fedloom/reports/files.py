"""Write a report: the page, and its tables beside it."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Protocol

from fedloom.core.digests import (
    extent_of,
    read_checked_json,
    text_digest,
    write_checked_json,
)
from fedloom.core.errors import ConfigError, MessageError, shown, unknown
from fedloom.core.files import atomic_write, write_text
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


class Reportable(Protocol):
    """What came of a run or a comparison, and can be reported on."""

    def report(self, out: str | Path | None = None, *, format_: str = "html") -> Path:
        """Write the report."""
        ...


def report(
    paths: Path | str | Reportable | Sequence[Path | str],
    out: Path | str | None = None,
    *,
    format_: str = "html",
) -> Path:
    """Write the report of some runs, as `fedloom report` does.

    Example:
        >>> import fedloom, tempfile, torch
        >>> x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
        >>> clients = fedloom.federation(x, x[:, 0] > 0, clients=["a", "b", "c"] * 30)
        >>> result = fedloom.compare("ditto", "mlr", clients, seeds=1, rounds=2)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     fedloom.report(result, f"{folder}/which.html").name
        'which.html'

    Args:
        paths: what `fedloom.run` or `fedloom.compare` gave; or a comparison, a run
            directory or a folder that holds such; or several of these.
        out: the file to write, which ends as the format does; report.html in the one
            directory that was given, or in the working directory if there are several.
        format_: html writes the page and all tables beside it; md, latex and csv one
            file.

    Returns:
        The file that was written; for html the page.

    Raises:
        ConfigError: the format is not known, `out` does not end as its files do, or a
            file that no report wrote is in the way; nothing is written then.
        DataError: there is no run, runs cannot be put into one report, or the file
            cannot be written.
    """
    if not isinstance(paths, Path | str | Sequence):
        if not hasattr(paths, "report"):
            raise ConfigError(
                "report: expected what fedloom.run or fedloom.compare gave, or a "
                f"directory of runs; found {shown(paths)}."
            )
        return paths.report(out, format_=format_)
    listed = [paths] if isinstance(paths, Path | str) else paths
    file = Path(out) if out is not None else None
    return write_report([Path(path) for path in listed], file, format_)[1][0]


def write_report(
    paths: Sequence[Path],
    out: Path | None = None,
    format_: str = "html",
    *,
    may_rename: bool = False,
) -> tuple[Findings, list[Path]]:
    """The same as `report`, for those who also want to know what was found.

    Args:
        paths: as there.
        out: as there.
        format_: as there.
        may_rename: where `out` is not given and files that no report wrote are in the
            way, whether to write report-2.html and so on instead.

    Returns:
        What was found, and the files that were written, the asked-for one first.

    Raises:
        ConfigError: as there.
        DataError: as there.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"report: {unknown('format', format_, FORMATS)}")
    ending, write = FORMATS[format_]
    if out is not None:
        _check_ending(out, format_)
    file = out or (paths[0] if len(paths) == 1 else Path()) / f"report{ending}"
    findings = work_out(collect(paths))
    texts = {file.name: write(findings)}
    if format_ == "html":
        texts |= {file.stem + end: make(findings) for end, make in _BESIDE.items()}
    digests = _read_digests(file.parent)
    stem = file.stem
    for number in itertools.count(2):
        obstacle = _obstacle(file.parent, texts, digests)
        if obstacle is None:
            break
        if out is not None or not may_rename:
            raise ConfigError(
                f"{obstacle}: is there already, and no report wrote it, or it was "
                "changed since. Move it away, or choose another --out. Nothing was "
                "written."
            )
        texts = {
            f"report-{number}{name.removeprefix(stem)}": text
            for name, text in texts.items()
        }
        stem = f"report-{number}"
    _claim(file.parent, texts, digests)
    for name, text in texts.items():
        with atomic_write(file.with_name(name)) as part:
            write_text(part, text)
    return findings, [file.with_name(name) for name in texts]


def _check_ending(out: Path, format_: str) -> None:
    """Refuse the name of a file that says another format than was asked for.

    Raises:
        ConfigError: it does, or says none.
    """
    ending = FORMATS[format_][0]
    if out.suffix.lower() == ending:
        return
    others = [n for n, (end, _) in FORMATS.items() if end == out.suffix.lower()]
    instead = f", or --format {others[0]}" if others else ""
    raise ConfigError(
        f"report: expected a file that ends with {ending}, as the format {format_} "
        f"does, found {str(out)!r}. Give --out {out.with_suffix(ending)}{instead} "
        "(out and format_ in Python)."
    )


def _read_digests(folder: Path) -> dict[str, list[str]]:
    """The digests of the files of a folder that reports wrote, by name.

    Nothing if no report wrote the list, or it is damaged: then no file is a report's.
    """
    try:
        listed = read_checked_json(
            folder / _LIST, "a list of reports", ("files",), format_=_LIST_FORMAT
        )["files"]
    except MessageError:
        return {}
    is_sound = isinstance(listed, dict) and all(
        isinstance(digests, list) and all(isinstance(d, str) for d in digests)
        for digests in listed.values()
    )
    return listed if is_sound else {}


def _obstacle(
    folder: Path, names: Iterable[str], digests: Mapping[str, Sequence[str]]
) -> Path | None:
    """Something under one of these names that no report wrote, or changed since."""
    for name in names:
        path = folder / name
        if not os.path.lexists(path):
            continue
        if not path.is_file() or extent_of(path).digest not in digests.get(name, ()):
            return path
    return None


def _claim(
    folder: Path, texts: Mapping[str, str], digests: Mapping[str, list[str]]
) -> None:
    """Write down which files of a folder are a report's, before they are written."""
    files = dict(digests)
    for name, text in texts.items():
        path = folder / name
        # Both, for a process that is killed now has written one of them.
        now = [extent_of(path).digest] if path.is_file() else []
        files[name] = [*now, text_digest(text)]
    write_checked_json(folder / _LIST, {"format": _LIST_FORMAT, "files": files})
