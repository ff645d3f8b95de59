"""What commands print with --json: one document each (docs/reference/json.md).

Every document has `command`; the names of fields are the words of tables and reports.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedloom.clients import Federation
    from fedloom.core.settings import Setting
    from fedloom.export import Newcomer
    from fedloom.reports.findings import Findings
    from fedloom.reports.ranking import Standing
    from fedloom.results.audit import Audit
    from fedloom.results.gain import Gain
    from fedloom.results.statistics import Estimate
    from fedloom.runs import Result
    from fedloom.tuning.result import TunedMethod

Document = dict[str, Any]


def run_document(command: str, result: Result, gain: Gain | None) -> Document:
    """What a run came to."""
    table, federation = result.table(), result.federation
    return {
        "command": command,
        "path": result.path,
        "algorithm": result.history.training.algorithm.name,
        "data": federation.dataset.name,
        "clients": federation.count,
        "metric": table.metric,
        "round": table.round,
        "scores": list(table.rows),
        "gain": None if gain is None else _gain(gain),
        "remarks": [str(remark) for remark in result.remarks],
    }


def _gain(gain: Gain) -> Document:
    columns: Any = gain.columns()
    names = ("samples", "together", "alone", "gain")
    return {
        "metric": gain.metric,
        "clients": [
            {"client": client, **{name: columns[name][n] for name in names}}
            for n, client in enumerate(gain.names)
        ],
    }


def report_document(
    command: str, findings: Findings, written: Sequence[Path], failures: Sequence[str]
) -> Document:
    """What a report says of some runs."""
    from fedloom.reports.headline import headline
    from fedloom.reports.summary import summary

    standings = findings.ranking.standings
    return {
        "command": command,
        "pick": findings.pick,
        "headline": headline(findings),
        "summary": list(summary(findings)),
        "metric": findings.metric,
        "part": findings.part,
        "methods": [
            {"place": place, **_standing(findings, standing)}
            for place, standing in enumerate(standings, 1)
        ],
        "remarks": list(map(str, findings.collection.remarks)),
        "failures": list(failures),
        "written": list(written),
    }


def _standing(findings: Findings, standing: Standing) -> Document:
    gain = findings.gain_of(standing.method)
    return {
        "method": standing.method,
        "algorithm": standing.algorithm,
        "last": _estimate(standing.last),
        "chosen": _estimate(standing.chosen),
        "chosen_rounds": standing.chosen_rounds,
        "worst_decile": _estimate(standing.worst),
        "gain": None
        if gain is None
        else {**_estimate(gain.mean), "p": gain.p, "gaining": gain.gaining},
        "seeds": dict(standing.counts),
    }


def _estimate(estimate: Estimate) -> Document:
    return {name: getattr(estimate, name) for name in ("mean", "error", "low", "high")}


def tune_document(
    tuned: Sequence[TunedMethod], failed: Sequence[str], path: Path
) -> Document:
    """What a search found."""
    methods = [asdict(method) for method in tuned]
    return {"command": "tune", "path": path, "methods": methods, "failed": failed}


def data_document(clients: Federation, written: Path | None) -> Document:
    """Who holds what."""
    from fedloom.clients import picture

    parts = ("train", "validation", "test")
    sizes = {name: getattr(clients, name).sizes for name in parts}
    return {
        "command": "data",
        "understood": clients.describe(),
        "warning": clients.split_warning,
        "summary": dict(picture.summarise(clients)),
        "clients": [
            {"client": name, **{part: sizes[part][n] for part in parts}}
            for n, name in enumerate(clients.names)
        ],
        "hash": clients.hash,
        "written": written,
    }


def settings_list(settings: Sequence[Setting]) -> list[Document]:
    """Settings with type, default and sentence."""
    return [
        {
            "name": s.name,
            "type": s.kind,
            "required": s.required,
            "default": s.default,
            "meaning": s.doc.replace("\n", " "),
        }
        for s in settings
    ]


def newcomers_document(newcomers: Sequence[Newcomer], path: Path | None) -> Document:
    """What clients who were never there gain."""
    names = ("name", "samples", "score", "shared", "alone", "gain", "gain_throughout")
    return {
        "command": "personalize",
        "metric": newcomers[0].metric,
        "newcomers": [
            {name: getattr(newcomer, name) for name in names} for newcomer in newcomers
        ],
        "path": path,
    }


def audit_document(found: Audit, path: Path) -> Document:
    """What attacks on a run came to; pictures are in the file alone."""
    table = found.to_table()
    for case in (table["inversions"] or {}).get("cases", ()):
        del case["guesses"]
    if table["inversions"] is not None:
        del table["inversions"]["truth"]
    return {"command": "audit", "path": path, **table}


def error_document(error: Exception, exit_code: int) -> Document:
    """Why a command has no result."""
    notes: Sequence[str] = getattr(error, "__notes__", ())
    return {
        "error": type(error).__name__,
        "exit_code": exit_code,
        "message": str(error),
        "notes": list(notes),
    }


def catalogue_document(
    methods: Sequence[Mapping[str, Any]], others: Mapping[str, Mapping[str, str]]
) -> Document:
    """Everything that there is to choose from."""
    return {
        "command": "list",
        "methods": list(methods),
        **{
            section: [{"name": n, "about": about} for n, about in names.items()]
            for section, names in others.items()
        },
    }
