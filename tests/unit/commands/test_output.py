"""--version, --quiet and --json: what goes where."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from driver import fedloom

import fedloom as library
from fedloom.algorithms import REGISTRY
from fedloom.commands import console
from fedloom.commands.sections import sections

ROWS = "site,age,dose,y\n" + "".join(
    f"{'ab'[n % 2]},{20 + n},{n % 7}.5,{'no' if n % 3 else 'yes'}\n" for n in range(40)
)


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("own") / "patients.csv"
    path.write_text(ROWS)
    return path


@pytest.fixture(scope="module")
def run(table: Path) -> Path:
    path = table.parent / "run"
    data = ("--data", table, "--set", "data.client=site", "--model", "mlr")
    done = fedloom("run", *data, "--rounds", 2, "--out", path)
    assert done.exit_code == 0, done.output
    return path


def document(*arguments: Any) -> Any:
    """The one JSON document on standard output."""
    done = fedloom(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


def test_the_version_is_that_of_the_package() -> None:
    assert fedloom("--version").stdout == f"fedloom {library.__version__}\n"


def test_quiet_leaves_the_result_alone(table: Path, tmp_path: Path) -> None:
    data = ("--data", table, "--set", "data.client=site", "--model", "mlr")
    command = ("run", *data, "--rounds", 1)
    loud = fedloom(*command, "--out", tmp_path / "loud").stdout
    quiet = fedloom(*command, "--quiet", "--out", tmp_path / "quiet").stdout
    assert "round 1/1" in loud
    assert "round 1/1" not in quiet
    assert "2 clients from column" not in quiet
    assert "accuracy after round 1" in quiet
    assert "Written to" in quiet


def test_a_run_is_one_document_and_all_else_is_on_the_other_stream(
    table: Path, tmp_path: Path
) -> None:
    data = ("--data", table, "--set", "data.client=site", "--model", "mlr")
    out = ("--rounds", 2, "--out", tmp_path / "r")
    done = fedloom("run", *data, *out, "--gain", "--json")
    told = json.loads(done.stdout)
    assert (told["command"], told["algorithm"]) == ("run", "fedavg")
    assert (told["clients"], told["metric"], told["round"]) == (2, "accuracy", 2)
    kinds = {(row["kind"], row["part"]) for row in told["scores"]}
    assert ("personal", "test") in kinds
    assert [row["client"] for row in told["gain"]["clients"]] == ["a", "b"]
    assert Path(told["path"]) == tmp_path / "r"
    assert "round 2/2" in done.stderr
    assert "accuracy after round 2" in done.stderr


def test_with_both_there_is_nothing_but_the_document(
    table: Path, tmp_path: Path
) -> None:
    data = ("--data", table, "--set", "data.client=site", "--model", "mlr")
    out = ("--rounds", 1, "--out", tmp_path / "r")
    done = fedloom("run", *data, *out, "--json", "--quiet")
    assert done.stdout.count("command") == 1, done.stdout
    assert json.loads(done.stdout)
    assert done.stderr == ""
    again = fedloom("list", "--model", "mlr")
    assert "fedavg" in again.stdout  # the next command speaks as before


def test_a_comparison_a_report_and_a_search_are_documents(
    table: Path, tmp_path: Path
) -> None:
    data = ("--data", table, "--set", "data.client=site", "--model", "mlr")
    short = ("--rounds", 1, "--seeds", 1)
    out = tmp_path / "c"
    compared = document(
        *("compare", "local", "fedavg", *data, *short, "--jobs", 1, "--out", out)
    )
    assert {row["method"] for row in compared["methods"]} == {"local", "fedavg"}
    assert 0 <= compared["methods"][0]["last"]["mean"] <= 1
    assert compared["failures"] == []
    reported = document("report", out)
    assert reported["methods"] == compared["methods"]
    assert Path(reported["written"][0]) == out / "report.html"
    tuned = document(
        *("tune", "fedavg", *data, *short, "--trials", 1),
        *("--out", tmp_path / "t.toml"),
    )
    assert [row["method"] for row in tuned["methods"]] == ["fedavg"]
    assert tuned["failed"] == []


def test_a_divided_table_is_a_document(table: Path) -> None:
    told = document("data", table, "--set", "data.client=site")
    assert [row["client"] for row in told["clients"]] == ["a", "b"]
    assert told["understood"].startswith(f"{table}: classification of 'y'")
    assert sum(row["train"] + row["test"] for row in told["clients"]) == 40
    assert "digits" in [row["name"] for row in document("data")["sources"]]


def test_the_catalogue_is_a_document() -> None:
    told = document("list", "--model", "mlr")
    assert {row["name"] for row in told["methods"]} == {*REGISTRY}
    assert all(row["down"] is None or row["down"] >= 0 for row in told["methods"])
    assert "images" in [row["name"] for row in told["data"]]


def test_descriptions_are_documents() -> None:
    method = document("describe", "ditto")
    assert "pull" in [setting["name"] for setting in method["settings"]]
    assert "Goes up from each client" in method["records"]
    section = document("describe", "engine")
    device = next(s for s in section["settings"] if s["name"] == "device")
    assert (device["type"], device["default"]) == ("text", "auto")
    assert [row["name"] for row in document("describe")["sections"]] == [*sections()]


def test_exports_and_predictions_are_documents(
    run: Path, table: Path, tmp_path: Path
) -> None:
    told = document("export", run, "--client", "b", "--out", tmp_path / "e")
    assert told["clients"] == ["b"]
    assert (Path(told["path"]) / "model.toml").is_file()
    for where in ((run, "--client", "b"), (tmp_path / "e",)):
        rows = document("predict", where[0], table, *where[1:])["predictions"]
        assert len(rows) == 40
        assert rows[0].keys() == {"prediction", "p_no", "p_yes"}
    newcomers = document("personalize", run, "--data", table)["newcomers"]
    assert [row["name"] for row in newcomers] == ["patients"]


def test_an_error_is_a_document_too() -> None:
    command = [sys.executable, "-m", "fedloom", "run", "--algorithm", "dito", "--json"]
    done = subprocess.run(command, capture_output=True, text=True, encoding="utf-8")
    told = json.loads(done.stdout)
    assert (told["error"], told["exit_code"]) == ("ConfigError", 2)
    assert "Did you mean 'ditto'" in told["message"]
    assert done.returncode == 2
    assert done.stderr.startswith("error:")


def test_numbers_that_are_none_become_null(capsys: pytest.CaptureFixture[str]) -> None:
    console.print_json({"a": float("nan"), "b": (1, float("inf")), "c": Path("x")})
    assert json.loads(capsys.readouterr().out) == {"a": None, "b": [1, None], "c": "x"}
