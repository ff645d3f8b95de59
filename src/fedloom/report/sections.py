"""The parts of the page, each from findings to HTML."""

from __future__ import annotations

import math
import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from fedloom.report import contents
from fedloom.report.charts import (
    Bar,
    Curve,
    Swarm,
    block_mean,
    forest,
    heat_map,
    line_chart,
    scatter,
    small_lines,
    swarm_chart,
)
from fedloom.report.collect import KIND, Run
from fedloom.report.findings import Findings
from fedloom.report.gains import drivers as correlations
from fedloom.report.ranking import estimate_of, other_numbers
from fedloom.report.svg import Style
from fedloom.report.units import count, plain, seconds, size, unit_of, words
from fedloom.results.rows import Round
from fedloom.results.statistics import Estimate, over_seeds

Numbers = NDArray[np.float64]

_PLACES = 50
"""Most places of a curve."""

_SIDE = 48
"""Most rows and columns of a heat map."""


@dataclass(frozen=True)
class Look:
    """How the methods look, best first."""

    styles: Mapping[str, Style]

    @classmethod
    def of(cls, findings: Findings) -> Look:
        """Colours in the order of the ranking; the baseline is grey."""
        styles, place = {}, 0
        for standing in findings.ranking.standings:
            if standing.method == findings.found.baseline:
                styles[standing.method] = Style(0, is_baseline=True)
            else:
                styles[standing.method] = Style(place)
                place += 1
        return cls(styles)


def figure(drawing: str, caption: str, kind: str = "") -> str:
    """A drawing with its caption."""
    css = f' class="{kind}"' if kind else ""
    return f"<figure{css}>{drawing}<figcaption>{escape(caption)}</figcaption></figure>"


def more(title: str, body: str) -> str:
    """Something to open."""
    return f"<details><summary>{escape(title)}</summary>{body}</details>"


def ranking(findings: Findings, look: Look) -> str:
    """The methods in order."""
    standings = [s for s in findings.ranking.standings if s.last.count]
    body = ""
    if standings:
        average = [
            Bar(
                s.method,
                look.styles[s.method],
                s.last,
                s.chosen if s.chosen.count else None,
                (
                    f"last round: {_told(findings, s.last)}",
                    f"chosen round: {_told(findings, s.chosen)}",
                ),
            )
            for s in standings
        ]
        tail = [
            Bar(
                s.method,
                look.styles[s.method],
                s.worst,
                None,
                (_told(findings, s.worst), ""),
            )
            for s in standings
            if s.worst.count
        ]
        has_choice = any(bar.second is not None for bar in average)
        body = _forest(
            findings,
            average,
            f"{findings.metric} of the average client",
            "The average client, with the 95 % interval: solid at the last round"
            + (
                ", hollow at the round chosen on validation data."
                if has_choice
                else "."
            ),
        )
        if tail:
            body += _forest(
                findings,
                tail,
                f"{findings.metric} of the worst tenth of the clients",
                "The tenth of the clients that does worst, at the last round.",
            )
        body = f'<div class="grid two">{body}</div>'
    body += contents.ranking_table(findings).to_html("ranking-table")
    failures = contents.failures_table(findings)
    if failures is not None:
        body += failures.to_html("failures-table")
    if len(findings.found.seeds) > 1 and findings.ranking.pairs:
        pairs = contents.pairs_table(findings).to_html("pairs-table")
        body += more("Every pair of methods", f"<p>{escape(_PAIRING)}</p>{pairs}")
    kinds = contents.kinds_table(findings).to_html("kinds-table")
    return body + more("Shared, team and personal models, and other scores", kinds)


def _told(findings: Findings, estimate: Estimate) -> str:
    return findings.unit.estimate(estimate) + findings.unit.suffix


def _forest(findings: Findings, bars: Sequence[Bar], title: str, caption: str) -> str:
    described = "; ".join(f"{b.name} {_told(findings, b.first)}" for b in bars)
    drawing = forest(
        bars,
        title,
        described,
        x_title=_score_title(findings),
        show=findings.unit.tick,
    )
    return figure(drawing, caption)


