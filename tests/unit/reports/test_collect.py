"""Reading run directories: comparisons, single runs, lists, and broken things."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from made_runs import steady, write_comparison, write_run

from fedloom.core.digests import write_checked_json
from fedloom.core.errors import DataError, MessageError
from fedloom.core.remarks import Remark
from fedloom.reports import collect
from fedloom.results.directory import RunDirectory

THREE = steady([0.5, 0.7], [0.6, 0.8], [0.7, 0.9])


def test_a_comparison_is_read_in_its_own_order(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", {"b": THREE, "a": THREE})
    collection = collect([path])
    assert collection.methods == ("b", "a")
    assert collection.seeds == (0, 1, 2)
    run = collection.runs["b", 1]
    assert run.number(1, "accuracy") == pytest.approx(0.7)
    assert run.last is not None
    assert run.last.get("personal", "test", "accuracy") == pytest.approx([0.6, 0.8])
    assert np.isnan(run.last.get("personal", "validation", "accuracy")).all()


def test_runs_that_never_began_are_counted(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", {"a": THREE})
    (path / "a" / "seed-2" / "manifest.json").unlink()
    collection = collect([path])
    assert collection.absent == (("a", 2),)
    assert collection.state_counts("a")["never begun"] == 1


def test_a_failed_run_and_an_unfinished_one_are_told_apart(tmp_path: Path) -> None:
    failed = write_run(tmp_path / "a", THREE[0], seed=0, failure="round 2: loss is nan")
    stopped = write_run(tmp_path / "b", THREE[1], seed=1, planned=9)
    collection = collect([failed, stopped])
    assert {run.state for run in collection.runs.values()} == {"failed", "unfinished"}
    assert "No run has finished" in " ".join(collection.remarks)
    assert [run.seed for run in collection.counted.values()] == [1]


def test_what_is_wrong_with_the_split_is_said_once(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", {"a": THREE, "b": THREE})
    for manifest in path.rglob("manifest.json"):
        said = {**json.loads(manifest.read_text()), "split_warning": "Rows are alike."}
        said.pop("digest", None)
        write_checked_json(manifest, said)
    assert collect([path]).remarks.count("Rows are alike.") == 1


def test_a_last_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = write_run(tmp_path / "a", [[0.1], [0.5], [0.9]], planned=9)
    rows = path / "rounds.jsonl"
    rows.write_text(rows.read_text()[:-40])
    collection = collect([path])
    assert collection.runs["ditto", 0].last_round == 1


def test_runs_of_one_method_are_named_by_the_settings_that_differ(
    tmp_path: Path,
) -> None:
    for n, pull in enumerate((0.5, 2.0)):
        for seed in (0, 1):
            settings = {"pull": pull}
            path = tmp_path / "all" / f"{n}-{seed}"
            write_run(path, THREE[0], settings=settings, seed=seed)
    collection = collect([tmp_path / "all"])
    assert collection.methods == ("ditto (pull=0.5)", "ditto (pull=2.0)")
    assert collection.seeds == (0, 1)


def test_twice_the_same_run_is_named_by_its_directory(tmp_path: Path) -> None:
    write_run(tmp_path / "all" / "one", THREE[0])
    write_run(tmp_path / "all" / "two", THREE[1])
    assert collect([tmp_path / "all"]).methods == ("ditto [one]", "ditto [two]")


def test_runs_of_comparisons_keep_their_names_in_a_list(tmp_path: Path) -> None:
    for name in ("one", "two"):
        write_comparison(tmp_path / name, {"a": THREE, f"b {name}": THREE})
    collection = collect([tmp_path])
    assert collection.methods == ("a [one]", "b one", "a [two]", "b two")
    assert all(run is not None for run in collection.of("a [two]"))


def test_the_round_is_chosen_on_validation_data(tmp_path: Path) -> None:
    validation = [[0.1, 0.1], [0.9, 0.7], [0.6, 0.6]]
    test = [[0.1, 0.1], [0.4, 0.4], [0.9, 0.9]]
    run = collect([write_run(tmp_path / "a", test, validation)]).runs["ditto", 0]
    assert run.chosen_round == 1
    assert run.number(run.chosen_round, "accuracy") == pytest.approx(0.4)


def test_without_validation_data_no_round_is_chosen_and_that_is_said(
    tmp_path: Path,
) -> None:
    collection = collect([write_run(tmp_path / "a", THREE[0])])
    assert collection.runs["ditto", 0].chosen_round is None
    assert "split.validation" in " ".join(collection.remarks)


def test_validation_data_alone_are_reported_and_choose_nothing(tmp_path: Path) -> None:
    validation = [[0.1, 0.1], [0.9, 0.7], [0.6, 0.6]]
    path = write_run(tmp_path / "a", validation, validation, has_test=False)
    collection = collect([path])
    run = collection.runs["ditto", 0]
    assert run.part == "validation"
    assert run.chosen_round is None
    assert run.number(run.last_round, "accuracy") == pytest.approx(0.6)
    assert "no test data" in " ".join(collection.remarks)


def test_clients_are_the_same_in_every_seed_if_they_hold_the_same_samples(
    tmp_path: Path,
) -> None:
    same = write_comparison(tmp_path / "s", {"a": THREE}, is_same=True)
    anew = write_comparison(tmp_path / "n", {"a": THREE}, is_same=False)
    assert collect([same]).has_same_clients
    assert not collect([anew]).has_same_clients


def test_who_held_what_is_read_from_the_split(tmp_path: Path) -> None:
    shares = collect([write_run(tmp_path / "a", THREE[0])]).runs["ditto", 0].client_data
    assert shares is not None
    assert shares.sizes.tolist() == [20, 20]
    assert shares.labels.sum(1).tolist() == [20, 20]
    assert shares.classes == ("0", "1", "2")


def test_methods_that_met_different_clients_are_not_paired(tmp_path: Path) -> None:
    a = write_run(tmp_path / "a", THREE[0], algorithm="local")
    b = write_run(tmp_path / "b", THREE[0], split="another")
    collection = collect([a, b])
    assert not collection.is_paired
    assert "did not meet the same clients" in " ".join(collection.remarks)


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no run there"):
        collect([tmp_path])
    a = write_run(tmp_path / "a", THREE[0])
    b = write_run(tmp_path / "b", THREE[0], metric="mse")
    with pytest.raises(DataError, match=r"same metric.*mse"):
        collect([a, b])
    manifest = json.loads((a / "manifest.json").read_text())
    del manifest["seed"], manifest["digest"]
    write_checked_json(a / "manifest.json", manifest)
    with pytest.raises(MessageError, match=r"manifest of a run: it has no seed"):
        collect([a])
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "compare.toml").write_text("seeds = 3\n")
    with pytest.raises(DataError, match="not the file of a comparison"):
        collect([tmp_path / "c"])


def test_of_remarks_that_differ_by_seed_that_of_most_is_said(tmp_path: Path) -> None:
    path = write_comparison(tmp_path / "c", {"a": steady(*[[0.5]] * 3)})
    for seed, topic in enumerate(("few", "many", "many")):
        remark = Remark(f"local steps: {topic}", f"There are {topic}.")
        RunDirectory(path / "a" / f"seed-{seed}").write_remarks([remark])
    said = " ".join(collect([path]).remarks)
    assert "There are many. (2 of 3 seeds" in said
    assert "There are few" not in said
