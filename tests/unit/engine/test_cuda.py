"""The woven engine on a GPU gives what the loop gives on the CPU."""

import pytest
import torch

from fedloom.algorithms import REGISTRY
from fedloom.config import parse
from fedloom.run import run_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", REGISTRY)
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
            "model": {"name": "mlp", "hidden": [8], "normalised": name == "fedbn"},
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
