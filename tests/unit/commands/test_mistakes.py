"""Mistakes of a first hour: each gets a message that says what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from driver import fedloom, refused
from torch import nn

import fedloom as library
from fedloom.core.errors import ConfigError, ContractError

ROWS = "site,age,dose,y\n" + "".join(
    f"{'abc'[n % 3]},{20 + n},{n % 7}.5,{'yn'[n % 2]}\n" for n in range(36)
)
DATA = ("--data", "a.csv", "--set", "data.client=site", "--rounds", 1)
RUN = ("run", "--model", "mlr", "--out", "r", *DATA)
COMPARE = ("compare", "local", "--seeds", 1, "--jobs", 1, "--out", "c", *DATA)
TUNE = ("tune", "local", "--trials", 1, "--out", "t.toml", *DATA)


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").write_text(ROWS)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("run", "ditto"), "fedloom run --algorithm ditto"),
        (("run", "a.csv"), "--data a.csv"),
        (("run", "--data", "b.csv"), "no file b.csv"),
        (("run", "--data", "folder/"), "no such file or folder"),
        (("run", "--data", "a.csv"), "--set data.client=site"),
        ((*RUN, "--device", "mps"), "must be auto, cpu or cuda, found 'mps'"),
        ((*RUN, "--device", "gpu"), "must be auto, cpu or cuda, found 'gpu'"),
        ((*COMPARE, "--device", "mps"), "must be auto, cpu or cuda"),
        ((*TUNE, "--device", "mps"), "must be auto, cpu or cuda"),
        ((*RUN, "--set", "lr=0.1"), "Did you mean algorithm.lr?"),
        ((*RUN, "--set", "algoritm.lr=0.1"), "Did you mean 'algorithm'?"),
        ((*RUN, "--set", "data.clients=site"), "Did you mean 'client'?"),
        ((*RUN, "--set", "data.client=sites"), "Did you mean 'site'?"),
        ((*RUN, "--set", "data.drop=age"), 'Write a list: ["age"]'),
        ((*RUN, "--partition", "diri"), "Did you mean 'dirichlet'?"),
        ((*RUN, "--lr", 0.1), "no option --lr; it is a setting: --set algorithm.lr="),
        ((*RUN, "--batch_size=5"), "--set algorithm.batch_size=VALUE"),
        ((*RUN, "--target", "y"), "--set data.target=VALUE"),
        ((*RUN, "--method", "ditto"), "it is called --algorithm here"),
        ((*RUN, "--seeds", 3), "it is called --seed here"),
        ((*COMPARE, "--method", "ditto"), "fedloom compare fedavg ditto"),
        ((*TUNE, "--output-dir", "t"), "it is called --out here"),
        (("compare", "fedavg,ditto"), "Put spaces between methods: fedavg ditto"),
        (("compare", "fedavgg"), "Did you mean 'fedavg'?"),
        (("compare", "ditto", "ditto"), "Name it once"),
        (("tune", "a.csv"), "--data a.csv"),
        (("report", "nowhere"), "no run there"),
        (("export", "a.csv", "--all", "--out", "e"), "holds no run"),
        (("predict", "nowhere", "a.csv", "--client", "a"), "holds no run"),
        (("describe", "dito"), "Did you mean 'ditto'?"),
        (("reproduce", "digit"), "Did you mean 'digits'?"),
        (("leave", "nohome"), "expected the folder of a client"),
    ],
)
def test_a_mistake_is_answered_and_nothing_is_written(
    arguments: tuple[Any, ...], words: str, folder: Path
) -> None:
    assert words in refused(*arguments)
    assert [path.name for path in folder.iterdir()] == ["a.csv"]


@pytest.mark.parametrize("separator", [";", "\t", "|"])
def test_separators_are_told_by_the_first_line(separator: str, folder: Path) -> None:
    (folder / "a.csv").write_text(ROWS.replace(",", separator))
    done = fedloom("data", "a.csv", "--set", "data.client=site")
    assert done.exit_code == 0, done.output
    assert "2 features (age, dose); 3 clients" in done.output


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (ROWS.replace(",", " "), "separated by commas, semicolons, tabs or bars"),
        (ROWS.partition("\n")[2], "does the first line name the columns?"),
        (ROWS + "a,1\n", "a.csv, line 38: expected 4 columns"),
        (ROWS.replace("20,0.5", ",0.5"), "column 'age' has a missing value in line 2"),
        ("", "Empty CSV file"),
    ],
)
def test_a_table_that_is_not_one_says_where(
    text: str, words: str, folder: Path
) -> None:
    (folder / "a.csv").write_text(text)
    assert words in refused(*RUN)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("rounds 3", "run.toml: not valid TOML: Expected '=' after a key"),
        ("rounds = 3\nseed 4", "at line 2"),
        ("[algoritm]\nname='ditto'", "run.toml: unknown section 'algoritm'. Did you"),
        ("[algorithm]\nname='dito'", "run.toml [algorithm]: unknown method 'dito'."),
        ("[algorithm]\nepoch=3", "run.toml [algorithm]: unknown key 'epoch'. Did you"),
        ("epochs=3", "Did you mean algorithm.epochs?"),
        ("rounds='3'", "rounds must be a whole number at least 1, found '3'. Write 3"),
        ("[model]\nname='net.py:Net'", "there is no file net.py"),
    ],
)
def test_a_runs_file_is_corrected_by_file_key_and_nearest_word(
    text: str, words: str, folder: Path
) -> None:
    (folder / "run.toml").write_text(text)
    assert words in refused("run", "run.toml", "--out", "r")


def test_a_run_of_a_comparison_is_found_by_those_who_write_it_otherwise(
    folder: Path,
) -> None:
    run = ("run", "--rounds", 1, *DATA, "--model", "mlr", "--out", "c/fedrep/seed-0")
    assert fedloom(*run, "--algorithm", "fedrep").exit_code == 0
    for path in ("c/fedrep", "c/fedrep/0"):
        message = refused("export", path, "--all", "--out", "e")
        assert "Did you mean c/fedrep/seed-0?" in message
    done = fedloom("export", "c/fedrep/seed-0", "--client", "b", "--out", "e")
    assert done.exit_code == 0, done.output
    assert "Its clients are a, b, c." in refused("predict", "c/fedrep/seed-0", "a.csv")
    unknown = refused("export", "c/fedrep/seed-0", "--client", "d", "--out", "e2")
    assert "Known: a, b, c." in unknown


class Net(nn.Module):
    """Two layers."""

    def __init__(self, in_features: int = 2, num_classes: int = 2) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(in_features, 3), nn.Linear(3, num_classes)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.body(x).relu())


class Peeking(Net):
    """One that looks at values."""

    def forward(self, x: torch.Tensor) -> Any:
        return super().forward(x) * x.mean().item()


@pytest.fixture(scope="module")
def clients() -> library.Federation:
    x = np.random.default_rng(0).normal(size=(36, 2)).astype("float32")
    who = np.repeat(["north", "south", "east"], 12)
    return library.federation(x, (x[:, 0] > 0).astype(int), clients=who)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"engine": library.EngineSettings}, r"Write EngineSettings\(\)"),
        ({"sampling": library.Sampling}, r"Write Sampling\(\)"),
        ({"loss": nn.CrossEntropyLoss}, r"CrossEntropyLoss\(reduction='none'\)"),
        ({"clients": ([1], [2])}, "clients must be a federation, found a tuple"),
        ({"engine": library.EngineSettings(device="mps")}, "use device=cpu"),
    ],
)
def test_a_class_in_the_place_of_an_instance_is_named(
    changed: dict[str, Any], words: str, clients: library.Federation
) -> None:
    given = {"algorithm": "fedavg", "model": Net(), "clients": clients, **changed}
    with pytest.raises(ConfigError, match=words):
        library.run(**given, rounds=1, progress=False)


def test_a_look_at_values_is_found_in_its_line(clients: library.Federation) -> None:
    with pytest.raises(ContractError, match=r"test_mistakes\.py, line \d+: .*item"):
        library.run("fedavg", Peeking(), clients, rounds=1, progress=False)
    loop = library.EngineSettings(runner="loop")
    result = library.run("fedavg", Peeking(), clients, rounds=1, engine=loop)
    assert len(result.scores()) == 3


def test_clients_are_called_by_their_names(clients: library.Federation) -> None:
    result = library.run("fedavg", Net, clients, rounds=1, progress=False)
    with pytest.raises(library.DataError, match="called east, north, south"):
        result.model(7)
    with pytest.raises(library.DataError, match=r"no client 1\.5"):
        result.model(1.5)  # type: ignore[arg-type]
    with pytest.raises(library.DataError, match="Did you mean 'north'"):
        result.predict("nort", np.zeros((1, 2)))


def test_a_run_does_not_go_where_a_comparison_is(folder: Path) -> None:
    (folder / "c").mkdir()
    (folder / "c" / "compare.toml").write_text("seeds = 1\n")
    run = ("run", "--model", "mlr", "--out", "c", *DATA)
    assert "c: holds a comparison, not one run. Choose another --out" in refused(*run)
