"""The command line, driven as a user drives it."""

import contextlib
import io
import json
import signal
import subprocess
import sys
import urllib.request
from contextlib import ExitStack
from typing import NamedTuple

import pytest

from fedloom.algorithms import REGISTRY
from fedloom.cli import main
from fedloom.clients import load_split
from fedloom.config import parse, read_toml
from fedloom.data import Digits
from fedloom.plan import make_clients


class Done(NamedTuple):
    """What came of a command."""

    returncode: int
    stdout: str
    stderr: str


def fedloom(*arguments, cwd="."):
    """Run `fedloom ARGUMENTS` inside this process, which takes seconds less."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    argv = ["fedloom", *map(str, arguments)]
    with ExitStack() as held:
        held.enter_context(pytest.MonkeyPatch.context()).setattr(sys, "argv", argv)
        held.enter_context(contextlib.chdir(cwd))
        held.enter_context(contextlib.redirect_stdout(out))
        held.enter_context(contextlib.redirect_stderr(err))
        try:
            main()
        except SystemExit as end:
            code = end.code or 0
    return Done(code, out.getvalue(), err.getvalue())


def test_a_run_ends_with_a_table_and_the_path_of_what_was_written(tmp_path):
    done = fedloom(
        *("run", "--algorithm", "ditto", "--data", "digits", "--rounds", 2),
        *("--partition", "label-skew", "--set", "partition.clients=5"),
        *("--seed", 1, "--out", tmp_path / "r"),
    )
    assert done.returncode == 0, done.stderr
    assert "accuracy after round 2" in done.stdout
    assert "personal" in done.stdout
    assert str(tmp_path / "r") in done.stdout.replace("\n", "")
    assert "\x1b" not in done.stdout  # plain when not a terminal
    assert json.loads((tmp_path / "r" / "manifest.json").read_text())["seed"] == 1


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["run", "--algorithm", "dito"], 2, "Did you mean 'ditto'"),
        (["run", "--set", "algorithm.epoch=1"], 2, "Did you mean 'epochs'"),
        (["run", "--data", "file", "--set", "data.path=no.csv"], 3, "no.csv"),
        (
            ["run", "--set", "algorithm.lr=1e30", "--rounds", "2"],
            5,
            "algorithm.lr=auto",
        ),
        (["describe", "dito"], 2, "Did you mean 'ditto'"),
        (["resume", "nowhere"], 3, "holds no run"),
        (["data", "digit"], 2, "Did you mean 'digits'"),
        (["data", "absent.toml"], 2, "absent.toml: cannot be read"),
        (["data", "file", "--set", "data.path=no.csv"], 3, "no.csv"),
        (["report", "nowhere"], 3, "no run there"),
        (["view", "nowhere"], 3, "no such directory"),
    ],
)
def test_a_mistake_ends_with_its_message_and_exit_code(
    arguments, code, words, tmp_path
):
    done = fedloom(*arguments, cwd=tmp_path)
    assert done.returncode == code
    assert done.stderr.startswith("error:")
    assert words in done.stderr.replace("\n", " ")
    assert "Traceback" not in done.stderr


def test_a_comparison_with_diverged_runs_says_so_and_does_not_exit_with_0(tmp_path):
    done = fedloom(
        *("compare", "local", "fedavg", "--rounds", 2, "--seeds", 1, "--jobs", 1),
        *("--set", "algorithm.lr=1e30", "--out", tmp_path / "c"),
    )
    assert done.returncode == 5, done.stderr
    assert "No answer: both runs diverged." in done.stdout
    text = done.stderr.replace("\n", " ")
    for name in ("local", "fedavg"):
        assert f"{name}: 1 of 1 runs diverged. The first: round 1" in text
    assert text.count("algorithm.lr=auto") == 1
    assert "fedloom resume" not in text + done.stdout


def test_the_package_is_a_command_too():
    command = [sys.executable, "-m", "fedloom", "run", "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert "FILE: TOML file of the run." in done.stdout


def test_sections_without_a_name_are_described():
    done = fedloom("describe", "faults")
    assert done.returncode == 0, done.stderr
    assert "absent" in done.stdout


def test_list_names_every_method(tmp_path):
    done = fedloom("list")
    assert done.returncode == 0, done.stderr
    for name in REGISTRY:
        assert name in done.stdout


def test_describe_says_what_goes_down_what_goes_up_and_what_stays():
    done = fedloom("describe", "ditto")
    text = " ".join(done.stdout.split())
    assert "arXiv:2012.04221" in text
    assert "Goes up from each client: Client to server: the shared model" in text
    assert "Kept on the client: On one client, from round to round. Never sent" in text
    assert "pull 1.0 number at least 0" in text


def test_data_draws_a_split_and_writes_it_with_its_hash(tmp_path):
    done = fedloom(
        *("data", "digits", "--partition", "dirichlet", "--seed", 3),
        *("--set", "partition.clients=7", "--set", "split.most=50"),
        *("--set", "transform.name=rotation", "--out", tmp_path / "d"),
    )
    assert done.returncode == 0, done.stderr
    text = " ".join(done.stdout.split())
    assert "digits, 1,797 samples" in text
    assert "clients 7" in text
    assert '"name": "rotation", "seed": 3' in text
    assert "█" in text
    assert "\x1b" not in done.stdout
    split = load_split(tmp_path / "d" / "split.npz", Digits().load(None, 0))
    assert split.hash in text
    assert split.sizes.max() == 50
    assert (tmp_path / "d" / "split.svg").read_text().startswith("<svg")


def test_data_takes_a_runs_file_and_gives_the_split_of_that_run(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text("seed = 4\n[partition]\nname = 'iid'\nclients = 3\n")
    done = fedloom("data", file)
    assert done.returncode == 0, done.stderr
    assert make_clients(parse(read_toml(file)))[1].hash in done.stdout


def test_data_without_a_name_lists_what_is_here(tmp_path):
    done = fedloom("data", "--data-dir", tmp_path)
    assert done.returncode == 0, done.stderr
    lines = {line.split("  ")[0]: line for line in done.stdout.splitlines()}
    assert "built in" in lines["digits"]
    assert "not found" in lines["mnist"]
    assert "needs settings" in lines["file"]


def test_data_refuses_a_file_in_place_of_a_folder(tmp_path):
    (tmp_path / "taken").touch()
    done = fedloom("data", "digits", "--out", tmp_path / "taken")
    assert done.returncode == 2
    assert "expected a directory, found a file" in " ".join(done.stderr.split())


@pytest.mark.slow
def test_bench_engine_writes_rows_with_ratios(tmp_path):
    done = fedloom(
        *("bench", "engine", "--data", "digits", "--models", "mlr", "--repeats", 1),
        *("--modes", "plain,weave", "--clients", 20, "--json", tmp_path / "b.json"),
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "b.json").read_text())
    works = ["training"] * 2 + ["shared"] * 2 + ["personal"] * 2
    assert [row["work"] for row in rows] == works
    assert [row["mode"] for row in rows] == ["plain", "weave"] + ["plain", "native"] * 2
    assert all(row["ratio"] == 1.0 for row in rows[::2])
    assert {row["ratio_to"] for row in rows} == {"plain"}
    assert all(row["seconds"] > 0 and row["model"] == "mlr" for row in rows)
    for row in rows:
        times = row["flops"] / row["flops_s"], row["bytes"] / row["bytes_s"]
        assert row["floor_s"] == pytest.approx(max(times))
        assert row["times_floor"] == pytest.approx(row["seconds"] / max(times))
    # Batches of ten and 64 inputs to ten classes, one product forward and one back.
    assert rows[0]["flops"] == 1797 * 2 * 2 * 64 * 10
    assert rows[0]["bytes"] == 2 * 4 * 650 * 180


def test_a_comparison_ends_with_its_ranking_and_a_page(tmp_path):
    done = fedloom(
        *("compare", "local", "fedavg", "--seeds", 2, "--rounds", 2, "--jobs", 1),
        *("--set", "model.hidden=[4]", "--set", "partition.name=iid"),
        *("--set", "partition.clients=3", "--out", tmp_path / "c"),
    )
    assert done.returncode == 0, done.stderr
    assert "gain over" in done.stdout
    assert str(tmp_path / "c" / "report.html") in done.stdout.replace("\n", "")
    assert (tmp_path / "c" / "report.html").read_text().startswith("<!doctype html>")
    again = fedloom(
        "report", tmp_path / "c", "--format", "md", "--out", "r.md", cwd=tmp_path
    )
    assert again.returncode == 0, again.stderr
    assert "| --- |" in (tmp_path / "r.md").read_text()


def test_view_says_where_it_is_serves_only_here_and_stops_on_ctrl_c(tmp_path):
    code = "from fedloom.cli import main; main()"
    view = subprocess.Popen(
        [sys.executable, "-u", "-c", code, "view", str(tmp_path), "--no-browser"],
        stdout=subprocess.PIPE,
        text=True,
    )
    with view:
        try:
            url = view.stdout.readline().split()[0]
            assert url.startswith("http://127.0.0.1:")
            with urllib.request.urlopen(url + "state", timeout=20) as answer:
                assert json.load(answer)["runs"] == []
            view.send_signal(signal.SIGINT)
            assert view.stdout.read().strip() == "Stopped."
            view.wait(20)
        finally:
            view.kill()
    assert view.returncode == 0