_PAIRING = (
    "What is compared is the mean over clients, and what is repeated is the seed, "
    "which draws the split, the first model, the cohorts and the batches, the same for "
    "every method; so methods are paired by seed. Clients of one seed are not counted "
    "as repetitions: they trained together from one start and in the same cohorts, and "
    "the luck of one is the luck of many. The t-test takes the differences to be "
    "roughly normal, which few seeds can neither show nor refute. Holm's correction "
    "holds the chance of any false alarm among the pairs with training alone, and "
    "among all other pairs, at 5 %."
)


def _score_title(findings: Findings) -> str:
    suffix = findings.unit.suffix.strip()
    return f"{findings.part} {findings.metric}" + (f", {suffix}" if suffix else "")


def learning(findings: Findings, look: Look) -> str:
    """Scores against rounds, steps, bytes and seconds."""
    axes: tuple[tuple[str, str, Callable[[Round], float], Callable[[float], str]], ...]
    axes = (
        ("rounds", "round", lambda r: 0.0, lambda v: f"{v:.0f}"),
        (
            "gradient steps",
            "gradient steps of the average client",
            lambda r: float(r.steps),
            count,
        ),
        (
            "bytes",
            "bytes of all clients, down and up",
            lambda r: float(
                r.bytes_down + r.bytes_up + r.team_bytes_down + r.team_bytes_up
            ),
            size,
        ),
        ("seconds", "seconds of training", lambda r: r.seconds, seconds),
    )
    unit, drawn = findings.unit, []
    for name, x_title, cost, show in axes:
        curves = []
        for standing in findings.ranking.standings:
            curve = _curve(findings, look, standing.method, name, cost, show)
            if curve is not None:
                curves.append(curve)
        if not curves or not any(max(curve.x) > 0 for curve in curves):
            continue
        described = "; ".join(
            f"{c.name} ends at {unit.score(c.y[-1])} after {show(c.x[-1])}"
            + (" rounds" if name == "rounds" else "")
            for c in curves
        )
        drawing = line_chart(
            curves,
            f"{findings.metric} against {name}",
            described,
            x_title=x_title,
            y_title=_score_title(findings),
            show_x=show,
            show_y=unit.tick,
            bounds=(0.0, 1.0) if findings.metric == "accuracy" else (0.0, None),
        )
        drawn.append(f"<figure><h3>Against {name}</h3>{drawing}</figure>")
    if not drawn:
        return ""
    note = (
        "Lines are means over seeds, bands one standard error. A method that sends "
        "nothing is a flat line at its last score."
    )
    return f'<p class="note">{note}</p><div class="grid two">{"".join(drawn)}</div>'


def _curve(
    findings: Findings,
    look: Look,
    method: str,
    name: str,
    cost: Callable[[Round], float],
    show: Callable[[float], str],
) -> Curve | None:
    runs = [run for run in findings.found.of(method) if run is not None]
    if not runs:
        return None
    common = set.intersection(*({row.round for row in run.evaluated} for run in runs))
    rounds = _thin(sorted(common))
    if not rounds:
        return None
    x, y, error, tips = [], [], [], []
    spent = {run.seed: _spent(run, cost) for run in runs}
    for number in rounds:
        estimate = over_seeds([run.number(number, findings.metric) for run in runs])
        place = float(number)
        if name != "rounds":
            place = float(np.mean([spent[run.seed][number] for run in runs]))
        if name == "gradient steps":
            place /= int(runs[0].manifest["clients"])
        x.append(place)
        y.append(estimate.mean)
        error.append(estimate.error)
        near = f"round {number}" + (f", {show(place)}" if name != "rounds" else "")
        tips.append(f"{near}: {findings.unit.score(estimate.mean)}")
    return Curve(method, look.styles[method], x, y, error, tips)


