"""A ratio that fell is noticed."""

import json

import pytest

from fedloom.bench import ratios
from fedloom.bench.ratios import Ratio, compare, read
from fedloom.core.errors import DataError


def test_only_what_fell_far_below_the_stored_ratio_is_slower():
    measured = [
        Ratio(name="kept", ratio=7.0),
        Ratio(name="fell", ratio=5.0),
        Ratio(name="new", ratio=0.1),
    ]
    lines = compare(measured, {"kept": 10.0, "fell": 10.0, "gone": 3.0})
    assert [line.is_slower for line in lines] == [False, True, False]
    assert [line.stored for line in lines] == [10.0, 10.0, None]


def test_a_file_without_ratios_is_refused(tmp_path):
    path = tmp_path / "stored.json"
    with pytest.raises(DataError, match="bench ratios --json"):
        read(path)
    path.write_text("[1]")
    with pytest.raises(DataError, match="expected rows with name and ratio"):
        read(path)


def test_the_command_ends_with_1_where_one_fell(tmp_path, monkeypatch):
    from typer.testing import CliRunner

    from fedloom.commands.bench import bench

    now = [Ratio(name="mlp", ratio=2.0), Ratio(name="mlr", ratio=2.0)]
    monkeypatch.setattr(ratios, "measure", lambda: iter(now))
    written = tmp_path / "now.json"
    first = CliRunner().invoke(bench, ["ratios", "--json", str(written)])
    assert first.exit_code == 0
    assert read(written) == {"mlp": 2.0, "mlr": 2.0}
    stored = tmp_path / "stored.json"
    stored.write_text(json.dumps([{"name": "mlp", "ratio": 4.0}]))
    second = CliRunner().invoke(bench, ["ratios", "--stored", str(stored)])
    assert second.exit_code == 1
    assert "slower" in second.output
    third = CliRunner().invoke(bench, ["ratios", "--stored", str(written)])
    assert third.exit_code == 0


def test_stored_ratios_can_be_read(request):
    path = request.config.rootpath / "benchmarks" / "ratios-2-cores.json"
    assert all(ratio > 0 for ratio in read(path).values())
