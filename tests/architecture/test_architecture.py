"""The shape of the project, checked by a machine."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import fedloom
from fedloom.algorithms import GROUPS, REGISTRY
from fedloom.clients import PARTITIONS, TEAMS, TRANSFORMS
from fedloom.core.settings import settings_of
from fedloom.data import SOURCES
from fedloom.models import MODELS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "fedloom"


def test_every_public_name_exists_and_is_documented():
    for name in fedloom.__all__:
        thing = getattr(fedloom, name)
        if inspect.isclass(thing) or inspect.isfunction(thing):
            assert inspect.getdoc(thing), name


def test_every_setting_of_every_component_is_documented():
    for registry in (REGISTRY, SOURCES, PARTITIONS, TRANSFORMS, TEAMS, MODELS):
        for name, kind in registry.items():
            for setting in settings_of(kind):
                assert setting.doc, f"{name}.{setting.name}"


def test_every_method_is_registered_under_its_own_name():
    """One file for a method, or one package for a family."""
    places = {p.stem for p in (SOURCE / "algorithms").iterdir()} - {
        "__init__",
        "__pycache__",
    }
    registered = {kind.__module__.split(".")[2] for kind in REGISTRY.values()}
    assert places == registered
    for name, kind in REGISTRY.items():
        assert kind.name == name
        assert kind.group in GROUPS


def test_every_method_has_a_page_that_agrees_with_its_file():
    script = ROOT / "docs" / "algorithms" / "make_pages.py"
    found = subprocess.run(
        [sys.executable, script, "--check"], capture_output=True, text=True
    )
    assert found.returncode == 0, found.stderr


def test_core_needs_nothing_but_torch_numpy_and_the_standard_library():
    allowed = {*sys.stdlib_module_names, "torch", "numpy", "fedloom"}
    for path in (SOURCE / "core").glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.partition(".")[0] in allowed, f"{path.name}: {name}"


def test_nothing_is_pickled():
    for path in SOURCE.rglob("*.py"):
        text = path.read_text()
        for word in (
            "import pickle",
            "torch.load(",
            "torch.save(",
            "allow_pickle=True",
        ):
            assert word not in text, f"{path}: {word}"


def test_no_file_is_named_after_nothing():
    vague = {"utils", "helpers", "common", "misc", "base"}
    assert not [p for p in SOURCE.rglob("*.py") if p.stem in vague]


def test_functions_hide_no_module_of_the_same_name():
    names = {path.stem for path in SOURCE.iterdir()}
    functions = {n for n in fedloom.__all__ if inspect.isfunction(getattr(fedloom, n))}
    assert {"run", "compare", "tune", "report", "federation"} <= functions
    assert not functions & names


def test_method_files_stay_short():
    lengths = sorted(
        len(path.read_text().splitlines())
        for path in (SOURCE / "algorithms").rglob("*.py")
        if path.name != "__init__.py"
    )
    assert lengths[-1] <= 300
    assert lengths[len(lengths) // 2] <= 160
