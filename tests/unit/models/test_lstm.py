"""The LSTM that can be batched over clients, against PyTorch's own."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

import fedloom
from fedloom.config import parse
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.data.dataset import Dataset
from fedloom.models import LSTM, MODELS, TokenModel

TOKENS, LENGTH = 11, 6


def twin(ours: nn.Module, features: int, hidden: int, layers: int) -> nn.LSTM:
    """PyTorch's LSTM with our weights."""
    theirs = nn.LSTM(features, hidden, layers, batch_first=True).double()
    with torch.no_grad():
        for number, layer in enumerate(ours.layers):
            for name, parameter in layer.named_parameters():
                getattr(theirs, f"{name}_l{number}").copy_(parameter)
    return theirs


def sequences(count: int) -> torch.Tensor:
    """Tokens of different lengths, padded with 0 at the end."""
    draw = np.random.default_rng(3)
    tokens = draw.integers(1, TOKENS, size=(count, LENGTH))
    lengths = 1 + np.arange(count) % LENGTH
    return torch.from_numpy(np.where(np.arange(LENGTH) < lengths[:, None], tokens, 0))


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_numbers_in_steps_give_what_pytorchs_lstm_gives(layers: int) -> None:
    model = LSTM(layers=layers, hidden=5).build((LENGTH, 4), 3).double()
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(7, LENGTH, 4)))
    theirs = twin(model, 4, 5, layers)
    states, _ = theirs(x)
    expected = model.head(states[:, -1])
    torch.testing.assert_close(model(x), expected, rtol=0, atol=1e-12)
    model(x).square().sum().backward()
    expected.square().sum().backward()
    for number, layer in enumerate(model.layers):
        for name, parameter in layer.named_parameters():
            gradient = getattr(theirs, f"{name}_l{number}").grad
            torch.testing.assert_close(parameter.grad, gradient, rtol=0, atol=1e-12)


def test_padding_is_passed_over_as_in_a_packed_sequence() -> None:
    model = LSTM(hidden=5).build_for_tokens(TOKENS, 3).double()
    x = sequences(12)
    lengths = (x != 0).sum(1)
    packed = pack_padded_sequence(
        model.embedding(x), lengths, batch_first=True, enforce_sorted=False
    )
    _, (last, _) = twin(model, 8, 5, 2)(packed)
    torch.testing.assert_close(model(x), model.head(last[-1]), rtol=0, atol=1e-12)


def test_more_padding_changes_nothing_on_either_side() -> None:
    model = LSTM(hidden=5).build_for_tokens(TOKENS, 3).double()
    x = sequences(6)
    more = torch.zeros(6, 2, dtype=torch.int64)
    for longer in (torch.cat([x, more], 1), torch.cat([more, x], 1)):
        torch.testing.assert_close(model(longer), model(x), rtol=0, atol=1e-14)
    nothing = model(torch.zeros(1, LENGTH, dtype=torch.int64))
    torch.testing.assert_close(nothing[0], model.head.bias, rtol=0, atol=1e-15)


def test_it_starts_as_pytorchs_lstm_starts() -> None:
    model = LSTM(hidden=64).build((LENGTH, 4), 3)
    for parameter in model.layers.parameters():
        assert parameter.abs().max() <= 1 / 8
        assert float(parameter.detach().std()) == pytest.approx(
            1 / 8 / np.sqrt(3), rel=0.1
        )


def test_fixed_vectors_are_used_as_they_are_and_never_sent() -> None:
    vectors = torch.from_numpy(np.random.default_rng(5).normal(size=(TOKENS, 4)))
    model = LSTM(hidden=5).build_for_tokens(TOKENS, 3, vectors)
    assert torch.equal(model.embedding.weight, vectors)
    task = Task(model)
    assert not [block for block in task.layout if "embedding" in block.name]
    recurrence = 4 * 5 * (4 + 5 + 2) + 4 * 5 * (5 + 5 + 2)
    assert task.d == recurrence + 5 * 3 + 3
    assert task.head_name == "head"
    vectors.zero_()
    assert not torch.equal(model.embedding.weight, vectors)


@pytest.mark.parametrize("trains", [True, False])
def test_own_embeddings_are_trained_or_stay_as_drawn(trains: bool) -> None:
    model = LSTM(hidden=5, width=3, trains_embedding=trains).build_for_tokens(TOKENS, 2)
    assert model.embedding.weight.shape == (TOKENS, 3)
    names = [block.name for block in Task(model).layout]
    assert ("embedding.weight" in names) is trains


def token_data(vectors: torch.Tensor | None) -> Dataset:
    x = sequences(60)
    return Dataset(
        name="toy tokens",
        inputs=(x,),
        targets=(x.sum(1) % 2),
        classes=2,
        owner=np.arange(60) % 5,
        vectors=vectors,
    )


@pytest.mark.parametrize("has_vectors", [True, False])
@pytest.mark.parametrize("method", ["fedavg", "ditto"])
def test_both_runners_train_the_same_model_on_tokens(
    method: str, has_vectors: bool
) -> None:
    draw = np.random.default_rng(5)
    vectors = torch.from_numpy(draw.normal(size=(TOKENS, 4))) if has_vectors else None
    clients = fedloom.divide(
        token_data(vectors), fedloom.Natural(), fedloom.Split(), seed=0
    )
    dim = 4 if has_vectors else 8
    with seeded(0, "model"):
        model = LSTM(hidden=4, width=dim).build_for_tokens(TOKENS, 2, vectors)
    found = []
    for runner in ("loop", "weave"):
        engine = fedloom.EngineSettings(runner=runner, dtype="float64", compile="off")
        algorithm = fedloom.REGISTRY[method](lr=1.0)
        result = fedloom.run(algorithm, model, clients, rounds=2, engine=engine)
        found.append([result.model(c).state_dict() for c in range(5)])
    for one, other in zip(*found, strict=True):
        for name, value in one.items():
            torch.testing.assert_close(value, other[name], rtol=0, atol=1e-10)
    moved = found[0][0]["layers.0.weight_hh"] - model.layers[0].weight_hh
    assert moved.abs().max() > 1e-5
    if vectors is not None:
        assert torch.equal(found[0][0]["embedding.weight"], vectors)


def test_a_named_lstm_takes_tokens_and_vectors_from_the_data() -> None:
    assert isinstance(MODELS["lstm"](), TokenModel)
    assert not isinstance(MODELS["mlp"](), TokenModel)
    data = token_data(torch.ones(TOKENS, 3))
    clients = fedloom.divide(data, fedloom.Natural(), fedloom.Split(), seed=0)
    result = fedloom.run("fedavg", "lstm", clients, rounds=1)
    assert result.model(0).embedding.weight.shape == (TOKENS, 3)
    assert result.predict(0, data.inputs[0][:2]).shape == (2, 2)


def test_a_model_that_reads_no_tokens_is_refused_for_them() -> None:
    clients = fedloom.divide(
        token_data(None), fedloom.Natural(), fedloom.Split(), seed=0
    )
    with pytest.raises(ConfigError, match=r"MLP: .*toy tokens.*tokens \(lstm"):
        fedloom.run("fedavg", "mlp", clients, rounds=1)


def test_an_lstm_is_refused_for_what_is_no_sequence() -> None:
    with pytest.raises(ConfigError, match=r"lstm: expected tokens.*found shape \(1, 8"):
        LSTM().build((1, 8, 8), 10)
    with pytest.raises(ConfigError, match="hidden must be a whole number at least 1"):
        parse({"model": {"name": "lstm", "hidden": 0}})
