"""The woven engine on a GPU gives what the loop gives on the CPU."""

import pytest
import torch
from torch import nn

from fedloom.algorithms import REGISTRY
from fedloom.config import parse
from fedloom.core.streams import seeded
from fedloom.data import Digits
from fedloom.engine.choice import EngineSettings
from fedloom.federation import LabelSkew, Split, divide
from fedloom.run import run, run_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


# No built-in model has the normalisation layers that fedbn is about: see below.
@pytest.mark.parametrize("name", [name for name in REGISTRY if name != "fedbn"])
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_gpu_run_equals_the_loop_on_the_cpu(name, compiled):
    found = []
    for engine in (
        {"runner": "loop", "device": "cpu", "dtype": "float64"},
        {"compile": compiled, "device": "cuda", "dtype": "float64"},
    ):
        tables = {
            "rounds": 2,
            "algorithm": {"name": name},
            "cohort": {"rate": 0.5},
            "partition": {"name": "label-skew", "clients": 8, "classes": 5},
            "teams": {"name": "blocks", "teams": 2},
            "model": {"name": "mlp", "hidden": [8]},
            "engine": engine,
        }
        result = run_config(parse(tables))
        models = [result.model(client) for client in range(8)]
        found.append(
            torch.stack(
                [torch.cat([p.flatten().cpu() for p in m.parameters()]) for m in models]
            )
        )
    assert torch.allclose(found[0], found[1], rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_gpu_run_with_own_normalisation_layers_equals_the_loop(compiled):
    with seeded(0, "model"):
        below, head = nn.Linear(64, 8), nn.Linear(8, 10)
    model = nn.Sequential(nn.Flatten(), below, nn.LayerNorm(8), nn.ReLU(), head)
    digits, partition = Digits().load(None, 0), LabelSkew(clients=8, classes=5)
    clients = divide(digits, partition, Split(), seed=0)
    found = []
    for engine in (
        EngineSettings(runner="loop", device="cpu", dtype="float64"),
        EngineSettings(compile=compiled, device="cuda", dtype="float64"),
    ):
        result = run("fedbn", model, clients, rounds=2, engine=engine)
        models = [result.model(client) for client in range(8)]
        found.append(
            torch.stack(
                [torch.cat([p.flatten().cpu() for p in m.parameters()]) for m in models]
            )
        )
    assert torch.allclose(found[0], found[1], rtol=1e-7, atol=1e-9)
    assert not torch.equal(found[0][0], found[0][1])
