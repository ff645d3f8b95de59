"""The numbers behind the tables, as CSV for other programs."""

from __future__ import annotations

from fedloom.reports.findings import Findings
from fedloom.reports.runs import KIND
from fedloom.reports.tables import to_csv


def ranking_csv(findings: Findings) -> str:
    """The ranking in raw numbers."""
    names = ("mean", "error", "low", "high")
    estimates = ("last", "chosen", "validation", "worst_decile")
    header = ["place", "method", "algorithm"]
    header += [f"{which}_{name}" for which in estimates for name in names]
    header += ["chosen_rounds", "gain_mean", "gain_low", "gain_high"]
    header += ["gaining", "losing", "finished", "failed", "unfinished", "never_begun"]
    rows = []
    for place, s in enumerate(findings.ranking.standings, 1):
        row: list[object] = [place, s.method, s.algorithm]
        for estimate in (s.last, s.chosen, s.validation, s.worst):
            row += [getattr(estimate, name) for name in names]
        row.append(" ".join(str(n) for n in s.chosen_rounds))
        gain = findings.gain_of(s.method)
        if gain is None:
            row += [None] * 5
        else:
            row += [gain.mean.mean, gain.mean.low, gain.mean.high]
            row += [gain.gaining, gain.losing]
        rows.append([*row, *s.counts.values()])
    return to_csv(header, rows)


def pairs_csv(findings: Findings) -> str:
    """Every pair in raw numbers."""
    header = ["first", "second"]
    for which in ("last", "chosen"):
        header += [f"{which}_{n}" for n in ("difference", "low", "high", "p", "p_holm")]
    rows = []
    for pair in findings.ranking.pairs:
        row: list[object] = [pair.first, pair.second]
        for test, p in ((pair.last, pair.p_last), (pair.chosen, pair.p_chosen)):
            d = test.difference
            row += [d.mean, d.low, d.high, test.p, p]
        rows.append([*row, pair.last.difference.count])
    return to_csv([*header, "seeds"], rows)


def clients_csv(findings: Findings) -> str:
    """Every client of every run in raw numbers, at the last round."""
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
        sizes = run.client_data.sizes if run.client_data is not None else None
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
    return to_csv(header, rows)
