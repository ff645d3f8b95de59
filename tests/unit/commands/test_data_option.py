"""`--data` takes the name of a source, or a file of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver import fedloom, refused

from fedloom.commands.options import apply_options, data_options
from fedloom.core.errors import DataError

ROWS = "site,age,dose,y\n" + "".join(
    f"{'ab'[n % 2]},{20 + n},{n % 7}.5,{n % 2}\n" for n in range(24)
)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "patients.csv"
    path.write_text(ROWS)
    return path


def test_names_stay_names_and_files_become_paths(tmp_path: Path, table: Path) -> None:
    assert data_options(None) == {"data.name": None}
    assert data_options("digits") == {"data.name": "digits"}
    assert data_options("dgits") == {"data.name": "dgits"}
    for path in (str(table), "absent.parquet", "absent.csv.gz"):
        assert data_options(path) == {"data.name": "file", "data.path": path}
    other = tmp_path / "notes.txt"
    other.write_text("")
    assert data_options(str(other))["data.name"] == "file"


def test_another_file_keeps_what_is_said_of_its_columns(table: Path) -> None:
    tables = {"data": {"name": "file", "path": "old.csv", "client": "site"}}
    apply_options(tables, data_options(str(table)), None)
    assert tables["data"] == {"name": "file", "path": str(table), "client": "site"}


def test_a_file_is_divided_as_its_columns_say(table: Path) -> None:
    done = fedloom("data", table, "--set", "data.client=site")
    assert done.exit_code == 0, done.output
    assert "2 clients from column 'site'" in done.output


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_every_command_takes_a_file(command: str, table: Path, tmp_path: Path) -> None:
    methods = ("--algorithm", "local") if command == "run" else ("local",)
    out = ("--out", tmp_path / "out.toml")
    message = refused(command, *methods, "--data", table, *out)
    assert "column site is not numeric" in message
    assert "--set data.client=site" in message
    message = refused(command, *methods, "--data", tmp_path / "absent.csv", *out)
    assert "absent.csv" in message
    assert [path.name for path in tmp_path.iterdir()] == ["patients.csv"]


def test_a_search_is_not_forgotten_for_bad_data(table: Path, tmp_path: Path) -> None:
    kept = [tmp_path / f"old.{ending}" for ending in ("toml", "journal")]
    for path in kept:
        path.write_text("kept")
    to = ("--out", kept[0], "--fresh")
    assert "not numeric" in refused("tune", "local", "--data", table, *to)
    assert [path.read_text() for path in kept] == ["kept", "kept"]


ALONE = "site,age,y\n" + "".join(f"s{n},{n},{n % 2}\n" for n in range(12))


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_clients_that_cannot_be_tested_are_refused(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "one.csv").write_text(ALONE)
    methods = ("--algorithm", "local") if command == "run" else ("local",)
    data = ("--data", tmp_path / "one.csv", "--set", "data.client=site")
    result = fedloom(command, *methods, *data, "--out", tmp_path / "out.toml")
    assert isinstance(result.exception, DataError)
    message = str(result.exception)
    assert (
        "found 12 clients from column 'site' with at most 1 sample. Name a" in message
    )
    assert "split.test" not in message  # with one row each no share is of use
    assert result.output == ""  # nothing is announced that does not happen
    assert [path.name for path in tmp_path.iterdir()] == ["one.csv"]


def test_who_asks_for_no_test_gets_none(tmp_path: Path) -> None:
    (tmp_path / "one.csv").write_text(ALONE)
    data = ("--data", tmp_path / "one.csv", "--set", "data.client=site")
    run = ("run", *data, "--set", "split.test=0", "--rounds", 1, "--model", "mlr")
    assert fedloom(*run, "--out", tmp_path / "run").exit_code == 0


def test_a_test_column_that_marks_nothing_is_refused(tmp_path: Path) -> None:
    rows = "".join(f"s{n % 2},{n},train,{n % 2}\n" for n in range(12))
    (tmp_path / "t.csv").write_text(f"site,age,part,y\n{rows}")
    message = refused(
        *("data", tmp_path / "t.csv", "--set", "data.client=site"),
        *("--set", "split.test_column=part"),
    )
    assert "column 'part' (split.test_column) says test, or 1, of no row" in message


@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_what_was_understood_is_the_first_line(
    command: str, table: Path, tmp_path: Path
) -> None:
    methods = ("--algorithm", "local") if command == "run" else ("local",)
    more = {"compare": ("--seeds", 1, "--jobs", 1), "tune": ("--trials", 1)}
    done = fedloom(
        *(command, *methods, "--data", table, "--set", "data.client=site"),
        *("--rounds", 1, "--model", "mlr", "--out", tmp_path / "out.toml"),
        *more.get(command, ()),
    )
    assert done.exit_code == 0, done.output
    first = done.output.splitlines()[0]
    assert first.startswith(f"{table}: classification of 'y' into 2 classes; 2 featu")
    assert "2 clients from column 'site'" in first
