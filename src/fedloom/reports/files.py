"""Write a report: the page, and its tables beside it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from fedloom.core.errors import ConfigError, unknown
from fedloom.reports import csv_tables, report_tables
from fedloom.reports.collect import collect
from fedloom.reports.findings import Findings, headline, summary, work_out
from fedloom.reports.page import page


def _markdown(findings: Findings) -> str:
    parts = [f"# {findings.found.title}", headline(findings), *summary(findings)]
    parts += [f"**Note.** {remark}" for remark in findings.found.remarks]
    if findings.ranking.standings:
        parts.append(report_tables.ranking_table(findings).to_markdown())
    if findings.gains is not None:
        parts.append("## Who gains")
        parts.append(report_tables.gains_table(findings, findings.gains).to_markdown())
    failures = report_tables.failures_table(findings)
    if failures is not None:
        parts.append(failures.to_markdown())
    parts += ["## Cost", report_tables.cost_table(findings).to_markdown()]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _latex(findings: Findings) -> str:
    tables = [report_tables.ranking_table(findings).to_latex("ranking")]
    if findings.gains is not None:
        tables.append(
            report_tables.gains_table(findings, findings.gains).to_latex("gains")
        )
    tables.append(report_tables.cost_table(findings).to_latex("cost"))
    return "% Needs the package booktabs.\n" + "\n".join(tables)


FORMATS: Mapping[str, tuple[str, Callable[[Findings], str]]] = {
    "html": ("html", page),
    "md": ("md", _markdown),
    "latex": ("tex", _latex),
    "csv": ("csv", csv_tables.ranking_csv),
}
"""Name of each format, how its files end, and what writes it."""

_BESIDE: Mapping[str, Callable[[Findings], str]] = {
    "-pairs.csv": csv_tables.pairs_csv,
    "-clients.csv": csv_tables.clients_csv,
}


def write_report(
    paths: Sequence[Path], out: Path | None = None, format_: str = "html"
) -> tuple[Findings, list[Path]]:
    """Read runs, work out what they say and write it down.

    Args:
        paths: comparisons, run directories, or folders that hold such.
        out: the file to write; report.html in the one directory that was given, or in
            the working directory if there are several.
        format_: html writes the page and all tables beside it; md, latex and csv one
            file.

    Returns:
        What was found, and the files that were written, the asked-for one first.

    Raises:
        ConfigError: the format is not known, or the file cannot be written.
        DataError: there is no run, or runs cannot be put into one report.
    """
    if format_ not in FORMATS:
        raise ConfigError(f"report: {unknown('format', format_, FORMATS)}")
    findings = work_out(collect(paths))
    ending, write = FORMATS[format_]
    if out is None:
        folder = paths[0] if len(paths) == 1 else Path()
        out = folder / f"report.{ending}"
    texts = {out: write(findings)}
    if format_ == "html":
        for name, (ending, also) in FORMATS.items():
            if name != "html":
                texts[out.with_suffix(f".{ending}")] = also(findings)
        for ending, also in _BESIDE.items():
            texts[out.with_name(out.stem + ending)] = also(findings)
    for path, text in texts.items():
        _write(path, text)
    return findings, list(texts)


def _write(path: Path, text: str) -> None:
    """Whole or not at all."""
    part = path.with_name(path.name + ".part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise ConfigError(f"{path}: cannot be written ({error.strerror}).") from error