def _spent(run: Run, cost: Callable[[Round], float]) -> dict[int, float]:
    total, found = 0.0, {}
    for row in run.rounds:
        total += cost(row)
        found[row.round] = total
    return found


def _thin(rounds: list[int]) -> list[int]:
    if len(rounds) <= _PLACES:
        return rounds
    places = np.unique(np.linspace(0, len(rounds) - 1, _PLACES).round().astype(int))
    return [rounds[n] for n in places]


def clients(findings: Findings, look: Look) -> str:
    """How scores are spread over clients, and how they go with local size."""
    unit, found, swarms, panels = findings.unit, findings.found, [], []
    data = {
        s.method: _client_scores(findings, s.method) for s in findings.ranking.standings
    }
    data = {method: rows for method, rows in data.items() if rows[0].size}
    if not data:
        return ""
    worst = f"{findings.metric}_worst_decile"
    for method, (score, _, tips) in data.items():
        swarms.append(
            Swarm(
                method,
                look.styles[method],
                score,
                tips,
                float(np.nanmean(score)) if np.isfinite(score).any() else math.nan,
                estimate_of(found, method, worst).mean,
            )
        )
    described = "; ".join(
        f"{s.name}: mean {unit.score(s.mean)}, worst tenth {unit.score(s.low)}"
        for s in swarms
    )
    drawing = swarm_chart(
        swarms,
        f"{findings.metric} of every client",
        described,
        x_title=_score_title(findings),
        show=unit.tick,
        bounds=(0.0, 1.0) if findings.metric == "accuracy" else (0.0, None),
    )
    seeds = " of every seed" if len(found.seeds) > 1 else ""
    caption = (
        f"Every client{seeds} at the last round. Upright line: mean. Triangle: mean of "
        "the tenth that does worst."
    )
    body = figure(drawing, caption)
    sizes = np.concatenate([size_ for _, size_, _ in data.values()])
    scores = np.concatenate([score for score, _, _ in data.values()])
    if not (sizes > 0).any() or not np.isfinite(scores).any():
        return f'<div class="grid two">{body}</div>'
    x_range = (float(sizes[sizes > 0].min()), float(sizes.max()))
    y_range = (float(np.nanmin(scores)), float(np.nanmax(scores)))
    alone = data.get(found.baseline or "")
    for method, (score, size_, tips) in data.items():
        panels.append(
            scatter(
                method,
                look.styles[method],
                size_,
                score,
                tips,
                f"{method}: {findings.metric} against training samples",
                reference=(
                    (alone[1], alone[0])
                    if alone is not None and method != found.baseline
                    else None
                ),
                x_range=x_range,
                y_range=y_range,
                show_x=count,
                show_y=unit.tick,
            )
        )
    caption = (
        f"{_score_title(findings)} against a client's training samples. The line joins "
        "the means of the small, middle and large third of the clients"
        + (
            f"; the dashed grey one is {found.baseline}'s."
            if alone is not None
            else "."
        )
    )
    cells = "".join(
        f'<div data-panel="{escape(m)}">{p}</div>'
        for m, p in zip(data, panels, strict=True)
    )
    return (
        f'<div class="grid two">{body}<figure><div class="grid small">{cells}</div>'
        f"<figcaption>{escape(caption)}</figcaption></figure></div>"
    )


def _client_scores(
    findings: Findings, method: str
) -> tuple[Numbers, Numbers, list[str]]:
    """Scores, training samples and words of a method's clients, seed after seed."""
    scores, sizes, tips = [], [], []
    several = len(findings.found.seeds) > 1
    for run in findings.found.of(method):
        if run is None or run.last is None:
            continue
        own = run.last.get(KIND, run.part, findings.metric)
        many = run.shares.sizes if run.shares is not None else np.zeros(len(own))
        scores.append(own)
        sizes.append(many.astype(float))
        for n, name in enumerate(run.last.names):
            where = f"seed {run.seed}, " if several else ""
            tips.append(
                f"{where}client {_safe(name)}, {many[n]:.0f} samples: "
                f"{findings.unit.score(float(own[n]))}"
            )
    if not scores:
        return np.array([]), np.array([]), []
    return np.concatenate(scores), np.concatenate(sizes), tips


