"""From Python: compare, tune and report with a module of one's own."""

from __future__ import annotations

import doctest
import importlib
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom
from fedloom.cli import app
from fedloom.core.errors import ConfigError, ContractError
from fedloom.models.mlp import MLP
from fedloom.reports import write_report
from fedloom.reports.headline import headline


def clients(**settings: Any) -> fedloom.Federation:
    draw = np.random.default_rng(3)
    x = draw.normal(size=(120, 3)).astype("float32")
    owner = np.arange(120) % 4
    sign = np.where(owner % 2, 1.0, -1.0)  # what is right differs between clients
    names = [f"<i>ward {n}</i>" for n in owner]
    return fedloom.federation(x, sign * x[:, 0] > 0, clients=names, **settings)


class Net(nn.Module):
    """A module of one's own."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(3, 6), nn.Tanh(), nn.Linear(6, 2))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layers(x)
        return out


@pytest.fixture(scope="module")
def compared() -> Any:
    return fedloom.compare(
        ["local", "fedavg", fedloom.Ditto], Net, clients(), seeds=3, rounds=3
    )


def test_three_methods_and_an_own_module_are_one_call(compared: Any) -> None:
    assert set(compared.methods) == {"local", "fedavg", "ditto"}
    assert set(compared.scores) == {"local", "fedavg", "ditto"}
    assert set(compared.gains) == {"fedavg", "ditto"}  # local is what gains are over
    assert compared.scores["local"].mean > compared.scores["fedavg"].mean
    assert compared.gains["fedavg"].mean < 0
    assert compared.seeds == (0, 1, 2)
    assert compared.failures == ()
    assert compared.path is None  # nothing was asked to be written
    text = str(compared)
    assert compared.headline in text
    for name in compared.methods:
        assert name in compared.table()
    assert repr(compared).startswith("ComparisonResult(3 methods, 3 seeds: ")


def test_the_answer_is_that_of_the_command_line(compared: Any, tmp_path: Path) -> None:
    saved = compared.save(tmp_path / "saved")
    findings, _ = write_report([saved])
    assert headline(findings) == compared.headline
    assert {s.method: s.last.mean for s in findings.ranking.standings} == {
        method: score.mean for method, score in compared.scores.items()
    }
    with pytest.raises(ConfigError, match="is already there"):
        compared.save(saved)


def test_every_run_of_a_comparison_has_its_models(compared: Any) -> None:
    run = compared.run("ditto", seed=2)
    x = np.zeros((2, 3), dtype="float32")
    assert run.predict("<i>ward 1</i>", x).shape == (2, 2)
    again = run.scores().mean()
    table = compared.to_pandas()
    own = table[(table.method == "ditto") & (table.seed == 2)]
    assert own.accuracy.mean() == pytest.approx(again)
    assert set(own.client) == set(clients().names)
    assert own.is_advised.dtype == bool
    with pytest.raises(ConfigError, match="Did you mean 'ditto'"):
        compared.run("dito")
    with pytest.raises(ConfigError, match="seed must be one of 0, 1, 2"):
        compared.run("ditto", seed=7)


def test_a_report_of_what_was_not_kept_lies_where_one_works(
    compared: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedloom.report(compared) == Path("report.html")
    assert "ditto" in Path("report.html").read_text(encoding="utf-8")
    page = compared.report(tmp_path / "other.md", format_="md")
    assert page.name == "other.md"
    with pytest.raises(ConfigError, match=r"expected what fedloom\.run or"):
        fedloom.report(3)  # type: ignore[arg-type]


def test_a_single_run_has_a_report_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = fedloom.run("fedavg", Net, clients(), rounds=1)
    assert fedloom.report(result).is_file()
    assert result.path is None  # it is still nowhere
    assert result.model(0) is not None
    kept = fedloom.run("fedavg", Net, clients(), rounds=1, out=tmp_path / "run")
    assert fedloom.report(kept) == tmp_path / "run" / "report.html"


def test_methods_are_names_classes_instances_or_titled() -> None:
    for methods in (fedloom.FedAvg, "fedavg", fedloom.FedAvg(epochs=5)):
        result = fedloom.compare(methods, nn.Linear(3, 2), clients(), seeds=1, rounds=1)
        assert result.methods == ("fedavg",)
    titled = {"near": fedloom.Ditto(pull=9.0), "far": fedloom.Ditto, "solo": "local"}
    result = fedloom.compare(titled, "mlr", clients(), seeds=1, rounds=1)
    assert set(result.methods) == {"near", "far", "solo"}


def test_names_alone_do_as_much_work_as_on_the_command_line(compared: Any) -> None:
    run = compared.run("fedavg")
    assert run._plan.tables["algorithm"]["epochs"] == 5


def test_models_are_modules_classes_functions_names_or_settings() -> None:
    federation = clients()
    settings = MLP(hidden=(4,))
    for model in (Net(), Net, lambda: Net(), "mlp", MLP, settings):
        result = fedloom.run("fedavg", model, federation, rounds=1)
        assert isinstance(result.model(0), nn.Module)
    assert (
        len(
            list(
                fedloom.run("fedavg", settings, federation, rounds=1)
                .model(0)
                .state_dict()
            )
        )
        > 0
    )


@pytest.mark.parametrize(
    ("model", "said"),
    [
        (
            nn.Linear,
            r"found Linear, which has a missing a required argument.*lambda: Lin",
        ),
        (3, "found 3"),
        (lambda: 3, "made a int"),
        ("mlpp", "Did you mean 'mlp'"),
    ],
    ids=["arguments", "number", "makes", "name"],
)
def test_what_is_no_model_is_said_to_be_none(model: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        fedloom.run("fedavg", model, clients(), rounds=1)


def test_what_is_no_federation_and_no_method_is_said_to_be_none() -> None:
    for call in (fedloom.run, fedloom.compare, fedloom.tune):
        with pytest.raises(ConfigError, match=r"clients must be a federation.*a list"):
            call("fedavg", Net, [1, 2])  # type: ignore[operator]
    with pytest.raises(ConfigError, match="run: a method is its name, or an instance"):
        fedloom.run(3, Net, clients())  # type: ignore[arg-type]
    result = fedloom.run(fedloom.FedAvg, Net, clients(), rounds=1)
    assert "fedavg" in repr(result)


class Deciding(nn.Module):
    """Its forward decides by values."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.layer(x)
        return out if x.sum() > 0 else -out


