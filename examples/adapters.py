"""A frozen transformer with LoRA matrices: clients train, send and keep these alone."""

import copy
import tempfile
from pathlib import Path

import numpy as np
import torch
from torch import nn

import fedloom
from fedloom.core.streams import seeded
from fedloom.models import Transformer

rng = np.random.default_rng(0)
client = np.arange(400) % 10
words = rng.integers(1, 30, size=(400, 8))
# Every other client calls the same thing by the other name.
label = ((words > 15).mean(1) > 0.5) ^ (client % 2 == 1)
clients = fedloom.federation(words, label.astype("int64"), clients=client)


# --8<-- the adapters
class LoRA(nn.Module):
    """A frozen layer, and two narrow matrices whose product is added to its weight."""

    def __init__(self, layer: nn.Linear, rank: int = 2):
        super().__init__()
        self.layer = layer
        self.down = nn.Parameter(torch.randn(rank, layer.in_features) / rank)
        self.up = nn.Parameter(torch.zeros(layer.out_features, rank))

    def forward(self, x):
        return self.layer(x) + x @ self.down.T @ self.up.T


def with_adapters(base: nn.Module) -> nn.Module:
    """The same model, of which adapters and head alone are trained."""
    model = copy.deepcopy(base).requires_grad_(False)
    for block in model.blocks:
        block.query_key_value = LoRA(block.query_key_value)
        block.mix = LoRA(block.mix)
    model.head.requires_grad_(True)
    return model


# --8<-- end
with seeded(0, "model"):  # in earnest, a model that was trained on much text
    whole = Transformer(width=32, hidden=128).build_for_tokens(30, 2)
    adapted = with_adapters(whole)
engine = fedloom.EngineSettings(compile="off")  # not worth it for so little work
method = fedloom.Ditto(lr=0.1, epochs=1)
for name, model in {"whole model": whole, "adapters": adapted}.items():
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder, "run")
        result = fedloom.run(method, model, clients, rounds=3, out=run, engine=engine)
        files = [file for file in run.rglob("*checkpoint*") if file.is_file()]
        kept = sum(file.stat().st_size for file in files)
    last = result.history.rounds[-1]
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    print(f"{name}: {trained:,} trained parameters, of which a round sends")
    print(f"  {last.bytes_down:,} bytes down and {last.bytes_up:,} up;")
    print(f"  the checkpoint of all clients has {kept:,} bytes.")
    print(f"  Right on new data: {result.scores().mean():.0%}")
