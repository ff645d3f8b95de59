"""Attention of users' own modules: batched, and drawn from each client's stream."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.backends import mha

import fedloom
from fedloom.core.attention import KeyedAttention, batched_attention
from fedloom.core.errors import ContractError
from fedloom.core.modules import key_dropouts

STEPS, FEATURES, CLASSES = 5, 6, 3


class Encoder(nn.Module):
    """PyTorch's own layers, as anybody writes them, dropout included."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(FEATURES, 2, 8, batch_first=True)
        self.body = nn.TransformerEncoder(layer, 2)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        padding = torch.arange(STEPS).expand(len(x), STEPS) > 3
        body: Tensor = self.body(x, src_key_padding_mask=padding)
        out: Tensor = self.head(body[:, :4].mean(1))
        return out


class Heads(nn.Module):
    """One layer that is asked for nothing but the result."""

    def __init__(self) -> None:
        super().__init__()
        self.heads = nn.MultiheadAttention(FEATURES, 2)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        turned = x.transpose(0, 1)
        mixed, _ = self.heads(turned, turned, turned, need_weights=False)
        out: Tensor = self.head(mixed.mean(0))
        return out


class Function(nn.Module):
    """The function itself, causal."""

    def __init__(self) -> None:
        super().__init__()
        self.into = nn.Linear(FEATURES, 3 * FEATURES)
        self.head = nn.Linear(FEATURES, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        parts = self.into(x).unflatten(-1, (3, 2, FEATURES // 2)).unbind(-3)
        turned = [part.transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*turned, is_causal=True)
        out: Tensor = self.head(mixed.transpose(1, 2).flatten(2).mean(1))
        return out


def clients() -> fedloom.Federation:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(60, STEPS, FEATURES))
    y = (x[:, 0, 0] > 0).astype(np.int64) + (x[:, 1, 1] > 0)
    return fedloom.federation(x, y, clients=np.arange(60) % 4)


@pytest.mark.parametrize("kind", [Encoder, Heads, Function])
@pytest.mark.parametrize("method", ["ditto", "pfedvem"])
def test_both_runners_train_attention_alike_and_without_a_warning(
    kind: Callable[[], nn.Module], method: str
) -> None:
    with torch.random.fork_rng():
        model = kind()
    found = []
    for runner in ("loop", "weave"):
        engine = fedloom.EngineSettings(runner=runner, compile="off", dtype="float64")
        result = fedloom.run(method, model, clients(), rounds=2, engine=engine)
        scores = torch.from_numpy(result.scores())
        found.append([*result.model(1).parameters(), scores])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
    moved = found[0][0] - next(model.parameters())
    assert moved.abs().max() > 1e-4


def test_settings_of_pytorch_are_as_they_were_afterwards() -> None:
    before = mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()

    def fail() -> None:
        assert not mha.get_fastpath_enabled()
        assert not torch.backends.cuda.flash_sdp_enabled()
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError), batched_attention():
        fail()
    after = mha.get_fastpath_enabled(), torch.backends.cuda.flash_sdp_enabled()
    assert after == before


def keyed(p: float, **options: object) -> tuple[nn.MultiheadAttention, KeyedAttention]:
    """A layer of PyTorch's without dropout, and the same with keyed dropout."""
    part = nn.MultiheadAttention(8, 2, dropout=p, **options).double()  # type: ignore[arg-type]
    twin = nn.MultiheadAttention(8, 2, **options).double()  # type: ignore[arg-type]
    twin.load_state_dict(part.state_dict())
    holder = nn.ModuleDict({"inner": part})
    assert key_dropouts(holder) == ["inner"]
    assert isinstance(part, KeyedAttention)
    return twin, part


@pytest.mark.parametrize(
    "options",
    [{}, {"batch_first": True}, {"bias": False}, {"kdim": 5, "vdim": 3}],
    ids=lambda options: "-".join(options) or "plain",
)
def test_keyed_attention_is_pytorchs_where_nothing_is_dropped(
    options: dict[str, object],
) -> None:
    ours, draw = keyed(0.5, **options), np.random.default_rng(1)
    ours[1].p = 0.0
    sizes = (8, options.get("kdim", 8), options.get("vdim", 8))
    q, k, v = (torch.from_numpy(draw.normal(size=(4, 4, size))) for size in sizes)
    hidden = torch.arange(4).expand(4, 4) > 2
    for mask in (None, torch.ones(4, 4).triu(1).bool()):
        expected, made = (
            part(q, k, v, key_padding_mask=hidden, attn_mask=mask) for part in ours
        )
        torch.testing.assert_close(made[0], expected[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(made[1], expected[1], rtol=0, atol=1e-12)


def test_keyed_attention_drops_a_share_of_the_weights_and_keeps_their_mean() -> None:
    twin, part = keyed(0.25, batch_first=True)
    x = torch.from_numpy(np.random.default_rng(2).normal(size=(50, 12, 8)))
    dropped = []
    for key in range(2):
        part.key.fill_(key)
        _, weights = part(x, x, x, average_attn_weights=False)
        dropped.append(weights == 0)
        assert float(dropped[-1].double().mean()) == pytest.approx(0.25, abs=0.01)
        assert float(weights.detach().sum(-1).mean()) == pytest.approx(1.0, abs=0.02)
    assert not torch.equal(*dropped)
    assert twin(x, x, x)[1].min() > 0


def test_what_dropout_of_attention_cannot_be_combined_with_is_named() -> None:
    model = nn.Sequential(nn.MultiheadAttention(8, 2, dropout=0.1, add_bias_kv=True))
    with pytest.raises(ContractError, match=r"model: 0 has dropout .*add_bias_kv"):
        key_dropouts(model)


def test_a_model_that_draws_by_itself_is_told_what_to_use() -> None:
    class Own(Function):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(F.dropout(x, 0.5, self.training))

    with pytest.raises(ContractError, match=r"global generator \(test_att.*nn\.Dropou"):
        fedloom.run("fedavg", Own(), clients(), rounds=1)
