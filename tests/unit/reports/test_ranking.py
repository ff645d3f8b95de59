"""Order, tests and recommendations, on numbers worked out by hand."""

from __future__ import annotations

import dataclasses
import json
import math
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from made_runs import clients, outcomes_of, steady, write_comparison, write_run

from fedloom.commands.report import write_and_show
from fedloom.core.digests import write_checked_json
from fedloom.reports import collect
from fedloom.reports import summary as sentences
from fedloom.reports.findings import Findings, work_out
from fedloom.reports.gains import drivers
from fedloom.reports.headline import headline
from fedloom.reports.page import page
from fedloom.reports.report_tables import ranking_table, yardsticks_table
from fedloom.reports.summary import summary
from fedloom.reports.units import SPACE
from fedloom.results.directory import RunDirectory
from fedloom.results.gain import Gain
from fedloom.results.outcomes import RunOutcomes

LOCAL = steady([0.50, 0.60], [0.52, 0.64], [0.48, 0.62])
BETTER = steady([0.70, 0.80], [0.74, 0.82], [0.70, 0.82])
MIXED = steady([0.80, 0.50], [0.82, 0.52], [0.78, 0.50])
METHODS = {"local": LOCAL, "better": BETTER, "mixed": MIXED}


def findings_of(path: Path, methods: Any = None, **options: Any) -> Findings:
    return work_out(
        collect([write_comparison(path / "c", methods or METHODS, **options)])
    )


def many(*levels: float, seeds: int = 5) -> list[list[list[float]]]:
    """Twenty clients at each of some scores in turn, the same in every seed."""
    return steady(*[[levels[n % len(levels)] for n in range(20)]] * seeds)


def text_of(findings: Findings) -> str:
    return " ".join([headline(findings), *summary(findings)])


def test_methods_are_ordered_by_the_mean_over_clients(tmp_path: Path) -> None:
    ranking = findings_of(tmp_path).ranking
    assert [s.method for s in ranking.standings] == ["better", "mixed", "local"]
    best = ranking.standings[0]
    assert best.last.mean == pytest.approx(np.mean([0.75, 0.78, 0.76]))
    assert best.worst.mean == pytest.approx(np.mean([0.70, 0.74, 0.70]))
    assert best.last.count == 3


def test_of_errors_the_least_comes_first(tmp_path: Path) -> None:
    ranking = findings_of(tmp_path, metric="mse").ranking
    assert [s.method for s in ranking.standings] == ["local", "mixed", "better"]


def test_a_pair_reads_the_same_from_both_ends(tmp_path: Path) -> None:
    ranking = findings_of(tmp_path).ranking
    over, under = (
        ranking.better_by("better", "mixed"),
        ranking.better_by("mixed", "better"),
    )
    assert over is not None
    assert under is not None
    assert over.estimate.mean == pytest.approx(np.mean([0.10, 0.11, 0.12]))
    assert under.estimate.mean == -over.estimate.mean
    assert (under.estimate.low, under.p) == (-over.estimate.high, over.p)


def test_a_pair_of_errors_is_in_their_own_units(tmp_path: Path) -> None:
    ranking = findings_of(tmp_path, metric="mse").ranking
    less = ranking.better_by("local", "better")
    assert less is not None
    assert less.estimate.mean == pytest.approx(np.mean([0.20, 0.20, 0.21]))


