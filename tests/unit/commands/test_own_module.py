"""--model my_module.py:Net: found, given what it wants, recorded, no other later."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from driver import fedloom, refused
from torch import nn

import fedloom as library
from fedloom.config import parse, read_toml, to_tables
from fedloom.core.errors import ConfigError, ContractError
from fedloom.deploy.client import make_node
from fedloom.deploy.server import refuse_what_needs_samples
from fedloom.models.imported import ImportedModel
from fedloom.plan import make_clients, make_module

ROWS = "site,age,dose,y\n" + "".join(
    f"{'ab'[n % 2]},{20 + n},{n % 7}.5,{'no' if n % 3 else 'yes'}\n" for n in range(40)
)
MODULE = '''
"""Nets of a user's own."""
import torch
from torch import nn
from layers import WIDTH

class Net(nn.Module):
    def __init__(self, in_features, num_classes, hidden=WIDTH):
        super().__init__()
        self.body = nn.Linear(in_features, hidden)
        self.head = nn.Linear(hidden, num_classes)

    def forward(self, x):
        return self.head(self.body(x).relu())

def small(outputs: int, input_shape: tuple[int, ...]):
    return nn.Linear(input_shape[0], outputs)

def anything(**settings):
    return nn.Linear(2, settings["out"])

class Wide(nn.Module):
    def __init__(self, width):
        super().__init__()

class Broken(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, None)

class Peeking(Net):
    def forward(self, x):
        if x.sum() > 0:
            return super().forward(x)
        return super().forward(-x)

class Pair(Net):
    def forward(self, x):
        return super().forward(x), x

def a_class():
    return Net