def _safe(name: str) -> str:
    """A name in a list whose entries are kept apart by bars."""
    return name.replace("|", "/")


def who_gains(findings: Findings, look: Look) -> str:
    """Every client against training alone, and what it should use."""
    told, advice, unit = findings.gains, findings.advice, findings.unit
    body = ""
    if told is None:
        body = f'<p class="note">{escape(_how_to_gain(findings))}</p>'
    else:
        swarms = []
        for s in findings.ranking.standings:
            gain = told.of(s.method)
            if gain is None or gain.known == 0:
                continue
            several = len(findings.found.seeds) > 1
            tips = [
                (f"seed {w.seed}, " if w.seed is not None and several else "")
                + f"client {_safe(w.name)}, {w.samples} samples: {unit.gap(float(g))}"
                for w, g in zip(told.who, gain.gain, strict=True)
            ]
            style = look.styles[s.method]
            mean = float(np.nanmean(gain.gain))
            swarms.append(Swarm(s.method, style, gain.gain, tips, mean, math.nan))
        described = "; ".join(
            f"{s.name}: {int((s.values > 0).sum())} gain, {int((s.values < 0).sum())} "
            f"lose, mean {unit.gap(s.mean)}"
            for s in swarms
        )
        points = f", {unit.points}" if unit.points else ""
        drawing = swarm_chart(
            swarms,
            "Gain of every client over training alone",
            described,
            x_title=f"gain in {findings.metric} over {told.baseline}{points}",
            show=unit.gap_tick,
            zero=0.0,
        )
        caption = (
            "Every dot is a client"
            + (
                ", its gain averaged over seeds."
                if told.has_same_clients and len(findings.found.seeds) > 1
                else " of one seed."
                if len(findings.found.seeds) > 1
                else "."
            )
            + " Right of zero it does better than alone. Upright line: mean."
        )
        chart = figure(drawing, caption)
        beside = _work_note(findings) + (_advice(findings) if advice else "")
        body += f'<div class="grid two">{chart}<div class="beside">{beside}</div></div>'
        body += contents.gains_table(findings, told).to_html("gains-table")
    if advice is not None and told is None:
        body += _advice(findings)
    if told is not None or advice is not None:
        table = contents.clients_table(findings, told, advice)
        who = told.who if told is not None else advice.who if advice is not None else ()
        body += more(f"All {len(who)} clients", table.to_html("clients-table"))
    return body


def _how_to_gain(findings: Findings) -> str:
    if not findings.found.is_paired:
        return (
            "The methods did not meet the same clients, so gains cannot be computed. "
            "Compare methods with fedloom compare, which deals the same clients to all."
        )
    if len(findings.found.methods) > 1 or len(findings.found.seeds) > 1:
        return (
            "Nothing was trained alone here, so nobody can say who gains. Add the "
            "method local to the comparison: fedloom compare local ..."
        )
    return (
        "Nothing was trained alone here. fedloom run ... --gain trains every client "
        "alone, too; fedloom compare local ... does so for several methods and seeds."
    )


def _work_note(findings: Findings) -> str:
    told = findings.gains
    assert told is not None
    heavy = [g for g in told.methods if math.isfinite(g.work) and g.work > 1.5]
    if not heavy:
        return ""
    named = words([f"{plain(g.work)} times in {g.method}" for g in heavy], 9)
    return (
        f'<p class="note">Local work differs: {escape(named)} the gradient steps of '
        f"{escape(told.baseline)}. Some of that gain may be the work rather than the "
        "federation; a baseline with as many epochs tells the two apart.</p>"
    )


