"""Which runner, which chunk, compiled or not: decided from counts alone."""

import math

import pytest
import torch
from torch import nn

from fedloom.algorithms import Ditto, FedAvg, PFedBayes
from fedloom.clients import Iid, Sampling, Split, divide
from fedloom.core.errors import ConfigError
from fedloom.core.task import Task
from fedloom.data import Digits
from fedloom.engine import choice as module
from fedloom.engine.choice import EngineSettings, choose
from fedloom.engine.effort import efforts
from fedloom.engine.loop import Loop
from fedloom.engine.native_library import native_library
from fedloom.engine.weave import Weave
from fedloom.models import LSTM, MODELS

CLIENTS = divide(Digits().load(None, 0), Iid(clients=30), Split(), seed=0)


def decide(rounds=10, sampling=None, width=10, algorithm=None, **settings):
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, width)))
    engine = EngineSettings(device="cpu", **settings)
    sampling, algorithm = sampling or Sampling(), algorithm or Ditto()
    return choose(engine, algorithm, task, CLIENTS, sampling, rounds)


def test_a_short_run_is_not_compiled_and_a_long_one_is(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert not decide(rounds=10).is_compiled
    long = decide(rounds=100_000)
    assert long.is_compiled
    assert long.reason.startswith("compiled")


def test_without_a_compiler_auto_stays_uncompiled_and_says_so(monkeypatch):
    monkeypatch.setattr(module.shutil, "which", lambda name: None)
    found = decide(rounds=100_000)
    assert not found.is_compiled
    assert "no C++ compiler" in found.reason
    assert "\n" not in found.reason
    with pytest.raises(ConfigError, match="Install g"):
        decide(compile="on")


@pytest.mark.skipif(native_library(32) is None, reason="needs a C compiler")
def test_what_c_code_does_is_not_compiled_unless_asked():
    found = decide(rounds=100_000, algorithm=FedAvg())
    assert (found.is_compiled, found.reason) == (False, "")
    asked = decide(algorithm=FedAvg(), compile="on")
    assert asked.is_compiled
    assert "nothing is compiled" in asked.reason


def test_a_precision_for_gpus_is_refused_elsewhere():
    with pytest.raises(ConfigError, match="for float32 on a GPU"):
        EngineSettings(device="cpu", precision="tf32").torch_device()


def taken(task, algorithm=None):
    data = CLIENTS.dataset
    algorithm = algorithm or FedAvg()
    return efforts(algorithm, task, (data.inputs[0][:1],), data.targets[:1])


class WrittenOut(nn.Module):
    """A recurrence step by step, as people write it."""

    def __init__(self):
        super().__init__()
        self.cell, self.head = nn.LSTMCell(8, 8), nn.Linear(8, 10)

    def forward(self, x):
        state = x.new_zeros(len(x), 8), x.new_zeros(len(x), 8)
        for row in x.flatten(1, 2).unbind(1) * 2:
            state = self.cell(row, state)
        return self.head(state[0])


def test_a_recurrence_counts_as_longer_to_call_and_to_compile():
    flat = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    steps = Task(WrittenOut())
    (short,), (long,) = taken(flat), taken(steps)
    assert long.calls > 10 * short.calls
    sizes = torch.as_tensor(CLIENTS.sizes)
    times = [
        module._round_seconds(FedAvg(), [e], sizes, 30.0, 1, flat.device)
        for e in (short, short._replace(calls=long.calls))
    ]
    assert 5 * times[0] < times[1] < 2 * times[0] * long.calls / short.calls
    assert module._unroll(flat, [short]) == 4
    assert module._unroll(steps, [long]) == 1


def test_the_recurrence_of_our_own_lstm_counts_as_one_call():
    """The compiler meets one operation, which it neither opens nor makes faster."""
    few, many = (LSTM(hidden=8).build((steps, 8), 10) for steps in (4, 8))
    (short,), (long,) = (taken(Task(Rows(net, n))) for net, n in ((few, 4), (many, 8)))
    assert abs(long.calls - short.calls) < 3


class Rows(nn.Module):
    """A network of sequences, shown the first rows of a picture."""

    def __init__(self, network, rows):
        super().__init__()
        self.network, self.rows = network, rows

    def forward(self, x):
        return self.network(x[:, 0, : self.rows])


@pytest.mark.parametrize(
    ("model", "clients", "steps", "cpu", "cuda"),
    [
        ("mlr", 1000, 7, 0.23, 0.030),
        ("mlp", 100, 70, 1.73, 0.314),
        ("lenet", 100, 70, 6.1, 0.505),
    ],
)
def test_foreseen_times_are_near_the_measured_ones(model, clients, steps, cpu, cuda):
    """Uncompiled rounds of docs/performance.md, in seconds, by half or double."""
    task = Task(MODELS[model]().build((1, 28, 28), 10))
    one = (torch.zeros(1, 1, 28, 28), torch.zeros(1, dtype=torch.int64))
    found = efforts(FedAvg(batch_size=10), task, one[:1], one[1])
    chunk = 3_600_000 // (4 * task.d)
    sizes = torch.full((clients,), 10 * steps)
    for device, chunks, seconds in (("cpu", clients / chunk, cpu), ("cuda", 1, cuda)):
        foreseen = module._round_seconds(
            FedAvg(batch_size=10),
            found,
            sizes,
            clients,
            math.ceil(chunks),
            torch.device(device),
        )
        assert seconds / 2 < foreseen < seconds * 2, (device, foreseen)


def test_off_means_off():
    assert not decide(rounds=100_000, compile="off").is_compiled


def test_chunks_fit_the_cache_and_are_of_nearly_equal_size():
    assert decide().chunk == 30
    wide = decide(width=4_000)  # 260 000 parameters, 1.04 MB: three to a cache
    assert wide.chunk == 3
    half = decide(sampling=Sampling(rate=0.5))
    assert half.chunk == 15
    everyone = decide(sampling=Sampling(rate=0.5, protocol="train-all"))
    assert everyone.chunk == 30
    assert decide(chunk=7).chunk == 7


def test_a_method_that_makes_large_tensors_gets_smaller_chunks_unless_compiled():
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 400)))

    def chunk(algorithm, **settings):
        engine = EngineSettings(device="cpu", **settings)
        return choose(engine, algorithm, task, CLIENTS, Sampling(), 1).chunk

    assert chunk(FedAvg()) == 30
    assert chunk(PFedBayes(monte_carlo=20)) < 30
    assert chunk(PFedBayes(monte_carlo=20), chunk=30) == 30


def test_the_loop_can_be_asked_for():
    assert isinstance(decide(runner="loop").runner, Loop)
    assert isinstance(decide().runner, Weave)


def test_a_gpu_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match="sees no GPU"):
        EngineSettings(device="cuda").torch_device()
