"""`fedloom describe` knows every section, and every setting that there is."""

from __future__ import annotations

import dataclasses

import pytest
from driver import fedloom, refused

from fedloom.clients import Sampling, Split
from fedloom.commands.sections import components, sections
from fedloom.config import RunConfig
from fedloom.engine.choice import EngineSettings
from fedloom.fleet.faults import Faults
from fedloom.robust import Attack, Robust
from fedloom.server.schedule import Schedule


def test_every_part_of_a_run_is_a_section() -> None:
    parts = {field.name for field in dataclasses.fields(RunConfig)} - {"finds_lr"}
    assert parts <= sections().keys()
    assert {"ray", "tune", "evaluation", "compare", "serve"} <= sections().keys()


@pytest.mark.parametrize("name", sections())
def test_every_setting_of_a_section_has_a_type_and_a_sentence(name: str) -> None:
    section = sections()[name]
    assert section.about.endswith(".")
    assert section.settings
    for setting in section.settings:
        assert setting.kind, setting.name
        assert setting.doc.rstrip().endswith((".", '"', ")", "all.")), setting
    done = fedloom("describe", name)
    assert done.exit_code == 0, done.output
    shown = "".join(done.output.split())
    assert all(setting.name in shown for setting in section.settings)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("split", Split),
        ("sampling", Sampling),
        ("faults", Faults),
        ("robust", Robust),
        ("attack", Attack),
        ("engine", EngineSettings),
        ("schedule", Schedule),
    ],
)
def test_no_setting_is_left_out(name: str, kind: type) -> None:
    settings = [setting.name for setting in sections()[name].settings]
    assert settings == [field.name for field in dataclasses.fields(kind)]


def test_a_section_that_chooses_lists_what_there_is_to_choose() -> None:
    for name, registry in components().items():
        assert sections()[name].choices.keys() == registry.keys()
        shown = fedloom("describe", name).output
        assert all(known in shown for known in registry)


def test_without_a_name_all_sections_are_listed() -> None:
    shown = fedloom("describe").output
    assert all(name in shown for name in sections())


def test_a_name_that_is_nearly_right_is_suggested() -> None:
    assert "Did you mean 'split'" in refused("describe", "splitt")