def _advice(findings: Findings) -> str:
    advice, unit = findings.advice, findings.unit
    assert advice is not None
    tally: dict[str, list[int]] = {}
    for n, method in enumerate(advice.method):
        tally.setdefault(method, []).append(n)
    items = []
    for s in findings.ranking.standings:
        rows = tally.get(s.method)
        if not rows:
            continue
        sure = sum(advice.word(n) in ("clear", "likely") for n in rows)
        items.append(
            f"<li><b>{escape(s.method)}</b> to {len(rows)} "
            f"{'client' if len(rows) == 1 else 'clients'}, clearly or likely for {sure}"
            "</li>"
        )
    deciding = (
        "each client's own validation data"
        if advice.is_on_validation
        else "the reported data themselves, for want of validation data, so it "
        "flatters itself"
    )
    followed = ""
    if advice.followed.count:
        gap = advice.against_pick
        points = f" {unit.points}" if unit.points else ""
        followed = (
            f" Following it, the average client would be at "
            f"{unit.score(advice.followed.mean)} on {findings.part} data, "
            f"{unit.gap_estimate(gap.difference)}{points} against everybody using "
            f"{findings.ranking.pick}."
        )
    return (
        "<h3>What each client should use</h3>"
        f"<p>Decided on {escape(deciding)}, training alone included."
        f"{escape(followed)}</p>"
        f'<ul class="advice">{"".join(items)}</ul>'
    )


def calibration(findings: Findings, look: Look) -> str:
    """Whether probabilities can be believed."""
    table = contents.calibration_table(findings)
    if table is None:
        return ""
    captions = {
        "ece": (
            "expected calibration error, %",
            "How far confidence is from accuracy.",
        ),
        "brier": (
            "Brier score",
            "Squared distance of the probabilities from the truth.",
        ),
        "nll": ("log loss", "How surprised the models are by the truth."),
    }
    drawn = []
    for name in [n for n in captions if n in other_numbers(findings.found)][:2]:
        unit, bars = unit_of(name), []
        for s in findings.ranking.standings:
            estimate = estimate_of(findings.found, s.method, name)
            if estimate.count:
                tip = unit.estimate(estimate) + unit.suffix
                style = look.styles[s.method]
                bars.append(Bar(s.method, style, estimate, None, (tip, "")))
        title, caption = captions[name]
        described = "; ".join(f"{b.name} {unit.score(b.first.mean)}" for b in bars)
        drawing = forest(bars, title, described, x_title=title, show=unit.tick)
        drawn.append(figure(drawing, f"{caption} Personal models; left is better."))
    return (
        f'<div class="grid two">{"".join(drawn)}</div>'
        f"{table.to_html('calibration-table')}"
    )


def drivers(findings: Findings, look: Look) -> str:
    """What every method recorded."""
    parts = []
    for s in findings.ranking.standings:
        run = findings.found.first_run(method=s.method)
        if run is None:
            continue
        body = _recorded(findings, run, look.styles[s.method])
        if body:
            is_open = " open" if s.method == findings.ranking.pick else ""
            parts.append(
                f'<details class="method"{is_open}><summary>{escape(s.method)}'
                f"</summary>{body}</details>"
            )
    if not parts:
        return ""
    seed = findings.found.seeds[0]
    note = (
        f"Of seed {seed}, or the first that finished. Lines are means over the clients "
        "of a round, bands go from the tenth to the ninetieth percentile."
    )
    return f'<p class="note">{note}</p>{"".join(parts)}'


def _recorded(findings: Findings, run: Run, style: Style) -> str:
    meanings = dict(run.manifest.get("records") or {})
    meanings |= {
        "train_loss": "Mean loss that the client's gradient steps met.",
        "steps": "Gradient steps of the client.",
    }
    related = (
        correlations(findings.found, findings.gains, run.method)
        if findings.gains is not None
        else {}
    )
    cards = []
    for name, (rounds, middle, low, high) in _columns(run).items():
        if not any(math.isfinite(v) for v in middle):
            continue
        note = meanings.get(name, "").replace("`", "")
        if name in related:
            rho, many = related[name]
            note += f" Rank correlation with the gain {rho:+.2f} ({many} clients)."
        title = name.replace("_", " ")
        drawing = small_lines(
            f"{run.method}: {title}", rounds, middle, low, high, style, plain
        )
        cards.append(
            f'<figure class="card"><h3>{escape(title)}</h3>{drawing}'
            f"<figcaption>{escape(note)}</figcaption></figure>"
        )
    body = f'<div class="grid small">{"".join(cards)}</div>' if cards else ""
    return body + _matrices(run, meanings)


