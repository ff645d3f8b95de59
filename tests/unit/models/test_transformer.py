"""The small transformer for tokens and for steps of numbers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.core.streams import seeded
from fedloom.core.task import Task
from fedloom.models import TokenModel, Transformer
from fedloom.models.transformer import Block, places

TOKENS, LENGTH = 11, 6
SMALL = Transformer(layers=1, width=4, heads=2, hidden=5)


def sequences(count: int) -> torch.Tensor:
    """Tokens of different lengths, padded with 0 at the end."""
    draw = np.random.default_rng(3)
    tokens = draw.integers(1, TOKENS, size=(count, LENGTH))
    lengths = 1 + np.arange(count) % LENGTH
    return torch.from_numpy(np.where(np.arange(LENGTH) < lengths[:, None], tokens, 0))


def clients() -> fedloom.Federation:
    x = sequences(40).numpy()
    return fedloom.federation(x, x.sum(1) % 2, clients=np.arange(40) % 4)


def test_a_block_is_pytorchs_layer_with_norms_first() -> None:
    block = Block(8, 2, 12, 0.0).double()
    theirs = nn.TransformerEncoderLayer(
        8, 2, 12, 0.0, activation="gelu", batch_first=True, norm_first=True
    ).double()
    pairs = {
        "self_attn.in_proj_": "query_key_value.",
        "self_attn.out_proj.": "mix.",
        "linear1.": "layers.0.",
        "linear2.": "layers.2.",
        "norm1.": "norm_before_attention.",
        "norm2.": "norm_before_layers.",
    }
    own = block.state_dict()
    state = {
        there + part: own[here + part]
        for there, here in pairs.items()
        for part in ("weight", "bias")
    }
    theirs.load_state_dict(state)
    x = torch.from_numpy(np.random.default_rng(0).normal(size=(3, LENGTH, 8)))
    is_real = torch.arange(LENGTH).expand(3, LENGTH) < 4
    expected = theirs(x, src_key_padding_mask=~is_real)
    made = block(x, is_real[:, None, None, :])
    torch.testing.assert_close(made, expected, rtol=0, atol=1e-12)


def test_places_are_sines_and_cosines_of_their_number() -> None:
    found = places(torch.tensor([0, 3]), 4)
    expected = [math.sin(3), math.sin(0.03), math.cos(3), math.cos(0.03)]
    torch.testing.assert_close(found, torch.tensor([[0.0, 0, 1, 1], expected]))
    assert places(torch.tensor([1]), 5).shape == (1, 5)


def test_more_padding_changes_nothing_on_either_side() -> None:
    model = SMALL.build_for_tokens(TOKENS, 3).double()
    x = sequences(6)
    more = torch.zeros(6, 2, dtype=torch.int64)
    for longer in (torch.cat([x, more], 1), torch.cat([more, x], 1)):
        torch.testing.assert_close(model(longer), model(x), rtol=0, atol=1e-12)


def test_nothing_but_padding_is_the_heads_bias_and_has_a_gradient() -> None:
    model = SMALL.build_for_tokens(TOKENS, 3).double()
    said = model(torch.zeros(1, LENGTH, dtype=torch.int64))
    torch.testing.assert_close(said[0], model.head.bias, rtol=0, atol=1e-15)
    said.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert gradients
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


def test_the_order_of_a_sequence_matters() -> None:
    model = SMALL.build((LENGTH, 3), 2)
    x = torch.linspace(-1, 1, 3 * LENGTH).sin().reshape(1, LENGTH, 3)
    assert not torch.allclose(model(x), model(x.flip(1)), atol=1e-4)


def test_fixed_vectors_are_used_as_they_are_and_never_sent() -> None:
    assert isinstance(SMALL, TokenModel)
    vectors = torch.from_numpy(np.random.default_rng(5).normal(size=(TOKENS, 7)))
    model = SMALL.build_for_tokens(TOKENS, 3, vectors.float())
    assert torch.equal(model.embedding.weight, vectors.float())
    assert "embedding.weight" not in [block.name for block in Task(model).layout]
    assert model(sequences(4)).shape == (4, 3)
    frozen = Transformer(trains_embedding=False).build_for_tokens(TOKENS, 2)
    assert not frozen.embedding.weight.requires_grad


def test_settings_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="heads must divide width, found 3 and 64"):
        Transformer(heads=3)
    with pytest.raises(ConfigError, match=r"transformer: expected .*shape \(1, 8, 8\)"):
        Transformer().build((1, 8, 8), 10)


GROUPS = (
    *("local", "fedavg", "scaffold", "ditto", "fedper", "fedbn", "fedamp"),
    *("per-fedavg", "pfedvem", "ifca", "pfedmt", "self-fl", "pfedhn"),
)
"""Methods of every group: of one vector, of heads, of norms, of draws, of teams."""


@pytest.mark.parametrize("method", GROUPS)
def test_both_runners_train_it_alike_by_methods_of_every_kind(method: str) -> None:
    with seeded(0, "model"):
        model = SMALL.build_for_tokens(TOKENS, 2)
    found = []
    for runner in ("loop", "weave"):
        engine = fedloom.EngineSettings(runner=runner, compile="off", dtype="float64")
        algorithm = fedloom.REGISTRY[method](batch_size=20)
        result = fedloom.run(algorithm, model, clients(), rounds=1, engine=engine)
        found.append(result.model(1).parameters())
    moved = 0.0
    for one, other, start in zip(*found, model.parameters(), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        moved = max(moved, float((one - start).detach().abs().max()))
    assert moved > 1e-6


@pytest.mark.parametrize("name", ["transformer", "cnn1d"])
def test_by_name_they_are_exported_predict_and_are_personalized(
    name: str, tmp_path: Path
) -> None:
    tokens, draw = sequences(40).numpy(), np.random.default_rng(0)
    x = tokens if name == "transformer" else draw.normal(size=(40, 9)).astype("float32")
    labels = tokens.sum(1) % 2
    some = fedloom.federation(x[:30], labels[:30], clients=np.arange(30) % 3)
    result = fedloom.run(fedloom.Ditto(epochs=1), name, some, rounds=1)
    folder = result.export(tmp_path / "one", clients=1)
    new = torch.from_numpy(x[30:])
    module = result.model(0)
    module.load_state_dict(load_file(folder / "model.safetensors"))
    said = module(new).softmax(1).detach()
    torch.testing.assert_close(said, result.predict(1, new).cpu(), rtol=0, atol=1e-5)
    newcomer = result.personalize(x[30:], labels[30:])
    assert newcomer.predict(new).shape == (10, 2)


@pytest.mark.slow
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_compiled_it_is_the_same_model(dropout: float) -> None:
    with seeded(0, "model"):
        model = Transformer(
            layers=1, width=4, heads=2, hidden=5, dropout=dropout
        ).build_for_tokens(TOKENS, 2)
    found = []
    for compile_ in ("off", "on"):
        engine = fedloom.EngineSettings(runner="weave", compile=compile_)
        result = fedloom.run("ditto", model, clients(), rounds=1, engine=engine)
        found.append(result.model(1).parameters())
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
