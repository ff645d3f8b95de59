"""Which runner, which chunk, compiled or not: decided from counts alone."""

import pytest
import torch
from torch import nn

from fedloom.algorithms import FedAvg
from fedloom.clients import Iid, Sampling, Split, divide
from fedloom.core.errors import ConfigError
from fedloom.core.task import Task
from fedloom.data import Digits
from fedloom.engine import choice as module
from fedloom.engine.choice import EngineSettings, choose
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.models import LSTM

CLIENTS = divide(Digits().load(None, 0), Iid(clients=30), Split(), seed=0)


def decide(rounds=10, sampling=None, width=10, **settings):
    task = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, width)))
    engine = EngineSettings(device="cpu", **settings)
    sampling = sampling or Sampling()
    return choose(engine, FedAvg(), task, CLIENTS, sampling, rounds)


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


def test_a_recurrence_counts_as_longer_to_call_and_to_compile():
    flat = Task(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)))
    steps = Task(nn.Sequential(nn.Flatten(1, 2), LSTM(hidden=8).build((8, 8), 10)))
    assert module._forward_effort(flat, CLIENTS).length == 1
    effort = module._forward_effort(steps, CLIENTS)
    assert effort.length > 3
    short = effort._replace(length=1.0)
    times = [
        module._round_seconds(FedAvg(), e, CLIENTS, 30.0, 1) for e in (short, effort)
    ]
    assert times[0] < times[1] < effort.length * times[0]


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


def test_the_loop_can_be_asked_for():
    assert isinstance(decide(runner="loop").runner, Loop)
    assert isinstance(decide().runner, Weave)


def test_a_gpu_that_is_not_there_is_refused():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU here")
    with pytest.raises(ConfigError, match="sees no GPU"):
        EngineSettings(device="cuda").torch_device()