def test_a_model_that_decides_by_values_is_told_how_to_choose() -> None:
    federation = clients()
    for call in (fedloom.run, fedloom.compare):
        with pytest.raises(
            ContractError, match=r"torch\.where.*runner='loop'"
        ) as error:
            call("fedavg", Deciding, federation, rounds=1)  # type: ignore[operator]
        assert "vmap" not in str(error.value)
    engine = fedloom.EngineSettings(runner="loop")
    result = fedloom.run("fedavg", Deciding, federation, rounds=1, engine=engine)
    assert np.isfinite(result.scores()).all()  # as the message says


@pytest.mark.parametrize("device", ["mps", "xla"])
def test_a_device_that_is_not_supported_is_named(device: str, tmp_path: Path) -> None:
    engine = fedloom.EngineSettings(device=device)
    with pytest.raises(ConfigError, match=rf"found '{device}'.*use device=cpu"):
        fedloom.run("fedavg", Net, clients(), rounds=1, engine=engine)


def test_the_command_line_names_such_a_device_too(tmp_path: Path) -> None:
    arguments = ["run", "--set", "engine.device=mps", "--out", str(tmp_path / "x")]
    with pytest.raises(ConfigError, match="use device=cpu"):
        app(arguments, standalone_mode=False)


def test_a_comparison_with_a_directory_goes_on(tmp_path: Path) -> None:
    told: list[str] = []
    for _ in range(2):
        result = fedloom.compare(
            ["fedavg", "local"],
            Net,
            clients(),
            seeds=1,
            rounds=1,
            out=tmp_path / "c",
            tell=told.append,
        )
        assert result.path == tmp_path / "c"
    assert len([line for line in told if line.startswith("fedavg:")]) == 1
    assert result.report() == tmp_path / "c" / "report.html"


def test_tuned_methods_are_what_compare_takes() -> None:
    pytest.importorskip("optuna")
    federation = clients(validation=0.25)
    tuned = fedloom.tune(
        ["fedavg", fedloom.Ditto(lr=0.1)], Net, federation, trials=2, rounds=2
    )
    assert set(tuned.methods) == {"fedavg", "ditto"}
    assert tuned.methods["ditto"].lr == 0.1  # it was set, so it stays
    assert tuned.methods["fedavg"].lr == tuned.settings["fedavg"]["lr"]
    assert repr(tuned) == "TuningResult(2 methods)"
    for shown in (str(tuned), tuned._repr_html_()):
        assert "best settings" in shown
        assert "pull = " in shown
    result = fedloom.compare(tuned.methods, Net, federation, seeds=1, rounds=2)
    assert set(result.methods) == {"fedavg", "ditto"}


