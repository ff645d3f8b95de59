"""Arguments that people guess are answered."""

import inspect

import pytest

import fedloom
from fedloom.core.arguments import _MEANT, _OTHER_NAMES, guessed
from fedloom.core.errors import ConfigError


@pytest.mark.parametrize(
    ("function", "name", "value", "answer"),
    [
        ("run", "compile", True, r"engine=fedloom\.EngineSettings\(compile=True\)"),
        ("run", "device", "cuda", r"EngineSettings\(device='cuda'\)"),
        ("run", "epochs", 5, r"setting of a method: fedloom\.FedAvg\(epochs=5\)"),
        ("compare", "epochs", 5, r"fedloom\.FedAvg\(epochs=5\)"),
        ("tune", "lr", 0.1, r"fedloom\.FedAvg\(lr=0\.1\)"),
        ("tune", "device", "cpu", r"settings=\{'engine': \{'device': 'cpu'\}\}"),
        ("tune", "fraction", 0.1, r"settings=\{'sampling': \{'rate': 0\.1\}\}"),
        ("run", "num_rounds", 3, "it is called 'rounds' here"),
        ("run", "seeds", 3, "it is called 'seed' here"),
        ("compare", "seed", 3, "it is called 'seeds' here"),
        ("tune", "n_trials", 3, "it is called 'trials' here"),
        ("compare", "verbose", False, "it is called 'progress' here"),
        ("run", "fraction", 0.1, r"sampling=fedloom\.Sampling\(rate=0\.1\)"),
        ("run", "partition", "iid", r"fedloom\.federation\(\.\.\., partition="),
        ("run", "evaluate_evry", 2, "Did you mean 'evaluate_every'"),
    ],
)
def test_a_guess_is_told_what_to_write(function, name, value, answer):
    with pytest.raises(ConfigError, match=answer) as error:
        getattr(fedloom, function)("fedavg", "mlr", None, **{name: value})
    assert str(error.value).startswith(f"{function}: ")


def test_an_argument_that_is_there_is_not_a_guess():
    with pytest.raises(ConfigError, match="lr must be 'auto' or left out"):
        fedloom.run("fedavg", "mlr", clients(), lr=0.1)


def clients():
    return fedloom.federation([[0.0], [1.0]] * 4, [0, 1] * 4, clients=[0] * 8)


def test_functions_that_answer_keep_their_signatures():
    @guessed
    def train(rounds: int = 3) -> int:
        """Train."""
        return rounds

    assert train(rounds=4) == 4
    assert train.__doc__ == "Train."
    assert list(inspect.signature(train).parameters) == ["rounds"]
    assert "out" in inspect.signature(fedloom.compare).parameters


def test_what_is_said_instead_exists():
    settings = fedloom.EngineSettings.__dataclass_fields__
    local = fedloom.FedAvg.__dataclass_fields__
    parts = inspect.signature(fedloom.federation).parameters
    for name, text in _MEANT.items():
        if "EngineSettings({name}" in text:
            assert name in settings
        elif "FedAvg({name}" in text:
            assert name in local
        elif "federation(..., {name}" in text:
            assert name in parts
    functions = (fedloom.run, fedloom.compare, fedloom.tune)
    known = {n for f in functions for n in inspect.signature(f).parameters}
    assert {name for names in _OTHER_NAMES.values() for name in names} <= known