def _columns(
    run: Run,
) -> dict[str, tuple[list[int], list[float], list[float], list[float]]]:
    """Columns of notes and scalars of the account, over rounds."""
    found: dict[str, tuple[list[int], list[float], list[float], list[float]]] = {}

    def add(name: str, number: int, middle: float, low: float, high: float) -> None:
        lists = found.setdefault(name, ([], [], [], []))
        for own, value in zip(lists[1:], (middle, low, high), strict=True):
            own.append(value)
        lists[0].append(number)

    for table in run.notes:
        number = int(table["round"][0].as_py()) if table.num_rows else 0
        for name in table.column_names:
            values = np.asarray(table[name].to_numpy(zero_copy_only=False))
            if name in ("round", "client") or values.dtype.kind not in "fiub":
                continue
            values = values.astype(float)
            values = values[np.isfinite(values)]
            if len(values):
                low, high = np.quantile(values, [0.1, 0.9])
                add(name, number, float(values.mean()), float(low), float(high))
    scalars = [row for row in run.rounds if row.account]
    kept = set(_thin([row.round for row in scalars]))
    for row in scalars:
        for name, value in row.account.items():
            if row.round in kept and math.isfinite(value):
                key = name if name not in _note_names(run) else f"{name} (server)"
                add(key, row.round, value, value, value)
    return found


def _note_names(run: Run) -> set[str]:
    return set(run.notes[0].column_names) if run.notes else set()


def _matrices(run: Run, meanings: Mapping[str, str]) -> str:
    recorded = run.arrays()
    if recorded is None:
        return ""
    number, arrays = recorded
    names = _array_names(run, arrays)
    drawn = []
    for name, values in arrays.items():
        if values.ndim != 2 or values.dtype.kind not in "fiub" or not values.size:
            continue
        small, rows, columns = block_mean(values.astype(float), _SIDE)
        if len(rows) == len(names) == values.shape[0]:
            rows = names
        if len(columns) == len(names) == values.shape[1]:
            columns = names
        known = small[np.isfinite(small)]
        if not len(known):
            continue
        off = small.copy()
        if off.shape[0] == off.shape[1] and name == "similarity":
            np.fill_diagonal(off, np.nan)
        low = min(0.0, float(known.min()))
        if np.nanmin(off) > 0.5 * np.nanmax(off):
            low = float(np.nanmin(off))
        described = (
            f"values from {plain(float(known.min()))} to {plain(float(known.max()))}"
        )
        drawing = heat_map(
            off,
            rows,
            columns,
            f"{run.method}: {name} at round {number}",
            described,
            row_title="client",
            column_title="of client",
            show=plain,
            low=low,
        )
        meaning = meanings.get(name, "").replace("`", "")
        caption = f"{name} at round {number}: {described}. {meaning}"
        drawn.append(figure(drawing, caption))
    return f'<div class="grid two">{"".join(drawn)}</div>' if drawn else ""


def _array_names(run: Run, arrays: Mapping[str, NDArray[np.float64]]) -> list[str]:
    if "clients" not in arrays or run.last is None:
        return []
    return [run.last.names[int(n)] for n in arrays["clients"]]


