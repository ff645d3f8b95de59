"""Models whose output is a record, frozen parameters, transformers with adapters."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedloom
from fedloom.core.errors import ContractError
from fedloom.core.task import Task

TOKENS = 20


def sentences() -> tuple[np.ndarray, np.ndarray]:
    """Tokens of which half the samples end in padding, and what they say."""
    x = np.random.default_rng(0).integers(1, TOKENS, size=(40, 6))
    x[:20, 4:] = 0
    return x, (x[:, 0] > TOKENS // 2).astype(np.int64)


def clients() -> fedloom.Federation:
    return fedloom.federation(*sentences(), clients=np.arange(40) % 4)


class Masked(nn.Module):
    """What a model of transformers looks like from outside, LoRA included."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(pad_token_id=0)
        self.embedding = nn.Embedding(TOKENS, 4).requires_grad_(False)
        self.register_buffer("scale", torch.full((4,), 2.0))
        self.down = nn.Parameter(torch.ones(1, 4))
        self.head = nn.Linear(1, 2)
        self.last = nn.Linear(2, 2).requires_grad_(False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> SimpleNamespace:
        real = attention_mask[..., None]
        mean = (self.embedding(input_ids) * self.scale * real).sum(1) / real.sum(1)
        return SimpleNamespace(logits=self.last(self.head(mean @ self.down.T)))


def test_only_trained_parameters_are_in_the_vector_and_the_rest_is_shared() -> None:
    model = Masked()
    task = Task(model)
    assert [block.name for block in task.layout] == [
        "down",
        "head.weight",
        "head.bias",
    ]
    assert task.head_name == "head"
    assert task._trainer.embedding.weight is task.module.embedding.weight
    assert task._trainer.embedding.weight is not model.embedding.weight
    whole = task.ordinary_module(torch.ones(task.d))
    assert type(whole) is Masked
    assert torch.equal(whole.embedding.weight, model.embedding.weight)
    assert torch.equal(whole.scale, model.scale)
    assert torch.equal(whole.head.bias, torch.ones(2))


def test_logits_of_a_record_are_trained_and_padding_is_hidden() -> None:
    model, found = Masked(), []
    x, _ = sentences()
    for runner in ("loop", "weave"):
        engine = fedloom.EngineSettings(runner=runner, compile="off", dtype="float64")
        method = fedloom.FedPer(epochs=1)
        result = fedloom.run(method, model, clients(), rounds=1, engine=engine)
        found.append([*result.model(1).parameters()])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-10)
    padded = np.concatenate([x, np.zeros_like(x)], axis=1)
    task = Task(model)
    said = [task.predict(task.start, (torch.from_numpy(v),)) for v in (x, padded)]
    torch.testing.assert_close(*said)


def test_what_gives_no_tensor_is_refused() -> None:
    class Odd(nn.Linear):
        def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
            return super().forward(x), x

    task = Task(Odd(3, 2))
    with pytest.raises(ContractError, match=r"called logits; found tuple"):
        task.predict(task.start, (torch.ones(2, 3),))


@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_a_model_of_transformers_with_adapters_of_peft_is_trained() -> None:
    reason = "needs the extra peft: pip install 'fedloom[peft]'"
    peft = pytest.importorskip("peft", reason=reason)
    transformers = pytest.importorskip("transformers", reason=reason)
    sizes = {"dim": 8, "n_layers": 1, "n_heads": 2, "hidden_dim": 8}
    config = transformers.DistilBertConfig(
        vocab_size=TOKENS, max_position_embeddings=8, attention_dropout=0.0, **sizes
    )
    adapters = peft.LoraConfig(
        task_type=peft.TaskType.SEQ_CLS, r=2, target_modules=["q_lin", "v_lin"]
    )
    base = transformers.DistilBertForSequenceClassification(config)
    model, found = peft.get_peft_model(base, adapters), []
    for runner in ("loop", "weave"):
        engine = fedloom.EngineSettings(runner=runner, compile="off", dtype="float64")
        method = fedloom.FedPer(lr=0.1, epochs=1)
        result = fedloom.run(method, model, clients(), rounds=1, engine=engine)
        found.append(result.model(1))
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    start = dict(model.named_parameters())
    for (name, one), other in zip(
        found[0].named_parameters(), found[1].parameters(), strict=True
    ):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)
        if name not in trained:
            assert torch.equal(one, start[name].double())
    assert any(
        not torch.equal(p, start[n].double()) for n, p in found[0].named_parameters()
    )
    assert type(found[0]) is type(model)
    assert found[0].config._attn_implementation == model.config._attn_implementation
