"""`--data` takes the name of a source, or a file of one's own."""

from __future__ import annotations

from pathlib import Path

import pytest
from driver import fedloom, refused

from fedloom.commands.options import apply_options, data_options

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
