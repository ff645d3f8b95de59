"""`fedloom reproduce`: what it lists, runs and refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from driver import fedloom, refused

from fedloom.experiments.catalogue import experiment_names, load_experiment
from fedloom.experiments.stored import StoredUnit, read_stored, write_stored


def test_the_list_has_every_experiment_and_what_is_stored(tmp_path: Path) -> None:
    listed = fedloom("reproduce", "--list", "--results", tmp_path)
    assert listed.exit_code == 0
    words = listed.output.split()
    # A narrow terminal breaks names; their beginnings stay.
    assert all(name.partition("/")[0] in listed.output for name in experiment_names())
    assert "V11" in words
    assert "worlds" in listed.output


def test_what_a_search_found_is_of_its_own_scale(tmp_path: Path) -> None:
    """Results of the small scale stay what they are when the paper's is searched."""
    name = "pfedvem/table1_fmnist"
    experiment = load_experiment(name)
    stored = {
        str(unit): StoredUnit(
            digest=experiment.digest(unit, "small"),
            seeds=(0,),
            seconds=1.0,
            created="",
            environment={},
        )
        for unit in experiment.units("small")
    }
    write_stored(tmp_path, name, "small", stored)
    found = {"fedavg": {"settings": {"lr": 0.02}}}
    searched = {"setting": "J 100", "trials": 8, "rounds": 12, "found": found}
    (tmp_path / f"{name}.paper.search.json").write_text(json.dumps(searched))
    listed = fedloom("reproduce", "--list", "--results", tmp_path).output
    assert "small 5/5" in " ".join(listed.split())


def test_an_experiment_is_run_and_stored_once(tmp_path: Path) -> None:
    options = ("--results", tmp_path / "results", "--out", tmp_path / "runs")
    name = "self_fl/fig6_gaussian"
    first = fedloom("reproduce", name, *options)
    assert first.exit_code == 0, first.output
    units = read_stored(tmp_path / "results", name, "small")
    assert len(units) == 20
    assert f"{name}: 20 lines" in first.output
    assert "all is stored" in fedloom("reproduce", name, *options).output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "which experiments?"),
        (("self_fl/fig4_gausian",), "Did you mean 'self_fl/fig4_gaussian'?"),
        (("digits", "self_fl"), "digits is the library's own experiment"),
        (("self_fl/fig4_gaussian", "--scale", "large"), "--scale: unknown scale"),
        (("self_fl/fig4_gaussian", "--stop-after", "0"), "minutes above 0"),
        (("self_fl/fig4_gaussian", "--search"), "has no section [search]"),
    ],
)
def test_what_cannot_be_run_is_refused(
    arguments: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    assert message in refused("reproduce", *arguments, "--results", tmp_path)