made = nn.Linear(2, 2)
number = 3
'''


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    (tmp_path / "patients.csv").write_text(ROWS)
    (tmp_path / "my_module.py").write_text(MODULE)
    (tmp_path / "layers.py").write_text("WIDTH = 5\n")
    return tmp_path


DATA = ("--data", "patients.csv", "--set", "data.client=site")
RUN = ("run", *DATA, "--rounds", 1, "--out", "r")


def built(name: str, **settings: Any) -> nn.Module:
    return ImportedModel(name=name, settings=settings).build((2,), 3)


@pytest.mark.parametrize(
    "name", ["my_module.py:Net", "my_module:Net", "./my_module.py:Net"]
)
def test_a_class_is_given_what_its_signature_wants(folder: Path, name: str) -> None:
    shapes = [tuple(p.shape) for p in built(name).parameters()]
    assert shapes == [(5, 2), (5,), (3, 5), (3,)]
    assert built(name, hidden=7).get_parameter("body.bias").shape == (7,)


def test_functions_and_modules_are_models_too(folder: Path) -> None:
    assert tuple(built("my_module.py:small").get_parameter("weight").shape) == (3, 2)
    assert built("my_module.py:anything", out=4).get_parameter("bias").shape == (4,)
    first, second = built("my_module.py:made"), built("my_module.py:made")
    assert first is not second
    assert torch.equal(first.get_parameter("weight"), second.get_parameter("weight"))


def test_a_model_of_tokens_is_told_of_them(folder: Path) -> None:
    (folder / "words.py").write_text(
        "from torch import nn\n"
        "def net(vocab_size, num_classes):\n"
        "    return nn.Embedding(vocab_size, num_classes)\n"
    )
    model = ImportedModel(name="words.py:net").build_for_tokens(9, 4, None)
    assert tuple(model.get_parameter("weight").shape) == (9, 4)


def test_a_file_with_the_name_of_a_library_takes_nothing_away(folder: Path) -> None:
    (folder / "json.py").write_text((folder / "my_module.py").read_text())
    assert built("json.py:Net")
    assert json.loads("[1]") == [1]


@pytest.mark.parametrize(
    ("model", "kind", "words"),
    [
        ("my_module.py", ConfigError, "say which class or function: my_module.py:Net"),
        ("my_module.py:Nett", ConfigError, "Did you mean 'Net'"),
        ("my_module.py:number", ConfigError, "found int"),
        ("my_module.py:", ConfigError, "expected a model as my_module.py:Net"),
        ("no_module.py:Net", ConfigError, "there is no file no_module.py"),
        ("no_module:Net", ConfigError, "my_module.py:Net, or a module that can be"),
        ("my_module.py:Wide", ConfigError, "--set model.width=VALUE"),
        ("my_module.py:Broken", ContractError, "line 29: Broken() failed: TypeError"),
        ("my_module.py:a_class", ContractError, "found the class Net"),
        ("my_module.py:Peeking", ContractError, "line 33: if x.sum() > 0:"),
        ("my_module.py:Pair", ContractError, "must return one tensor"),
        ("absent.py:Net", ContractError, "absent.py, line 1: cannot be imported"),
        ("syntax.py:Net", ContractError, "syntax.py, line 2: cannot be imported"),
        ("ends.py:Net", ContractError, "__main__"),
    ],
)
@pytest.mark.parametrize("command", ["run", "compare", "tune"])
def test_what_cannot_be_a_model_is_refused_before_anything_is_written(
    command: str, model: str, kind: type[Exception], words: str, folder: Path
) -> None:
    (folder / "absent.py").write_text("import a_module_that_is_not_here\n")
    (folder / "syntax.py").write_text("x = 1\ndef f(:\n")
    (folder / "ends.py").write_text("raise SystemExit(3)\n")
    before = sorted(folder.iterdir())
    methods = ("--algorithm", "local") if command == "run" else ("local",)
    more = ("--jobs", 1) if command == "compare" else ()
    more += ("--trials", 1) if command == "tune" else ()
    out = "out.toml" if command == "tune" else "out"
    done = fedloom(
        *(command, *methods, *DATA, "--rounds", 1, "--model", model, "--out", out),
        *more,
    )
    assert isinstance(done.exception, kind), done.output
    assert words in str(done.exception)
    kept = [p for p in sorted(folder.iterdir()) if p.name != "__pycache__"]
    assert kept == before


def test_a_setting_that_the_class_does_not_have_is_refused(folder: Path) -> None:
    model = ("--model", "my_module.py:Net", "--set", "model.hiddn=3")
    assert "Did you mean 'hidden'" in refused(*RUN, *model)


def test_a_run_keeps_the_file_and_its_digest_and_goes_on_with_no_other(
    folder: Path,
) -> None:
    done = fedloom(*RUN, "--model", "my_module.py:Net", "--set", "model.hidden=3")
    assert done.exit_code == 0, done.output
    table = read_toml(folder / "r" / "config.toml")["model"]
    assert (table["name"], table["hidden"]) == ("my_module.py:Net", 3)
    assert (folder / "r" / "model_source.py").read_text() == MODULE
    predict = ("predict", "r", "patients.csv", "--client", "a")
    assert fedloom(*predict).exit_code == 0
    (folder / "my_module.py").write_text(MODULE + "\n")
    for command in (("resume", "r"), predict, ("export", "r", "--all", "--out", "e")):
        assert "my_module.py: the file was changed" in refused(*command)
    (folder / "my_module.py").unlink()
    assert "there is no file my_module.py" in refused(*predict)
    copy = ("--model", "r/model_source.py:Net")
    assert fedloom(*predict, *copy).exit_code == 0
    assert fedloom("resume", "r", *copy).exit_code == 0
    assert "is my_module.py:Net" in refused(*predict, "--model", "mlp")


def test_a_built_in_model_is_not_looked_for_elsewhere(folder: Path) -> None:
    assert fedloom(*RUN, "--model", "mlr").exit_code == 0
    assert "built-in" in refused("resume", "r", "--model", "my_module.py:Net")


def test_an_exported_module_is_imported_only_if_that_is_said(folder: Path) -> None:
    assert fedloom(*RUN, "--model", "my_module.py:Net").exit_code == 0
    assert fedloom("export", "r", "--client", "b", "--out", "e").exit_code == 0
    predict = ("predict", "e", "patients.csv")
    assert "--model my_module.py:Net" in refused(*predict)
    own = fedloom(*predict, "--model", "my_module.py:Net")
    assert own.exit_code == 0, own.output
    ran = fedloom("predict", "r", "patients.csv", "--client", "b")
    assert [line.split(",")[0] for line in own.stdout.splitlines()] == [
        line.split(",")[0] for line in ran.stdout.splitlines()
    ]
    card = (folder / "e" / "README.md").read_text()
    assert "from my_module import Net" in card
    assert "model = Net(in_features=2, num_classes=2)" in card
    with pytest.raises(ConfigError, match="imported only if you say so"):
        library.load_model("e")
    assert isinstance(library.load_model("e", "my_module.py:Net"), nn.Module)


COMPARE = (
    *("compare", "local", "fedavg", *DATA, "--model", "my_module.py:Net"),
    *("--rounds", 1, "--seeds", 1, "--out", "c"),
)


def test_a_comparison_records_the_digest_and_goes_on_with_no_other(
    folder: Path,
) -> None:
    done = fedloom(*COMPARE, "--jobs", 1)
    assert done.exit_code == 0, done.output
    assert "digest" in read_toml(folder / "c" / "compare.toml")["model"]
    (folder / "my_module.py").write_text(MODULE + "\n")
    assert "holds another comparison" in refused(*COMPARE, "--jobs", 1)
    assert "the file was changed" in refused("resume", "c")


@pytest.mark.slow
def test_the_processes_of_a_comparison_find_the_file(folder: Path) -> None:
    done = fedloom(*COMPARE, "--jobs", 2)
    assert done.exit_code == 0, done.output


def test_settings_with_a_module_come_back_as_they_were() -> None:
    tables = {"model": {"name": "net.py:Net", "hidden": 3, "digest": "00"}}
    config = parse(tables)
    assert to_tables(config)["model"] == tables["model"]
    assert parse(to_tables(config)) == config


def test_nobody_imports_a_module_because_a_server_says_so(
    folder: Path, tmp_path: Path
) -> None:
    config = parse({"model": {"name": "my_module.py:Net"}})
    with pytest.raises(ConfigError, match="clients import nothing"):
        refuse_what_needs_samples(config, "run.toml")
    _, clients = make_clients(config)
    with pytest.raises(ConfigError, match="imports nothing because a server says so"):
        make_node(config, clients.only([0]), tmp_path / "home")


def test_from_python_a_file_is_named_in_the_same_way(folder: Path) -> None:
    config = parse({"data": {"name": "file", "path": "patients.csv", "client": "site"}})
    _, clients = make_clients(config)
    module = make_module("my_module.py:Net", clients, 0)
    assert module.get_parameter("head.bias").shape == (2,)
