"""What a person sees while a run goes on."""

import io
from dataclasses import replace

from rich.console import Console

from fedloom.config import parse
from fedloom.progress import Watcher, watch
from fedloom.results.rows import Round
from fedloom.runs import run_config


def watched(tables, **console):
    out = io.StringIO()
    with watch(Console(file=out, width=110, **console)) as progress:
        run_config(parse(tables), progress=progress)
    return out.getvalue()


def test_a_log_gets_plain_lines_with_everything_in_them():
    text = watched({"rounds": 20, "algorithm": {"name": "ditto"}})
    lines = text.splitlines()
    assert lines[0] == (
        "digits: classification into 10 classes; inputs of 1 x 8 x 8; 20 clients from "
        "partition label-skew (by default; for another number --set "
        "partition.clients=N); tested on 25\N{NO-BREAK SPACE}% of each client's rows, "
        "at random"
    )
    assert lines[1].startswith("ditto on digits: 20 clients")
    assert "\x1b" not in text
    assert len([line for line in lines if line.startswith("round ")]) == 10
    for word in ("loss", "shared", "personal", "clients/s", "s left"):
        assert word in lines[-1]


def test_scores_have_the_digits_of_reports_and_their_own_exponents():
    console = Console(file=io.StringIO(), width=110)
    watcher = Watcher(console, None)
    watcher._metric, watcher._rounds = "mse", 1
    scores = {"shared": {"test": {"mse": 3.14159265}}}
    scores["personal"] = {"test": {"mse": 1.057e27}}
    watcher.round(Round(round=1, train_loss=0.4230769, scores=scores))
    said = console.file.getvalue()
    assert "loss 0.4231  shared 3.1416  personal 1.057e27 " in said
    watcher._metric = "accuracy"
    scores = {"personal": {"test": {"accuracy": 0.4230769}}}
    watcher.round(Round(round=1, train_loss=None, scores=scores))
    assert "loss -  personal 42.3\N{NO-BREAK SPACE}% " in console.file.getvalue()


def test_a_round_without_scores_does_not_show_those_of_another():
    scores = {"personal": {"test": {"accuracy": 0.5}}}
    rows = [
        Round(round=1, train_loss=1.0, scores=scores),
        Round(round=2, train_loss=1.0, scores={}),
    ]
    text = io.StringIO()
    with watch(Console(file=text, width=110)) as watcher:
        watcher.begin(2, 0, "accuracy")
        for row in rows:
            watcher.round(row)
    first, second = text.getvalue().splitlines()
    assert "personal 50.0" in first
    assert "personal" not in second
    with watch(Console(file=io.StringIO(), width=110, force_terminal=True)) as watcher:
        watcher.begin(2, 0, "accuracy")
        for row in rows:
            watcher.round(row)
        (task,) = watcher._bar.tasks
    assert "(round 1)" in task.description  # a line that stays says whose they are


def test_rounds_with_clients_elsewhere_are_all_in_one_unit():
    text = io.StringIO()
    with watch(Console(file=text, width=110)) as watcher:
        watcher.begin(2, 0, "accuracy", is_elsewhere=True)
        for number, seconds in ((1, 11.0), (2, 2.6)):
            row = Round(round=number, train_loss=1.0, scores={})
            watcher.round(replace(row, participants=3, seconds=seconds))
    paces = [line.split("  ")[2] for line in text.getvalue().splitlines()]
    assert paces == ["11 s a round", "3 s a round"]


def test_clients_smaller_than_a_batch_are_mentioned():
    text = watched({"rounds": 1, "algorithm": {"batch_size": 1000}})
    assert "20 clients with fewer samples than batch_size 1000" in text
    assert "all that a client has is one batch" in text


def test_a_method_of_teams_without_teams_is_mentioned():
    tables = {"rounds": 1, "algorithm": {"name": "pfedmt", "team_iterations": 1}}
    assert "no teams were given" in watched(tables)
    tables["teams"] = {"name": "blocks", "teams": 2}
    assert "no teams were given" not in watched(tables)


def test_a_terminal_gets_a_bar_that_goes_away():
    text = watched({"rounds": 2}, force_terminal=True)
    assert "round 2/2" in text
