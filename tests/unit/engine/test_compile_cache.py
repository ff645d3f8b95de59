"""Compiled code is kept where the next run finds it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from torch._inductor.runtime import cache_dir_utils

from fedloom.engine.compile_cache import VARIABLE, keep_compiled_code

RUN = """
from torch._dynamo.utils import counters
from fedloom.algorithms import Ditto
from fedloom.clients import Iid, Sampling, Split, divide
from fedloom.core import streams
from fedloom.core.task import Task
from fedloom.data import Digits
from fedloom.engine.choice import EngineSettings, choose
from fedloom.models import MLR
from fedloom.server.simulation import Simulation
data = Digits().load(None, 0)
clients = divide(data, Iid(clients=4), Split(), seed=0)
with streams.seeded(0, "model"):
    task = Task(MLR().build(data.input_shape, 10), scale=data.scale)
engine = EngineSettings(compile="on", device="cpu")
choice = choose(engine, Ditto(), task, clients, Sampling(), rounds=1)
Simulation(Ditto(), task, clients, choice.runner).run_exchange()
print(counters["inductor"]["fxgraph_cache_hit"])
"""


@pytest.fixture
def _unset(monkeypatch):
    # Set first, so that what the function sets is taken back too.
    monkeypatch.setenv(VARIABLE, "x")
    monkeypatch.delenv(VARIABLE)


@pytest.mark.usefixtures("_unset")
def test_compiled_code_goes_to_the_users_cache_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    keep_compiled_code()
    assert os.environ[VARIABLE] == str(tmp_path / "fedloom" / "compiled")
    assert Path(os.environ[VARIABLE]).is_dir()


@pytest.mark.usefixtures("_unset")
def test_without_a_place_to_keep_it_pytorch_decides(tmp_path, monkeypatch):
    (tmp_path / "taken").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "taken"))
    keep_compiled_code()
    assert VARIABLE not in os.environ


@pytest.mark.usefixtures("_unset")
def test_what_pytorch_chose_by_itself_is_not_the_users_choice(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    cache_dir_utils.cache_dir()
    assert VARIABLE in os.environ
    keep_compiled_code()
    assert os.environ[VARIABLE] == str(tmp_path / "fedloom" / "compiled")


def test_a_directory_that_the_user_chose_stays(tmp_path, monkeypatch):
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    keep_compiled_code()
    assert os.environ[VARIABLE] == str(tmp_path)


@pytest.mark.slow
def test_a_second_process_finds_what_the_first_one_compiled(tmp_path):
    around = {k: v for k, v in os.environ.items() if k != VARIABLE}
    around["XDG_CACHE_HOME"] = str(tmp_path)
    hits = [
        subprocess.run(
            [sys.executable, "-c", RUN],
            env=around,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.strip()
        for _ in range(2)
    ]
    assert hits == ["0", "1"]
