"""Models as files: whole, documented, and the same ones that were scored."""

from __future__ import annotations

import csv
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

import fedloom
from fedloom.config import parse, read_toml
from fedloom.runs import Result, load, run_config

QUICK: dict[str, Any] = {
    "rounds": 2,
    "algorithm": {"name": "ditto", "batch_size": 50, "pull": 0.5},
    "partition": {"name": "label-skew", "clients": 4, "classes": 5},
    "split": {"validation": 0.2},
    "model": {"name": "mlp", "hidden": [8]},
    "engine": {"compile": "off", "device": "cpu"},
}


class Own(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(3, 4)
        self.head = nn.Linear(4, 2)
        self.register_buffer("centre", torch.ones(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(torch.relu(self.body(x - self.centre)))
        return out


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> Result:
    out = tmp_path_factory.mktemp("export") / "run"
    found = run_config(parse(QUICK), out=out)
    found.gain()
    return found


def card_code(folder: Path) -> str:
    return (folder / "README.md").read_text().split("```python\n")[1].split("```")[0]


def run_card(folder: Path, x: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> Any:
    """The card's lines as they stand, with inputs in the place of its zeros."""
    code, found = re.subn(
        r"x = torch\.zeros\(.*\)  # your input", "x = given", card_code(folder)
    )
    assert found == 1
    monkeypatch.chdir(folder)
    space: dict[str, Any] = {"given": x, "Own": Own}
    exec(code, space)
    return space


def test_the_lines_of_the_card_give_the_predictions_of_the_run(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = result.export(tmp_path / "e", clients=[2])
    x = result.federation.dataset.inputs[0][:9]
    said = run_card(folder, x, monkeypatch)["probabilities"]
    assert torch.allclose(said, result.predict(2, x), atol=1e-6)


def test_the_state_dict_has_the_modules_own_names_and_exact_values(
    result: Result, tmp_path: Path
) -> None:
    folder = result.export(tmp_path / "e", clients=["2"])
    expected = result.model(2).state_dict()
    found = load_file(folder / "model.safetensors")
    assert (
        found.keys()
        == expected.keys()
        == {
            "body.0.weight",
            "body.0.bias",
            "head.weight",
            "head.bias",
        }
    )
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    with safe_open(folder / "model.safetensors", "pt") as file:
        assert file.metadata()["format"] == "pt"


def test_a_folder_alone_rebuilds_the_module(result: Result, tmp_path: Path) -> None:
    folder = result.export(tmp_path / "e", clients=[1])
    module = fedloom.load_model(folder)
    x = torch.rand(5, 1, 8, 8)
    assert torch.equal(module(x), result.model(1)(x))
    tables = read_toml(folder / "model.toml")
    assert tables["input"] == {
        "shape": [1, 8, 8],
        "types": ["uint8"],
        "shift": 0.0,
        "scale": 16.0,
    }
    assert tables["output"] == {"outputs": 10, "task": "classification"}
    assert tables["run"]["split"] == result.federation.hash


def test_the_card_says_what_somebody_needs_a_year_later(
    result: Result, tmp_path: Path
) -> None:
    text = (result.export(tmp_path / "e", clients=[3]) / "README.md").read_text()
    gain = result.gain()
    for words in (
        "# The model of client 3",
        "arXiv:2012.04221",
        "| `pull` | 0.5 | Strength of the pull",
        result.federation.hash,
        "Licence of the data: CC BY 4.0",
        f"its training samples: {result.federation.sizes[3]}",
        "shift 0 and scale 16",
        f"{gain.gain[3]:+.4f} ({gain.together[3]:.4f} instead of {gain.alone[3]:.4f})",
        f"| torch | {torch.__version__} |",
        "may remember its client's training data",
    ):
        assert words in text
    for part in ("validation", "test"):
        score = result.scores("personal", part)[3]
        assert re.search(rf"\| personal \| {part} \| \d+ \| {score:.4f} \|", text)


def test_names_out_of_data_are_no_markup_on_a_card(tmp_path: Path) -> None:
    evil = "ann\n# <img src=x>|[l](http://e)"
    x = np.random.default_rng(0).normal(size=(12, 2)).astype("float32")
    owners = np.array([evil, "bob"]).repeat(6)
    clients = fedloom.federation(x, [0, 1] * 6, clients=owners)
    run = fedloom.run("local", "mlr", clients, rounds=1)
    text = (run.export(tmp_path / "e", clients=[0]) / "README.md").read_text()
    shown = "ann \\# &lt;img src=x&gt;\\|\\[l\\](http://e)"
    assert f"# The model of client {shown}\n" in text
    assert f"This client: {shown}; its" in text
    assert "<img" not in text


def test_all_clients_and_the_shared_model_get_a_folder_each(
    result: Result, tmp_path: Path
) -> None:
    out = result.export(tmp_path / "e", clients=range(4), shared=True)
    with (out / "models.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["folder"] for row in rows] == [
        "shared",
        *(f"client-{n}" for n in range(4)),
    ]
    shared = result.shared_model()
    assert shared is not None
    for row, module in zip(rows, [shared, *map(result.model, range(4))], strict=True):
        found = load_file(out / row["folder"] / "model.safetensors")
        assert torch.equal(found["head.weight"], module.state_dict()["head.weight"])
    assert [float(row["test"]) for row in rows[1:]] == result.scores().tolist()
    assert float(rows[0]["test"]) == pytest.approx(result.scores("shared").mean())
    assert "mean over clients" in (out / "shared" / "README.md").read_text()


def test_what_is_there_is_replaced_only_when_asked(
    result: Result, tmp_path: Path
) -> None:
    out = tmp_path / "e"
    result.export(out, clients=[0, 1])
    before = (out / "models.csv").read_bytes()
    with pytest.raises(fedloom.ConfigError, match="already holds exported models"):
        result.export(out, clients=[2])
    assert (out / "models.csv").read_bytes() == before
    result.export(out, clients=[2], fresh=True)
    assert sorted(p.name for p in out.iterdir()) == [
        "README.md",
        "export.json",
        "model.safetensors",
        "model.toml",
    ]
    assert sorted(p.name for p in tmp_path.iterdir()) == ["e"]


@pytest.mark.parametrize("fresh", [False, True])
def test_a_folder_with_anything_else_in_it_is_not_touched(
    result: Result, tmp_path: Path, fresh: bool
) -> None:
    out = result.export(tmp_path / "e", clients=[0])
    (out / "thesis.tex").write_text("precious")
    before = sorted(p.name for p in out.iterdir())
    with pytest.raises(fedloom.ConfigError, match=r"thesis\.tex"):
        result.export(out, clients=[1], fresh=fresh)
    assert sorted(p.name for p in out.iterdir()) == before
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "README.md").write_text("of somebody else")
    with pytest.raises(fedloom.ConfigError, match="holds something else"):
        result.export(tmp_path / "other", clients=[1], fresh=fresh)


def test_an_export_that_fails_leaves_nothing_behind(
    result: Result, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedloom.export.folders.save_file", full)
    with pytest.raises(fedloom.DataError, match="No space left"):
        result.export(tmp_path / "e", clients=[0])
    assert list(tmp_path.iterdir()) == []


def test_a_shared_model_that_does_not_exist_cannot_be_exported(tmp_path: Path) -> None:
    local = run_config(parse({**QUICK, "rounds": 1, "algorithm": {"name": "local"}}))
    with pytest.raises(fedloom.DataError, match="local has no shared model"):
        local.export(tmp_path / "e", shared=True)
    assert not (tmp_path / "e").exists()


def test_own_models_names_and_numbers_come_through(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(40, 3)).astype("float32")
    y = np.where(x[:, 0] > 0, "well", "ill")
    ward = np.array(["north/1", "..", "south"])[np.arange(40) % 3]
    clients = fedloom.federation(x, y, clients=ward)
    engine = fedloom.EngineSettings(dtype="float64", device="cpu")
    trained = fedloom.run("fedavg", Own, clients, rounds=1, engine=engine)
    out = trained.export(tmp_path / "all")
    assert sorted(p.name for p in out.iterdir()) == [
        "client-0",
        "client-1-north-1",
        "client-2-south",
        "export.json",
        "models.csv",
    ]
    folder = trained.export(tmp_path / "one", clients=["south"])
    assert "well" in (folder / "README.md").read_text()
    assert read_toml(folder / "model.toml")["output"]["classes"] == ["ill", "well"]
    assert "centre" in load_file(folder / "model.safetensors")
    inputs = torch.from_numpy(x[:4])
    said = run_card(folder, inputs, monkeypatch)["probabilities"]
    assert said.dtype == torch.float64
    assert torch.allclose(said, trained.predict("south", inputs), atol=1e-12)
    with pytest.raises(fedloom.ConfigError, match="Own, a class of its maker's own"):
        fedloom.load_model(folder)


def test_channels_are_scaled_by_the_lines_of_the_card(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedloom.data.dataset import from_arrays

    draw = np.random.default_rng(1)
    pictures = draw.integers(0, 256, size=(30, 2, 4, 4)).astype(np.uint8)
    data = from_arrays(
        pictures,
        draw.integers(0, 2, 30),
        shift=(10.0, 100.0),
        scale=(50.0, 70.0),
    )
    clients = fedloom.divide(data, fedloom.Iid(clients=2), fedloom.Split(), seed=0)
    trained = fedloom.run("fedavg", "mlr", clients, rounds=1)
    folder = trained.export(tmp_path / "e", clients=[0])
    monkeypatch.setitem(globals(), "LogisticRegression", type(trained.model(0)))
    code = card_code(folder).replace("= LogisticRegression()", "= module")
    code = re.sub(r"x = torch\.zeros\(.*\)  # your input", "x = given", code)
    x = data.inputs[0][:5]
    space: dict[str, Any] = {"given": x, "module": trained.model(0)}
    monkeypatch.chdir(folder)
    exec(code, space)
    assert torch.allclose(space["probabilities"], trained.predict(0, x), atol=1e-6)


def test_a_method_with_a_posterior_says_that_this_is_its_mean(tmp_path: Path) -> None:
    method = {"name": "pfedvem", "epochs": 1, "passes": 1}
    trained = run_config(parse({**QUICK, "rounds": 1, "algorithm": method}))
    text = (trained.export(tmp_path / "e", clients=[0]) / "README.md").read_text()
    assert "this is its mean" in text
    assert "| averaged | test |" in text


def test_a_loaded_run_exports_the_same_model(result: Result, tmp_path: Path) -> None:
    assert result.path is not None
    mine = result.export(tmp_path / "a", clients=[1])
    theirs = load(result.path).export(tmp_path / "b", clients=[1])
    for name in ("model.safetensors", "model.toml", "README.md"):
        assert (mine / name).read_bytes() == (theirs / name).read_bytes()


def test_broken_folders_are_named(result: Result, tmp_path: Path) -> None:
    with pytest.raises(fedloom.DataError, match="holds no exported model"):
        fedloom.load_model(tmp_path)
    folder = result.export(tmp_path / "e", clients=[1])
    (folder / "export.json").unlink()  # which tells of every change
    text = (folder / "model.toml").read_text()
    other = re.sub(r"hidden = \[\s*8,", "hidden = [9,", text)
    (folder / "model.toml").write_text(other)
    with pytest.raises(fedloom.MessageError, match=r"does not fit model\.toml"):
        fedloom.load_model(folder)
    (folder / "model.toml").write_text(text.replace("fedloom-model-1", "other"))
    with pytest.raises(fedloom.MessageError, match="format is 'other'"):
        fedloom.load_model(folder)


@pytest.mark.parametrize("clients", [[1], [0, 1]], ids=["one", "several"])
@pytest.mark.parametrize("name", ["model.safetensors", "model.toml"])
def test_a_flipped_bit_of_an_exported_model_is_named(
    name: str, clients: list[int], result: Result, tmp_path: Path
) -> None:
    out = result.export(tmp_path / "e", clients=clients)
    folder = out if len(clients) == 1 else next(out.glob("client-1*"))
    fedloom.load_model(folder)
    content = bytearray((folder / name).read_bytes())
    content[-2] ^= 1
    (folder / name).write_bytes(content)
    with pytest.raises(fedloom.MessageError, match=rf"{name}: was damaged or changed"):
        fedloom.load_model(folder)
    if out == folder:
        (out / "export.json").write_text("{}")
        with pytest.raises(fedloom.MessageError, match=r"export\.json: not a list"):
            fedloom.load_model(folder)


def test_a_regression_is_exported_in_its_own_units(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    draw = np.random.default_rng(1)
    x = draw.normal(size=(60, 2))
    np.savez(tmp_path / "d.npz", x=x, y=x @ [30, 5] + 700, who=np.arange(60) % 2)
    data = {
        "name": "file",
        "path": str(tmp_path / "d.npz"),
        "client": "who",
        "standardise": True,
    }
    trained = run_config(parse(QUICK | {"data": data, "partition": {}}))
    folder = trained.export(tmp_path / "e", clients=[1])
    new = torch.from_numpy(x[:5])
    said = trained.predict(1, new)
    assert said.mean() == pytest.approx(700, abs=60)
    loaded = fedloom.load_model(folder)(*trained.prepare(new))
    assert torch.allclose(loaded, said, rtol=1e-5)
    assert torch.allclose(
        run_card(folder, new, monkeypatch)["numbers"], said, rtol=1e-5
    )
    assert "own units" in (folder / "README.md").read_text()
    tables = (folder / "model.toml").read_text()
    head, _, output = tables.partition("[output]")
    other = re.sub(r"scale = [^\n]*", "scale = [1.0, 2.0]", output, count=1)
    assert other != output
    (folder / "model.toml").write_text(f"{head}[output]{other}")
    with pytest.raises(fedloom.MessageError, match="damaged or changed"):
        fedloom.load_model(folder)
    (folder / "export.json").unlink()
    with pytest.raises(fedloom.MessageError, match="one for each of the 1 outputs"):
        fedloom.load_model(folder)