def test_a_method_with_a_failed_seed_is_counted_and_comes_last(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", METHODS)
    RunDirectory(path / "better" / "seed-1").write_failure("loss is nan", 1, 0)
    ranking = work_out(collect([path])).ranking
    assert [s.method for s in ranking.standings] == ["mixed", "local", "better"]
    last = ranking.standings[-1]
    assert (last.counts["finished"], last.counts["failed"]) == (2, 1)
    assert last.last.mean == pytest.approx(np.mean([0.75, 0.76]))
    pair = ranking.better_by("better", "mixed")
    assert pair is not None
    assert pair.estimate.mean == pytest.approx(np.mean([0.10, 0.12]))


def test_a_method_is_recommended_if_its_gain_is_shown(tmp_path: Path) -> None:
    methods = {"local": many(0.5, 0.6), "a": many(0.7, 0.8, 0.75), "b": many(0.6)}
    findings = findings_of(tmp_path, methods, outcomes=True)
    assert findings.decision.verdict == "use"
    assert findings.pick == "a"
    assert headline(findings).startswith("Use a: it reaches 7")
    assert "ahead of training alone" in headline(findings)
    assert findings.evidence is not None
    assert findings.evidence.samples > 0


def test_where_nothing_is_shown_nothing_is_recommended(tmp_path: Path) -> None:
    """Up for one client and down for the next: a little ahead, by chance alone."""
    up_and_down = many(0.45, 0.7, 0.5, 0.65)
    methods = {"local": many(0.55, 0.6, 0.6, 0.5), "a": up_and_down}
    findings = findings_of(tmp_path, methods)
    assert findings.decision.verdict == "open"
    assert findings.pick == "local"
    assert headline(findings).startswith("Not shown: a is 1.2 points ahead of")
    assert "Use" not in text_of(findings)
    assert "cannot tell it apart from training alone" in text_of(findings)


def test_training_alone_is_recommended_if_it_is_best(tmp_path: Path) -> None:
    methods = {"local": many(0.8), "a": many(0.7), "b": many(0.6)}
    findings = findings_of(tmp_path, methods)
    assert findings.decision.verdict == "alone"
    assert headline(findings).startswith("Train alone: for 1 round it reaches")


def test_a_gain_by_which_most_clients_lose_is_not_recommended(tmp_path: Path) -> None:
    """Three clients of five lose a little, two gain much."""
    local = steady(*[[0.5, 0.5, 0.5, 0.5, 0.5] * 8] * 5)
    few_win = steady(*[[0.45, 0.45, 0.45, 0.95, 0.95] * 8] * 5)
    findings = findings_of(tmp_path, {"local": local, "a": few_win}, outcomes=True)
    gain = findings.gain_of("a")
    assert gain is not None
    assert gain.is_shown
    assert findings.decision.verdict == "losing"
    assert "most clients lose by it" in headline(findings)
    assert findings.pick == "local"


def test_more_that_lose_than_gain_is_in_the_headline(tmp_path: Path) -> None:
    """Two of five lose, one gains much, two stay."""
    local = steady(*[[0.5, 0.5, 0.5, 0.5, 0.5] * 8] * 5)
    uneven = steady(*[[0.45, 0.45, 1.0, 0.5, 0.5] * 8] * 5)
    findings = findings_of(tmp_path, {"local": local, "a": uneven}, outcomes=True)
    assert findings.decision.verdict == "use"
    assert headline(findings).endswith("More clients lose by it (16) than gain (8).")


def write_alone(path: Path, method: str, *shares: float) -> None:
    """What training alone with as much work says: right on a share of the samples.

    The shares are dealt out to the clients in turn.
    """
    names = [f"c{n}" for n in range(20)]
    for seed in range(5):
        federation = clients(names, seed, is_same=True)
        alone = RunOutcomes(
            {"test": outcomes_of(federation, [*shares] * (20 // len(shares)))}
        )
        alone.write(path / method / f"seed-{seed}" / "outcomes" / "alone.npz")


def test_gains_are_over_training_alone_with_as_much_work(tmp_path: Path) -> None:
    """Local is far behind; with as much work alone, it is ahead."""
    methods = {"local": many(0.5), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_alone(path, "a", 0.75)
    findings = work_out(collect([path]))
    gain = findings.gain_of("a")
    assert gain is not None
    assert gain.mean.mean == pytest.approx(-0.05)
    assert findings.decision.verdict == "alone"
    assert "training alone with as much work" in text_of(findings)


def write_yardstick(path: Path, name: str, *shares: float, rounds: Any = None) -> None:
    """One whose models are right on a share of every client's test samples.

    Clients take turns among several shares.
    """
    names = [f"c{n}" for n in range(20)]
    for seed in range(5):
        wanted = [shares[n % len(shares)] for n in range(20)]
        own = outcomes_of(clients(names, seed, is_same=True), wanted)
        file = path / "yardsticks" / name / f"seed-{seed}.npz"
        file.parent.mkdir(parents=True, exist_ok=True)
        RunOutcomes({"test": own}).write(file)
    about = path / "yardsticks" / "yardsticks.json"
    known = json.loads(about.read_text()) if about.is_file() else {}
    entry: Any = "Made up."
    if rounds is not None:
        entry = {"about": entry, "rounds": dict(enumerate(rounds))}
    about.write_text(json.dumps({**known, name: entry}))


def test_yardsticks_that_beat_every_method_are_said(tmp_path: Path) -> None:
    methods = {"local": many(0.5), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_yardstick(path, "constant", 0.6)
    write_yardstick(path, "pooled", 0.65)
    said = text_of(work_out(collect([path])))
    assert "always saying what is usual" not in said
    assert "does not have, is at 65.0" in said
    write_yardstick(path, "ordinary", 0.9)
    findings = work_out(collect([path]))
    assert "does better than every method, beyond chance: its accuracy is 90.0" in (
        headline(findings)
    )
    write_yardstick(path, "alone-longer", 0.89)
    findings = work_out(collect([path]))
    assert headline(findings).startswith("Train alone for as many rounds")
    assert "ordinary" not in headline(findings)
    write_yardstick(path, "alone-longer", 0.5)
    write_yardstick(path, "ordinary", 0.75, *[0.7] * 19)
    findings = work_out(collect([path]))
    assert "ordinary" not in headline(findings)
    assert "though that may be chance" in text_of(findings)


def test_every_yardstick_is_in_a_table_even_if_it_beats_nobody(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    methods = {"local": many(0.5), "a-long-name-of-a-method-with-settings": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    assert yardsticks_table(work_out(collect([path]))) is None
    scores = {"constant": 0.6, "alone-longer": 0.55, "ordinary": 0.45, "pooled": 0.65}
    for name, score in scores.items():
        write_yardstick(path, name, score)
    table = yardsticks_table(work_out(collect([path])))
    assert table is not None
    assert [row[1].value for row in table.rows] == pytest.approx([*scores.values()])
    assert all(row[2].text == "Made up." for row in table.rows)
    write_and_show([path])
    places = (
        capsys.readouterr().out,
        (path / "report.md").read_text(),
        (path / "report.html").read_text(),
    )
    for text in places:
        assert "a-long-name-of-a-method-with-settings" in text
        for row in table.rows:
            assert row[0].text in text.replace(SPACE, " ")
            assert row[1].text in text.replace(SPACE, " ")


@pytest.mark.parametrize(
    ("shares", "chance"),
    [((0.8,), ""), ((0.75, *[0.7] * 19), ", though that may be chance")],
)
def test_no_method_is_of_use_if_a_constant_does_better(
    shares: tuple[float, ...], chance: str, tmp_path: Path
) -> None:
    methods = {"local": many(0.5), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_yardstick(path, "constant", *shares)
    findings = work_out(collect([path]))
    assert (findings.decision.verdict, findings.pick) == ("constant", None)
    assert headline(findings).startswith(
        "No method is of use: if each client always predicted its most frequent class"
    )
    assert f"on all held-out data none does better{chance}." in headline(findings)
    said = text_of(findings)
    assert "is shown to be better than always" not in said
    assert "a does best of all methods on held-out data" in said
    assert not any(word in said for word in ("gain", "beyond chance", "prefer a"))
    tiles = re.findall("<dt>(.*?)</dt>", page(findings))
    assert not any("gain" in tile for tile in tiles)


def test_what_may_be_no_better_than_a_constant_is_said(tmp_path: Path) -> None:
    methods = {"local": many(0.6), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_yardstick(path, "constant", 1.0, 0.35)
    findings = work_out(collect([path]))
    assert findings.decision.verdict == "use"
    assert headline(findings).startswith(
        "No method is shown to be better than always saying what is usual: if each "
    )
    assert ". If you need a model, use a: it reaches 70.0" in headline(findings)
    assert summary(findings)[0].startswith("There may be nothing to learn here")


def test_what_is_behind_a_constant_is_not_recommended(tmp_path: Path) -> None:
    """A method gains, and a constant is better than it though not than another."""
    methods = {"local": many(0.5), "a": many(0.6), "b": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_alone(path, "a", 0.4)
    write_alone(path, "b", 0.75)
    assert work_out(collect([path])).pick == "a"
    write_yardstick(path, "constant", 0.65)
    findings = work_out(collect([path]))
    gain = findings.gain_of("a")
    assert gain is not None
    assert gain.is_shown
    assert (findings.decision.verdict, findings.pick) == ("alone", "local")
    assert "b, the best federated method, is not ahead" in headline(findings)


def test_training_alone_for_longer_can_be_the_answer(tmp_path: Path) -> None:
    """The gain is shown, but with more rounds training alone does better."""
    methods = {"local": many(0.5), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    assert work_out(collect([path])).decision.verdict == "use"
    write_yardstick(path, "alone-longer", 0.75, rounds=[8, 4, 16, 4, 4])
    findings = work_out(collect([path]))
    assert findings.decision.verdict == "longer"
    assert headline(findings).startswith(
        "Train alone for as many rounds as validation data prefer (4 to 16, by seed): "
        "the accuracy is then 75.0"
    )
    assert "interval of that accuracy of 75.0" in summary(findings)[1]
    assert "a does not reach that, although a is 20.0 points ahead" in headline(
        findings
    )


@pytest.mark.parametrize(
    ("shares", "sentence"),
    [
        ((0.5,), "; a is ahead of that, beyond chance."),
        ((1.0, 0.35), "; a is ahead of that, which may be chance: where"),
    ],
)
def test_what_is_used_is_tested_against_training_alone_for_longer(
    shares: tuple[float, ...], sentence: str, tmp_path: Path
) -> None:
    methods = {"local": many(0.5), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_alone(path, "a", 0.5)
    write_yardstick(path, "alone-longer", *shares, rounds=[8] * 5)
    findings = work_out(collect([path]))
    assert findings.decision.verdict == "use"
    assert "ahead of training alone with as much work" in headline(findings)
    longer = "Training alone for as many rounds as validation data prefer (8) is at "
    assert summary(findings)[0].startswith(longer)
    assert sentence in summary(findings)[0]


def test_arms_that_train_alone_are_told_apart(tmp_path: Path) -> None:
    """The gain at equal work is shown; over the arm that trains alone it is not."""
    methods = {"local": many(1.0, 0.35), "a": many(0.7)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    write_alone(path, "a", 0.5)
    write_yardstick(path, "alone-longer", 0.4)
    findings = work_out(collect([path]))
    assert findings.decision.verdict == "use"
    said = " ".join(summary(findings))
    assert "test data cannot tell it apart from training alone for 1 round." in said
    assert "a is ahead of that, beyond chance. Over training alone for 1 round" in said
    assert "it is not shown to be ahead: where a federation" in said
    assert "apart from training alone." not in said


def test_a_gain_over_the_arm_that_trains_alone_is_not_doubted_a_sentence_later(
    tmp_path: Path,
) -> None:
    """Only a gain is asked for; the same difference is tested both ways elsewhere."""
    methods = {"local": many(1.0, 0.35, 1.0, 0.3, seeds=2), "a": many(0.7, seeds=2)}
    path = write_comparison(tmp_path / "c", methods, outcomes=True)
    findings = work_out(collect([path]))
    gain, evidence = findings.gain_of("a"), findings.evidence
    assert gain is not None
    assert evidence is not None
    assert gain.is_over_baseline
    assert gain.p < 0.05 < evidence.behind["local"].adjusted
    assert findings.decision.verdict == "use"
    assert "apart from training alone" not in " ".join(summary(findings))


def test_how_far_training_alone_gets_is_next_to_the_headline(tmp_path: Path) -> None:
    path = write_comparison(
        tmp_path / "c", {"local": many(0.7), "a": many(0.5)}, outcomes=True
    )
    write_yardstick(path, "alone-longer", 0.65)
    findings = work_out(collect([path]))
    assert headline(findings).startswith("Train alone: for 1 round it reaches 70.0")
    longer = "Training alone for as many rounds as validation data prefer is at 65.0"
    assert summary(findings)[0].startswith(longer)
    assert "which a does not reach" in summary(findings)[0]


def test_the_better_way_to_train_alone_is_the_answer(tmp_path: Path) -> None:
    path = write_comparison(
        tmp_path / "c", {"local": many(0.7), "a": many(0.5)}, outcomes=True
    )
    write_yardstick(path, "alone-longer", 0.75)
    findings = work_out(collect([path]))
    assert headline(findings).startswith(
        "Train alone for as many rounds as validation data prefer: the accuracy is "
        "then 75.0"
    )
    assert "is at 75.0" not in " ".join(summary(findings))


def test_what_is_not_shown_is_not_beyond_chance_a_sentence_later(
    tmp_path: Path,
) -> None:
    """Test data of many clients show what those clients together do not."""
    methods = {"local": many(0.5, 0.6), "a": many(0.7, 0.8), "b": many(0.4)}
    findings = findings_of(tmp_path, methods, outcomes=True)
    decision = dataclasses.replace(findings.decision, verdict="open", pick="local")
    said = " ".join(summary(dataclasses.replace(findings, decision=decision)))
    assert "it is better than b, beyond chance" in said
    assert "training alone for 1 round, beyond chance" not in said
    assert "training alone for 1 round and b" not in said


def test_a_method_that_failed_is_not_called_alone_and_is_named(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", METHODS)
    for seed in range(3):
        directory = RunDirectory(path / "mixed" / f"seed-{seed}")
        directory.write_failure("loss is nan", 1, 0)
    findings = work_out(collect([path]))
    said = " ".join(summary(findings))
    assert "mixed is not a choice here, because its 3 runs diverged" in said
    rows = {row[0].text: row for row in ranking_table(findings).rows}
    assert "is alone" in [cell.text for cell in rows["local"]]
    assert "is alone" not in [cell.text for cell in rows["mixed"]]


def test_training_alone_by_itself_is_told_what_to_compare_with(tmp_path: Path) -> None:
    said = " ".join(summary(findings_of(tmp_path, {"local": many(0.5)})))
    assert "There is nothing to compare training alone with: name a federated" in said
    assert "nothing was trained alone" not in said


def test_curves_that_were_better_before_are_named(tmp_path: Path) -> None:
    falling = [[[0.1], [0.8], [0.7], [0.6], [0.5]]] * 2
    level = [[[0.1], [0.5], [0.7], [0.7], [0.7]]] * 2
    methods = {"local": level, "a": falling}
    findings = findings_of(tmp_path, methods, validation=methods)
    said = " ".join(summary(findings))
    assert "a was better in the first half of the rounds; fewer rounds or" in said


def test_clients_are_not_counted_once_per_seed(tmp_path: Path) -> None:
    findings = findings_of(tmp_path, is_same=False)
    assert findings.evidence is not None
    assert (findings.evidence.clients, findings.evidence.seeds) == (2, 3)
    said = " ".join(summary(findings))
    assert "2 clients, 3 seeds" in said
    assert "in 3 seeds, each with clients of its own (6 in all)" in said
    titles = [column.title for column in ranking_table(findings).columns]
    assert "clients gain / lose, all seeds" in titles  # 6 of 6, where 2 are named


FEW = {"local": steady(*[[0.5] * 6] * 2), "a": steady(*[[0.75] * 6] * 2)}
"""Six clients of twenty test samples, two seeds."""


def test_groups_are_counted_beside_samples(tmp_path: Path) -> None:
    grouped = findings_of(tmp_path, FEW, outcomes=True, group_size=10)
    singly = findings_of(tmp_path / "singly", FEW, outcomes=True)
    assert grouped.evidence is not None
    assert singly.evidence is not None
    samples, groups = grouped.evidence.samples, grouped.evidence.groups
    assert (singly.evidence.groups, samples) == (0, 10 * groups)
    assert f", {samples} test samples in {groups} groups)" in text_of(grouped)
    assert "groups" not in text_of(singly)
    caption = ranking_table(grouped).caption
    assert f"{samples} test samples in {groups} groups and over seeds" in caption
    assert "a group of samples that returns in several seeds counts once" in caption
    errors = [f.evidence.gains["a"].estimate.error for f in (singly, grouped)]  # type: ignore[union-attr]
    assert errors[1] > 2 * errors[0]


def test_where_groups_are_not_known_clients_take_the_place_of_samples(
    tmp_path: Path,
) -> None:
    path = write_comparison(tmp_path / "g", FEW, outcomes=True, group_size=10)
    assert not collect([path]).lacks_groups
    for method in FEW:
        (path / method / "seed-1" / "split.npz").write_bytes(b"cut short")
    findings = work_out(collect([path]))
    assert findings.evidence is not None
    assert (findings.evidence.samples, findings.evidence.groups) == (0, 0)
    assert "every client's score counts as one observation" in " ".join(
        findings.collection.remarks
    )


def test_outcomes_of_samples_that_are_in_no_split_are_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", FEW["a"][0], outcomes=True, group_size=10)
    directory = RunDirectory(path)
    outcomes = directory.read_outcomes()
    assert outcomes is not None
    test = outcomes.parts["test"]
    moved = dataclasses.replace(test, rows=test.rows + 10_000)
    directory.write_outcomes(1, RunOutcomes({"test": moved}))
    evidence = work_out(collect([path])).evidence
    assert evidence is not None
    assert evidence.samples == 0


def test_runs_of_older_versions_do_not_say_which_groups_there_are(
    tmp_path: Path,
) -> None:
    path = write_run(tmp_path / "a", FEW["a"][0], outcomes=True)
    assert not collect([path]).lacks_groups
    manifest = RunDirectory(path).read_manifest()
    config = {**manifest["config"], "split": {"group": "visit"}}
    write_checked_json(path / "manifest.json", {**manifest, "config": config})
    assert collect([path]).lacks_groups


@pytest.mark.parametrize("group_size", [0, 10])
def test_a_split_in_time_says_what_its_interval_does_not_cover(
    group_size: int, tmp_path: Path
) -> None:
    options: dict[str, Any] = {"in_time": True, "group_size": group_size}
    said = text_of(findings_of(tmp_path, FEW, outcomes=True, **options))
    assert "Tests are the last part of every client (by 'time'), the same in" in said
    assert "about that one stretch of time and say nothing of another one" in said
    assert ("and count every row by itself" in said) == (not group_size)
    # Two seeds of the same last half: no more samples than one seed has.
    assert "120 test samples" in said


def test_last_and_chosen_rounds_stand_side_by_side(tmp_path: Path) -> None:
    test = [[[0.1], [0.8], [0.6]], [[0.1], [0.6], [0.7]]]
    validation = [[[0.1], [0.9], [0.5]], [[0.1], [0.4], [0.5]]]
    findings = findings_of(tmp_path, {"a": test}, validation={"a": validation})
    standing = findings.ranking.standings[0]
    assert standing.chosen_rounds == (1, 2)
    assert standing.last.mean == pytest.approx(0.65)
    assert standing.chosen.mean == pytest.approx(0.75)


def test_few_seeds_are_said_next_to_the_answer(tmp_path: Path) -> None:
    methods = {"local": LOCAL[:1], "better": BETTER[:1]}
    assert "There is one seed" in summary(findings_of(tmp_path, methods))[0]
    assert "There are only 3 seeds" in summary(findings_of(tmp_path / "three"))[0]


def test_what_was_not_tuned_is_said(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", METHODS)
    assert "No method was tuned" in summary(work_out(collect([path])))[0]
    file = path / "compare.toml"
    text = file.read_text().replace('[methods."mixed"]', '[methods."mixed"]\nlr = 0.3')
    file.write_text(text)
    said = summary(work_out(collect([path])))[0]
    assert "local and better ran with their default settings" in said


def test_curves_that_still_rise_are_said(tmp_path: Path) -> None:
    rising = [[[0.1], [0.3], [0.5], [0.6], [0.8]]] * 2
    level = [[[0.1], [0.5], [0.7], [0.7], [0.7]]] * 2
    findings = findings_of(tmp_path, {"local": level, "a": rising})
    assert "a was still getting better at the last round" in summary(findings)[0]


def test_unequal_work_is_said(tmp_path: Path) -> None:
    path = tmp_path / "c"
    write_comparison(path, {"local": many(0.5), "a": many(0.7)})
    for seed in range(5):
        file = path / "a" / f"seed-{seed}" / "rounds.jsonl"
        file.write_text(file.read_text().replace('"steps": 120', '"steps": 1320'))
    said = summary(work_out(collect([path])))[0]
    assert "alone for 1 round, so gains may come from that" in said


def test_gains_are_paired_by_client_and_averaged_over_seeds(tmp_path: Path) -> None:
    gained = findings_of(tmp_path).gains
    assert gained is not None
    assert gained.has_same_clients
    assert [who.name for who in gained.who] == ["c0", "c1"]
    mixed = gained.of("mixed")
    assert mixed is not None
    assert mixed.gain == pytest.approx([0.30, -0.34 / 3])
    spread = np.std([-0.10, -0.12, -0.12], ddof=1) / math.sqrt(3)
    assert mixed.error[1] == pytest.approx(spread)
    assert (mixed.gaining, mixed.losing) == (1, 1)
    assert mixed.mean.mean == pytest.approx(np.mean([0.1, 0.09, 0.09]))
    assert mixed.work == pytest.approx(1.0)


def test_clients_that_differ_by_seed_keep_their_own_rows(tmp_path: Path) -> None:
    gained = findings_of(tmp_path, is_same=False).gains
    assert gained is not None
    assert len(gained.who) == 6
    assert {who.seed for who in gained.who} == {0, 1, 2}
    better = gained.of("better")
    assert better is not None
    place = next(n for n, w in enumerate(gained.who) if (w.seed, w.name) == (1, "c1"))
    assert better.gain[place] == pytest.approx(0.82 - 0.64)


def test_a_gain_in_an_error_is_a_decrease(tmp_path: Path) -> None:
    better = findings_of(tmp_path, metric="mse").gain_of("better")
    assert better is not None
    assert (better.gain < 0).all()
    assert better.losing == 2


def test_without_training_alone_there_is_no_gain_and_a_way_to_get_it(
    tmp_path: Path,
) -> None:
    findings = findings_of(tmp_path, {"a": BETTER, "b": MIXED})
    assert findings.gains is None
    assert "whether that beats training alone is not known" in headline(findings)
    assert "add local to the comparison" in " ".join(summary(findings))


def test_each_client_is_advised_what_its_validation_data_prefer(tmp_path: Path) -> None:
    """c0 does best with `mixed`, c1 with `better`; test scores equal validation's."""
    findings = findings_of(tmp_path, validation=METHODS)
    advice = findings.advice
    assert advice is not None
    assert advice.is_on_validation
    assert advice.method == ("mixed", "better")
    assert advice.lead == pytest.approx([0.8 - 2.14 / 3, 2.44 / 3 - 1.86 / 3])
    followed = [np.mean([0.80, 0.80]), np.mean([0.82, 0.82]), np.mean([0.78, 0.82])]
    assert advice.followed == pytest.approx(np.mean(followed))
    assert advice.word(1) == "clear"


@pytest.mark.parametrize("group_size", [0, 10, 20])
def test_advice_is_not_clear_because_seeds_decide_on_the_same_samples(
    group_size: int, tmp_path: Path
) -> None:
    """A client is right once more of 20 samples, in all five seeds the same ones."""
    methods = {"local": steady(*[[0.5] * 6] * 5), "a": steady(*[[0.55] * 6] * 5)}
    options: dict[str, Any] = {"in_time": True, "group_size": group_size}
    advice = findings_of(tmp_path, methods, outcomes=True, **options).advice
    assert advice is not None
    assert advice.method[0] == "a"
    # A sample of 20 decides; or a group of two; or nobody knows, of a single group.
    expected = {0: 0.05, 10: 0.05, 20: math.nan}[group_size]
    assert advice.error[0] == pytest.approx(expected, nan_ok=True)
    assert advice.word(0) != "clear"


def test_advice_can_be_to_train_alone(tmp_path: Path) -> None:
    advice = findings_of(tmp_path, {"local": BETTER, "a": MIXED}).advice
    assert advice is not None
    assert advice.method == ("a", "local")
    assert not advice.is_on_validation


def test_clients_without_test_samples_are_left_out(tmp_path: Path) -> None:
    methods = {
        "local": steady([0.5, math.nan], [0.6, math.nan]),
        "a": steady([0.7, math.nan], [0.7, math.nan]),
    }
    gain = findings_of(tmp_path, methods).gain_of("a")
    assert gain is not None
    assert gain.known == 1
    assert gain.mean.mean == pytest.approx(0.15)


def test_recorded_columns_are_related_to_the_gain(tmp_path: Path) -> None:
    """`moved` grows with the client's number, and so does the gain."""
    alone = steady([0.5] * 6, [0.5] * 6)
    rising = steady([0.5, 0.6, 0.7, 0.8, 0.9, 0.95], [0.5, 0.6, 0.7, 0.8, 0.9, 0.95])
    findings = findings_of(tmp_path, {"local": alone, "a": rising})
    assert findings.gains is not None
    rho, count = drivers(findings.collection, findings.gains, "a")["moved"]
    assert (rho, count) == (pytest.approx(1.0), 5)
    assert "steps" not in drivers(findings.collection, findings.gains, "a")  # constant


def test_the_answer_when_every_run_failed(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", LOCAL[0], failure="round 1: loss is nan")
    findings = work_out(collect([path]))
    assert headline(findings).startswith("No answer: the run diverged. Try again")
    assert summary(findings) == []
    assert not any("last evaluated round" in r for r in findings.collection.remarks)


def test_a_run_with_a_gain_of_its_own_needs_no_other(tmp_path: Path) -> None:
    """What `fedloom run --gain` leaves is read where no arm trained alone."""
    path = write_run(tmp_path / "a", LOCAL[0])
    RunDirectory(path).write_gain(
        Gain(
            metric="accuracy",
            names=("c0", "c1"),
            samples=np.array([20, 20]),
            together=np.array([0.5, 0.6]),
            alone=np.array([0.4, 0.7]),
        )
    )
    findings = work_out(collect([path]))
    assert findings.gains is not None
    gain = findings.gains.of("ditto")
    assert gain is not None
    assert gain.gain == pytest.approx([0.1, -0.1])
    assert (gain.gaining, gain.losing) == (1, 1)


def test_the_answer_says_what_is_less_and_who_loses(tmp_path: Path) -> None:
    findings = work_out(
        collect([write_comparison(tmp_path / "c", METHODS, metric="mse")])
    )
    assert headline(findings).startswith(
        "Train alone: for 1 round its mse is 0.5600 on"
    )
    assert "the best federated method, is not ahead of training alone" in headline(
        findings
    )
    assert "the average client loses" in text_of(findings)


def test_a_comparison_of_training_alone_speaks_of_that_arm_alone(
    tmp_path: Path,
) -> None:
    path = write_comparison(tmp_path / "c", {"local": many(0.7)}, outcomes=True)
    write_yardstick(path, "alone-longer", 0.75)
    findings = work_out(collect([path]))
    assert findings.collection.title.startswith("1 method on")
    said = text_of(findings)
    assert said.startswith(
        "Training alone for as many rounds as validation data prefer: the accuracy is "
        "then 75.0"
    )
    path = write_comparison(tmp_path / "d", {"local": many(0.7)}, outcomes=True)
    said = text_of(work_out(collect([path])))
    assert said.startswith("Training alone: it reaches 70.0")


def test_being_ahead_of_training_alone_fits_the_score_that_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A score that is corrected for being the best may be below; the table says how."""
    path = write_comparison(
        tmp_path / "c", {"local": many(0.5), "a": many(0.75)}, outcomes=True
    )
    write_yardstick(path, "alone-longer", 0.7)
    findings = work_out(collect([path]))
    assert "70.0\N{NO-BREAK SPACE}%; a is ahead of that" in summary(findings)[0]
    corrected = dataclasses.replace(findings.ranking.standing("a").last, mean=0.69)
    monkeypatch.setattr(sentences, "answer_score", lambda *_: corrected)
    said = summary(findings)[0]
    assert "a, 75.0\N{NO-BREAK SPACE}% in the table, is ahead of that" in said


def test_where_nothing_is_shown_the_better_way_to_train_alone_is_named(
    tmp_path: Path,
) -> None:
    path = write_comparison(
        tmp_path / "c",
        {"local": many(0.5), "a": many(0.45, 0.7, 0.5, 0.65)},
        outcomes=True,
    )
    write_alone(path, "a", 0.55, 0.6, 0.6, 0.5)
    findings = work_out(collect([path]))
    assert findings.decision.verdict == "open"
    assert "train alone with as much work as a took: the accuracy" in headline(findings)
    assert "is then about 5" in headline(findings)
