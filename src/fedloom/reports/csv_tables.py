"""The numbers behind the tables, as CSV for other programs."""

from __future__ import annotations

from itertools import combinations

from fedloom.reports.findings import Findings
from fedloom.reports.runs import KIND
from fedloom.reports.tables import to_csv


def ranking_csv(findings: Findings) -> str:
    """The ranking in raw numbers."""
    names = ("mean", "error", "low", "high")
    estimates = ("last", "chosen", "validation", "worst_decile")
    header = ["place", "method", "algorithm"]
    header += [f"{which}_{name}" for which in estimates for name in names]
    header += ["chosen_rounds", "gain_mean", "gain_low", "gain_high", "gain_p"]
    header += ["gaining", "losing", "finished", "failed", "unfinished", "never_begun"]
    rows = []
    for place, s in enumerate(findings.ranking.standings, 1):
        row: list[object] = [place, s.method, s.algorithm]
        for estimate in (s.last, s.chosen, s.validation, s.worst):
            row += [getattr(estimate, name) for name in names]
        row.append(" ".join(str(n) for n in s.chosen_rounds))
        gain = findings.gain_of(s.method)
        if gain is None:
            row += [None] * 6
        else:
            row += [gain.mean.mean, gain.mean.low, gain.mean.high, gain.p]
            row += [gain.gaining, gain.losing]
        rows.append([*row, *s.counts.values()])
    return to_csv(header, rows)


def pairs_csv(findings: Findings) -> str:
    """Every pair in raw numbers; positive is better for the first."""
    header = ["first", "second", "better_by", "low", "high", "p", "p_holm", "seeds"]
    rows = []
    order = [s.method for s in findings.ranking.standings]
    for first, second in combinations(order, 2):
        contrast = findings.ranking.better_by(first, second)
        if contrast is not None:
            d = contrast.estimate
            numbers = [d.mean, d.low, d.high, contrast.p, contrast.adjusted, d.count]
            rows.append([first, second, *numbers])
    return to_csv(header, rows)


def clients_csv(findings: Findings) -> str:
    """Every client of every run in raw numbers, at the last round."""
    return to_csv(*client_rows(findings))


def client_rows(findings: Findings) -> tuple[list[str], list[list[object]]]:
    """The same as headings and rows."""
    advice, metric = findings.advice, findings.metric
    places = {(who.seed, who.name): n for n, who in enumerate(findings.who)}
    header = ["method", "seed", "client", "samples", metric, "validation", "train"]
    header += ["gain", "gain_error", "is_advised"]
    rows: list[list[object]] = []
    for (method, seed), run in findings.collection.counted.items():
        if run.last is None:
            continue
        score = run.last.get(KIND, run.part, metric)
        others = [run.last.get(KIND, part, metric) for part in ("validation", "train")]
        gain = findings.gain_of(method)
        sizes = None
        if run.client_data is not None:
            sizes = run.client_data.sizes[run.last.clients]
        for n, name in enumerate(run.last.names):
            place = places.get((seed, name), places.get((None, name)))
            samples = int(sizes[n]) if sizes is not None else None
            row = [method, seed, name, samples, float(score[n])]
            row += [float(values[n]) for values in others]
            if gain is None or place is None:
                row += [None, None]
            else:
                row += [float(gain.gain[place]), float(gain.error[place])]
            if advice is None or place is None:
                row.append(None)
            else:
                row.append(advice.method[place] == method)
            rows.append(row)
    return header, rows