def data(findings: Findings, look: Look) -> str:
    """Who held what, in the first seed."""
    run = findings.found.first_run() or next(iter(findings.found.runs.values()), None)
    if run is None or run.shares is None:
        return ""
    shares = run.shares
    order = np.argsort(-shares.sizes, kind="stable")
    places = np.linspace(0, len(order) - 1, min(len(order), _SIDE)).round()
    shown = order[np.unique(places.astype(int))]
    caption = "Training samples by class, largest clients first."
    labels = shares.labels[shown].astype(float)
    classes = list(shares.classes)
    if labels.shape[1] == 0:
        caption = "Training samples, largest clients first."
    if labels.shape[1] > _SIDE:
        blocks = np.array_split(np.arange(labels.shape[1]), _SIDE)
        labels = np.stack([labels[:, block].sum(1) for block in blocks], 1)
        classes = [str(block[0]) for block in blocks]
        caption += " Neighbouring classes are added up."
    if len(shown) < len(order):
        caption += f" {len(shown)} of {len(order)} clients, evenly by rank."
    drawing = heat_map(
        np.sqrt(labels),
        [shares.names[n] for n in shown],
        classes,
        "Training data of every client",
        "; ".join(f"{name}: {value}" for name, value in _data_facts(findings, run)),
        row_title="client",
        column_title="class" if classes else "",
        show=lambda v: f"{v * v:.0f}",
        bars=shares.sizes[shown].astype(float),
    )
    facts = "".join(
        f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>"
        for name, value in _data_facts(findings, run)
    )
    return (
        f'<div class="grid two">{figure(drawing, caption)}'
        f'<dl class="facts">{facts}</dl></div>'
    )


def _data_facts(findings: Findings, run: Run) -> list[tuple[str, str]]:
    shares = run.shares
    assert shares is not None
    sizes = shares.sizes
    facts = [
        ("dataset", str(run.manifest["dataset"])),
        ("clients", str(len(sizes))),
        ("training samples", f"{int(sizes.sum()):,}"),
        (
            "smallest, median, largest client",
            f"{sizes.min()}, {plain(float(np.median(sizes)))}, {sizes.max()}",
        ),
    ]
    if shares.labels.shape[1]:
        held = (shares.labels > 0).sum(1)
        facts.append(
            (
                "classes of a client",
                f"{held.min()} to {held.max()} of {shares.labels.shape[1]}",
            )
        )
    if shares.teams.any():
        facts.append(("teams", str(len(set(shares.teams.tolist())))))
    if len(findings.found.seeds) > 1:
        same = findings.found.has_same_clients
        facts.append(
            (
                f"shown is seed {run.seed}",
                "clients hold the same samples in every seed"
                if same
                else "every seed divides the data anew",
            )
        )
    return facts


def cost(findings: Findings, look: Look) -> str:
    """What a run took."""
    if not findings.found.counted:
        return ""
    return contents.cost_table(findings).to_html("cost-table")


def setup(findings: Findings, look: Look) -> str:
    """Settings, and the commands that give the same numbers."""
    found = findings.found
    commands = []
    if found.source:
        file = shlex.quote(str(found.paths[0] / "compare.toml"))
        commands.append(f"fedloom compare {file} --out runs/again")
    else:
        for run in list(found.runs.values())[:20]:
            if run.manifest.get("is_own"):
                commands.append(f"# {run.path}: made from Python with its own model")
            else:
                file = shlex.quote(str(run.path / "config.toml"))
                commands.append(f"fedloom run {file} --out runs/again")
    given = " ".join(shlex.quote(str(path)) for path in found.paths)
    commands.append(f"fedloom report {given}  # this page")
    text = escape("\n".join(commands))
    body = (
        "<h3>Run it again</h3>"
        f'<div class="command"><pre tabindex="0"><code>{text}</code></pre>'
        '<button type="button" data-copy>Copy</button></div>'
    )
    if found.source:
        body += more(
            "compare.toml",
            f'<pre tabindex="0"><code>{escape(found.source)}</code></pre>',
        )
    body += contents.settings_table(findings).to_html(
        "settings-table", is_sortable=False
    )
    common = contents.common_table(findings).to_html("common-table", is_sortable=False)
    return body + more("Settings of all runs, versions and machine", common)