def test_classes_can_be_tuned_and_get_the_work_that_names_get() -> None:
    pytest.importorskip("optuna")
    federation = clients(validation=0.25)
    (tuned,) = fedloom.tune(fedloom.FedAvg, "mlr", federation, trials=1, rounds=1)
    assert tuned.algorithm.epochs == 5
    (tuned,) = fedloom.tune(
        [fedloom.FedAvg], "mlr", federation, trials=1, rounds=1, epochs=2
    )
    assert tuned.algorithm.epochs == 2


class Notebook:
    """A kernel, as far as outputs go: what each cell shows, in its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.outputs: list[dict[str, str]] = []
        self.updates = 0
        module: Any = types.ModuleType("IPython")
        module.get_ipython = lambda: types.SimpleNamespace(kernel=object())
        module.display = types.ModuleType("IPython.display")
        module.display.display = self._display
        monkeypatch.setitem(sys.modules, "IPython", module)
        monkeypatch.setitem(sys.modules, "IPython.display", module.display)

    def _display(self, bundle: dict[str, str], raw: bool, display_id: bool) -> Any:
        assert raw
        assert display_id
        place = len(self.outputs)
        self.outputs.append(bundle)

        def update(bundle: dict[str, str], raw: bool) -> None:
            assert raw
            self.updates += 1
            self.outputs[place] = bundle

        return types.SimpleNamespace(update=update)

    def show(self, value: Any) -> str:
        """What a notebook does with the last value of a cell."""
        html: str = value._repr_html_()
        return html


def test_a_notebook_from_data_to_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notebook = Notebook(monkeypatch)
    federation = clients()
    assert f"<td>{federation.sizes.sum()}</td>" in notebook.show(federation)
    result = fedloom.run("ditto", Net, federation, rounds=30)
    assert len(notebook.outputs) == 1  # one line, however many rounds
    last = notebook.outputs[0]
    assert last["text/plain"].startswith("ditto  round 30/30")
    assert "<progress" not in last["text/html"]  # it is over
    assert "<td>personal</td>" in notebook.show(result)
    compared = fedloom.compare(["local", "fedavg"], Net, federation, seeds=2, rounds=3)
    assert len(notebook.outputs) == 2
    assert notebook.outputs[1]["text/plain"].startswith("3/3 done  100%")
    shown = notebook.show(compared)
    assert "<td>fedavg</td>" in shown
    assert "<i>" not in shown
    fedloom.run("ditto", Net, federation, rounds=2, progress=False)
    assert len(notebook.outputs) == 2
    assert notebook.updates < 60
    assert capsys.readouterr() == ("", "")


def test_a_script_prints_nothing_by_itself(capsys: pytest.CaptureFixture[str]) -> None:
    fedloom.run("fedavg", Net, clients(), rounds=2)
    fedloom.compare("fedavg", Net, clients(), seeds=1, rounds=1)
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    "name",
    [
        "fedloom.clients.federation",
        "fedloom.comparison.python",
        "fedloom.core.reprs",
        "fedloom.reports.files",
        "fedloom.runs",
        "fedloom.tuning.search",
    ],
)
def test_examples_in_docstrings_run(name: str) -> None:
    module = importlib.import_module(name)
    finder = doctest.DocTestFinder()
    tests = [test for test in finder.find(module) if test.examples]
    assert tests
    runner = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS)
    for test in tests:
        runner.run(test)
    assert runner.summarize().failed == 0


def test_the_same_seed_gives_the_same_answer() -> None:
    first, second = (
        fedloom.compare("fedavg", Net, clients(), seeds=1, rounds=1) for _ in range(2)
    )
    assert first.scores == second.scores
    weights = [
        result.run("fedavg").model(0).layers[0].weight for result in (first, second)
    ]
    assert torch.equal(*weights)


def test_a_name_in_other_letters_is_recognised() -> None:
    with pytest.raises(AttributeError, match="Did you mean 'FedAvg'"):
        _ = fedloom.Fedavg  # type: ignore[attr-defined]
    assert not hasattr(fedloom, "nothing_like_it")
