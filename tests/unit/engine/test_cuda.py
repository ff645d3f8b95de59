"""The woven engine on a GPU gives what the loop gives on the CPU."""

import numpy as np
import pytest
import torch

import fedloom
from fedloom.algorithms import REGISTRY
from fedloom.config import parse
from fedloom.core.streams import seeded
from fedloom.data.dataset import Dataset
from fedloom.models import LSTM, MODELS
from fedloom.runs import run_config

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


@pytest.mark.parametrize("name", REGISTRY)
@pytest.mark.parametrize("compiled", ["off", "on"])
def test_a_gpu_run_equals_the_loop_on_the_cpu(name, compiled):
    personal = []
    for engine in (
        {"runner": "loop", "device": "cpu", "dtype": "float64"},
        {"compile": compiled, "device": "cuda", "dtype": "float64"},
    ):
        tables = {
            "rounds": 2,
            "algorithm": {"name": name, "batch_size": 10},
            "sampling": {"rate": 0.5},
            "partition": {"name": "label-skew", "clients": 8, "classes": 5},
            "teams": {"name": "blocks", "teams": 2},
            "model": {"name": "mlp", "hidden": [64], "normalised": name == "fedbn"},
            "engine": engine,
        }
        result = run_config(parse(tables))
        models = [result.model(client) for client in range(8)]
        personal.append(
            torch.stack(
                [torch.cat([p.flatten().cpu() for p in m.parameters()]) for m in models]
            )
        )
    assert torch.allclose(*personal, rtol=1e-7, atol=1e-9)


def test_tokens_and_their_scores_on_a_gpu_equal_those_on_the_cpu():
    draw = np.random.default_rng(0)
    tokens = torch.from_numpy(draw.integers(0, 9, size=(80, 6)))
    dataset = Dataset(
        name="toy tokens",
        inputs=(tokens,),
        targets=tokens.sum(1) % 2,
        classes=2,
        owner=np.arange(80) % 4,
        vectors=torch.from_numpy(draw.normal(size=(9, 5))),
    )
    clients = fedloom.divide(dataset, fedloom.Natural(), fedloom.Split(), seed=0)
    with seeded(0, "model"):
        model = LSTM(hidden=4).build_for_tokens(9, 2, dataset.vectors)
    results = []
    for runner, device in (("loop", "cpu"), ("weave", "cuda")):
        engine = fedloom.EngineSettings(
            runner=runner, device=device, dtype="float64", compile="off"
        )
        results.append(fedloom.run("ditto", model, clients, rounds=2, engine=engine))
    for number in ("loss", "auc", "f1"):
        on_cpu, on_gpu = (result.scores(number=number) for result in results)
        np.testing.assert_allclose(on_cpu, on_gpu, rtol=1e-7)


def test_a_standardised_regression_on_a_gpu_equals_that_on_the_cpu():
    draw = np.random.default_rng(0)
    x = draw.normal(size=(80, 3)) * [1, 10, 100] + 5
    clients = fedloom.federation(
        x, x.sum(1), clients=np.arange(80) % 4, standardise=True
    )
    results = []
    for device in ("cpu", "cuda"):
        engine = fedloom.EngineSettings(device=device, dtype="float64", compile="off")
        results.append(fedloom.run("fedavg", "mlr", clients, rounds=2, engine=engine))
    for number in ("mse", "mae", "explained_variance"):
        on_cpu, on_gpu = (result.scores(number=number) for result in results)
        np.testing.assert_allclose(on_cpu, on_gpu, rtol=1e-7)


@pytest.mark.parametrize("model", ["mlr", "mlp", "lenet"])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("decay", [0.0, 0.01])
def test_kernels_of_our_own_are_as_accurate_as_single_precision(model, clip, decay):
    """Dense networks and convolutions have kernels for float32 alone."""
    draw = np.random.default_rng(0)
    images = torch.from_numpy(draw.integers(0, 256, (600, 1, 20, 20), dtype=np.uint8))
    dataset = Dataset(
        name="noise",
        inputs=(images,),
        targets=torch.from_numpy(draw.integers(0, 10, 600)),
        classes=10,
        scale=255.0,
        owner=np.repeat(np.arange(8), draw.multinomial(600, np.arange(1, 9) / 36)),
    )
    clients = fedloom.divide(
        dataset, fedloom.Natural(), fedloom.Split(test=0.0), seed=0
    )
    with seeded(0, "model"):
        module = MODELS[model]().build(dataset.input_shape, 10)
    method = fedloom.FedAvg(batch_size=10, clip=clip, weight_decay=decay)
    models = []
    for dtype, device, compiled in (
        ("float64", "cpu", "off"),
        ("float32", "cpu", "off"),
        ("float32", "cuda", "on"),
    ):
        engine = fedloom.EngineSettings(device=device, dtype=dtype, compile=compiled)
        # Three rounds: plain calls, a recording, and a replay of it.
        result = fedloom.run(method, module, clients, rounds=3, engine=engine)
        params = result.model(0).parameters()
        models.append(torch.cat([p.detach().flatten().cpu().double() for p in params]))
    exact, single, own = models
    assert (own - exact).abs().max() < 10 * (single - exact).abs().max() + 1e-6
