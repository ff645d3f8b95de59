"""A newcomer's path: an empty environment, the wheel, own data, own module, an answer.

`make package` builds the wheel and runs this. Nothing of the checkout is seen: neither
its folder nor its environment.
"""

from __future__ import annotations

import csv
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

pytestmark = [pytest.mark.package, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
HOSPITALS = ("north", "south", "east", "west")

MODULE = '''
"""A module of my own."""

import torch
from torch import nn


class Net(nn.Module):
    """Two layers."""

    def __init__(self, in_features: int = 4, outputs: int = 2) -> None:
        super().__init__()
        self.body = nn.Linear(in_features, 8)
        self.head = nn.Linear(8, outputs)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(torch.relu(self.body(x)))
'''

SCRIPT = """
from pathlib import Path

import numpy as np
from my_module import Net

import fedloom

if __name__ == "__main__":
    rows = np.genfromtxt("visits.csv", delimiter=",", names=True, dtype=None)
    x = np.stack([rows[f"lab{n}"] for n in range(4)], axis=1).astype("float32")
    y = (rows["outcome"] == "ill").astype("int64")
    clients = fedloom.federation(x, y, clients=rows["hospital"])
    fedloom.compare(
        ["local", "fedavg", "ditto"], Net, clients, rounds=3, seeds=2, out="python"
    )
    print(fedloom.report("python"))
    result = fedloom.run(fedloom.Ditto(lr=0.1), Net, clients, rounds=3)
    print(result.table())
    result.export("taken", clients=["north"])
    print(result.predict("north", x[:3]))
"""


class Environment:
    """An environment of its own, and a folder to work in."""

    def __init__(self, folder: Path) -> None:
        self.work = folder / "my study"
        self.work.mkdir()
        self._bin = folder / "venv" / ("Scripts" if os.name == "nt" else "bin")
        hidden = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV", "FEDLOOM_DATA")
        self._variables = {k: v for k, v in os.environ.items() if k not in hidden}
        self._variables["XDG_CACHE_HOME"] = str(folder / "cache")
        subprocess.run([sys.executable, "-m", "venv", folder / "venv"], check=True)

    def install(self, wheel: Path) -> None:
        constraints = ("--constraint", ROOT / "constraints.txt")
        pip = ("-m", "pip", "install", "--quiet", *constraints, wheel)
        subprocess.run([self._bin / "python", *pip], env=self._variables, check=True)

    def run(self, program: str, *arguments: object) -> str:
        """What a program says; it may neither fail nor complain."""
        ended = subprocess.run(
            [self._bin / program, *map(str, arguments)],
            cwd=self.work,
            env=self._variables,
            capture_output=True,
            encoding="utf-8",
        )
        said = ended.stdout + ended.stderr
        assert ended.returncode == 0, said
        for complaint in ("Warning", "warning:", "Traceback", "rror:"):
            assert complaint not in said, said
        return ended.stdout

    def fedloom(self, *arguments: object) -> str:
        return self.run("fedloom", *arguments)


@pytest.fixture(scope="module")
def newcomer(tmp_path_factory: pytest.TempPathFactory) -> Environment:
    wheels = sorted((ROOT / "dist").glob("*.whl"))
    assert len(wheels) == 1, "`make package` builds the wheel that this test installs"
    environment = Environment(tmp_path_factory.mktemp("newcomer"))
    environment.install(wheels[0])
    write_visits(environment.work / "visits.csv", seed=0)
    write_visits(environment.work / "new.csv", seed=1)
    module = environment.work / "my_module.py"
    module.write_text(MODULE, encoding="utf-8")
    return environment


def write_visits(path: Path, seed: int) -> None:
    """Laboratory values, an outcome, and whose patient it was."""
    draw = np.random.default_rng(seed)
    with path.open("w", encoding="utf-8", newline="") as file:
        lines = csv.writer(file)
        lines.writerow(["hospital", *(f"lab{n}" for n in range(4)), "outcome"])
        for number, hospital in enumerate(HOSPITALS):
            for lab in draw.normal(size=(60, 4)).round(3):
                is_ill = lab[0] + (-1) ** number * lab[1] > 0
                lines.writerow([hospital, *lab, "ill" if is_ill else "well"])


def test_only_what_was_installed_is_used(newcomer: Environment) -> None:
    code = "import fedloom; print(fedloom.__file__)"
    where = newcomer.run("python", "-W", "error", "-c", code)
    assert "site-packages" in where
    assert str(ROOT) not in where


def test_from_own_data_and_an_own_module_to_predictions(newcomer: Environment) -> None:
    own = ("--data", "visits.csv", "--set", "data.client=hospital")
    own += ("--set", "data.target=outcome", "--model", "my_module.py:Net")
    length = ("--rounds", 3, "--seeds", 2)
    methods = ("local", "fedavg", "ditto")
    said = newcomer.fedloom("compare", *methods, *own, *length, "--out", "which")
    assert "report.html" in said
    for method in methods:
        assert method in said
    page = newcomer.work / "which" / "report.html"
    assert page.read_text(encoding="utf-8").startswith("<!doctype html>")

    newcomer.fedloom("report", "which", "--format", "md", "--out", "which.md")
    assert "| --- |" in (newcomer.work / "which.md").read_text(encoding="utf-8")

    newcomer.fedloom("export", "which/ditto/seed-0", "--all", "--out", "home")
    models = sorted((newcomer.work / "home").rglob("*.safetensors"))
    assert len(models) == len(HOSPITALS)

    north = next(path.parent for path in models if "north" in str(path))
    predicted = ("--model", "my_module.py:Net", "--out", "predicted.csv")
    newcomer.fedloom("predict", north, "new.csv", *predicted)
    with (newcomer.work / "predicted.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 60 * len(HOSPITALS)
    assert {row["prediction"] for row in rows} <= {"ill", "well"}


def test_the_same_from_python(newcomer: Environment) -> None:
    (newcomer.work / "study.py").write_text(SCRIPT, encoding="utf-8")
    said = newcomer.run("python", "study.py")
    assert "report.html" in said
    assert "mean over clients" in said
    assert list((newcomer.work / "taken").rglob("*.safetensors"))


def test_c_code_and_pages_came_with_the_wheel(newcomer: Environment) -> None:
    code = """
from importlib.resources import files
for name in ("engine/descend.c", "reports/assets/page.css", "reports/assets/page.js",
             "reports/templates/page.html", "export/card.md.jinja", "py.typed"):
    assert files("fedloom").joinpath(name).is_file(), name
"""
    newcomer.run("python", "-c", code)
