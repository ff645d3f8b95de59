"""What a person sees while a run goes on."""

import io
import re
import sys
import types
from dataclasses import replace

import pytest
from rich.console import Console

from fedloom.config import parse
from fedloom.core.errors import ConfigError
from fedloom.progress import (
    ManyRuns,
    NotebookBar,
    Part,
    Watcher,
    bar_for,
    is_notebook,
    watch,
    watch_many,
    watched_run,
    watched_runs,
)
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
    for word in ("loss", "shared", "personal", "clients/s"):
        assert word in lines[-1]
    assert lines[-2].endswith(" left")
    assert re.search(r"  in [0-9.]+ m?s$", lines[-1])


def test_scores_have_the_digits_of_reports_and_their_own_exponents():
    console = Console(file=io.StringIO(), width=110)
    watcher = Watcher(console, None)
    watcher._metric, watcher._rounds = "mse", 1
    scores = {"shared": {"test": {"mse": 3.14159265}}}
    scores["personal"] = {"test": {"mse": 1.057e27}}
    watcher.round(Round(round=1, train_loss=0.4230769, scores=scores))
    said = console.file.getvalue()
    assert "loss 0.4231  shared 3.142  personal 1.057e27 " in said
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
        text = watcher._bar.text
    assert "(round 1)" in text  # a line that stays says whose they are


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


class Line:
    """A bar that remembers what it showed."""

    def __init__(self):
        self.shown = []

    def show(self, text, share, left):
        self.shown.append((text, share, left))


def test_many_runs_count_all_that_is_to_be_done():
    line = Line()
    runs = ManyRuns(line)
    runs.expect("fedavg", 10)
    runs.expect("ditto", 30, done=10)
    runs.show()
    runs.update("ditto", 20)
    runs.show()
    runs.finish("ditto")
    runs.update("fedavg", 5, rounds=20)
    runs.show()
    assert line.shown[0] == ("ditto  0/2 done", 0.25, "")  # nobody knows how fast
    text, share, left = line.shown[1]
    assert (text, share) == ("ditto  0/2 done", 0.5)
    assert left.endswith(" left")
    assert line.shown[2][:2] == ("fedavg  1/2 done", 0.7)


def test_time_left_is_by_what_was_done_since_the_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("time.perf_counter", lambda: now[0])
    line = Line()
    runs = ManyRuns(line)
    runs.expect("fedavg", 100, done=50)  # in an earlier session
    runs.show()
    now[0] += 10
    runs.update("fedavg", 60)
    runs.show()
    assert line.shown[-1] == ("fedavg  0/1 done", 0.6, "40 s left")


def test_a_part_counts_its_rounds_and_is_over_when_it_fails():
    line = Line()
    runs = ManyRuns(line)
    part = Part(runs, "ditto", 8)
    part.round(Round(round=1))
    part.at(4)
    assert line.shown[-1][1] == 0.5
    part.finish()
    assert line.shown[-1][:2] == ("1/1 done", 1.0)


def test_a_terminal_sees_many_runs_in_one_line_and_a_log_nothing():
    for is_terminal in (True, False):
        text = io.StringIO()
        console = Console(file=text, width=110, force_terminal=is_terminal)
        with watch_many(console) as runs:
            runs.expect("ditto [x]", 4, done=1)
            runs.show()
        assert ("ditto [x]  0/1 done" in text.getvalue()) is is_terminal


def test_a_script_whose_errors_go_to_a_file_is_quiet(capsys):
    with watched_run(True, "run") as progress:
        assert progress is None
    with watched_runs(True, "compare") as progress:
        progress.expect("ditto", 4)
        progress.show()
    assert capsys.readouterr() == ("", "")


def test_progress_can_be_turned_off_and_anything_else_is_refused():
    for off in (False, None):
        with watched_run(off, "run") as progress:
            assert progress is None
        with watched_runs(off, "compare") as progress:
            assert progress is None
    with pytest.raises(ConfigError, match="run: progress must be True, False or an"):
        watched_run("yes", "run").__enter__()
    with pytest.raises(ConfigError, match="compare: progress must be True or False"):
        watched_runs("yes", "compare").__enter__()


@pytest.fixture
def outputs(monkeypatch):
    """The outputs of a notebook's cell: what IPython would show, in their places."""
    shown = {}

    class Handle:
        def __init__(self, place):
            self.place = place

        def update(self, bundle, raw=False):
            assert raw
            shown[self.place].append(bundle)

    def display(bundle, raw=False, display_id=None):
        assert raw
        assert display_id is True
        place = len(shown)
        shown[place] = [bundle]
        return Handle(place)

    shell = types.SimpleNamespace(kernel=object())
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: shell
    ipython.display = types.ModuleType("IPython.display")
    ipython.display.display = display
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    monkeypatch.setitem(sys.modules, "IPython.display", ipython.display)
    return shown


def test_a_notebook_gets_one_output_that_is_replaced(outputs, capsys):
    assert is_notebook()
    with bar_for() as bar:
        assert isinstance(bar, NotebookBar)
        for n in range(1000):
            bar.show(f"<b>ann</b> round {n}", n / 999, "1 s left")
    (states,) = outputs.values()
    assert len(states) < 10  # no flood, however fast rounds are
    assert states[-1]["text/plain"].startswith("<b>ann</b> round 999  100%")
    assert "<b>" not in states[-1]["text/html"]
    assert "&lt;b&gt;ann" in states[-1]["text/html"]
    assert "<progress" in states[0]["text/html"]
    assert "<progress" not in states[-1]["text/html"]
    assert capsys.readouterr() == ("", "")


def test_python_without_a_kernel_is_no_notebook(monkeypatch):
    ipython = types.ModuleType("IPython")
    ipython.get_ipython = lambda: types.SimpleNamespace()  # IPython in a terminal
    monkeypatch.setitem(sys.modules, "IPython", ipython)
    assert not is_notebook()
    ipython.get_ipython = lambda: None  # imported by some library
    assert not is_notebook()
    monkeypatch.delitem(sys.modules, "IPython")
    assert not is_notebook()
