"""What the package says of itself, in one place and in others."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
import yaml

import fedloom
from fedloom.algorithms import FedACS, PFedMT, PFedVEM, SelfFL

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
README = (ROOT / "README.md").read_text(encoding="utf-8")


def read_yaml(path: str) -> dict[str, object]:
    table: dict[str, object] = yaml.safe_load((ROOT / path).read_text(encoding="utf-8"))
    return table


def pythons() -> list[str]:
    found = re.findall(
        r"Python :: (3\.\d+)", "\n".join(PROJECT["project"]["classifiers"])
    )
    assert found
    return found


def test_the_version_is_written_once_and_cited():
    assert "version" in PROJECT["project"]["dynamic"]
    assert PROJECT["tool"]["hatch"]["version"]["path"] == "src/fedloom/core/version.py"
    assert read_yaml("CITATION.cff")["version"] == fedloom.__version__


def test_every_python_and_system_that_is_named_is_tried():
    matrix = read_yaml(".github/workflows/ci.yml")["jobs"]["test"]["strategy"]["matrix"]
    assert matrix["python"] == pythons() == ["3.11", "3.12", "3.13", "3.14"]
    assert PROJECT["project"]["requires-python"] == f">={pythons()[0]}"
    names = {name.partition("-")[0] for name in matrix["os"]}
    assert names == {"ubuntu", "macos", "windows"}


def test_every_extra_is_explained():
    for extra in PROJECT["project"]["optional-dependencies"]:
        assert f"| `{extra}` |" in README, extra


def test_installing_comes_before_everything_that_needs_it():
    assert README.index("pip install fedloom") < README.index("make demo")
    assert README.index("make demo") < README.index("import fedloom")
    assert "make test" in README


@pytest.mark.parametrize("method", [SelfFL, PFedVEM, FedACS, PFedMT])
def test_the_papers_of_our_own_methods_are_cited(method: type):
    notes = [
        paper["notes"].split(", ") for paper in read_yaml("CITATION.cff")["references"]
    ]
    assert sum(method.name in names for names in notes) == 1


def test_templates_ask_for_what_is_needed():
    templates = ROOT / ".github" / "ISSUE_TEMPLATE"
    for path in templates.glob("*.yml"):
        table = read_yaml(str(path))
        if path.name != "config.yml":
            assert any(
                part.get("validations", {}).get("required") for part in table["body"]
            ), path
