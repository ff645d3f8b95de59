"""CPU threads: a run uses what it asks for and leaves the process as it was."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import fedloom
from fedloom.core.errors import ConfigError
from fedloom.engine.threads import on_threads


class Watcher:
    """Progress that writes down how many threads there are while a run goes on."""

    def __init__(self) -> None:
        self.threads: set[int] = set()

    def start(self, *_: object) -> None:
        self.threads.add(torch.get_num_threads())

    def round(self, *_: object) -> None:
        self.threads.add(torch.get_num_threads())


@pytest.fixture
def two_threads():
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def clients():
    x = torch.linspace(-1, 1, 24).reshape(12, 2).numpy()
    return fedloom.federation(x, (x[:, 0] > 0).astype(int), clients=[0, 1, 2] * 4)


@pytest.mark.usefixtures("two_threads")
def test_a_run_leaves_the_number_of_threads_as_it_was(tmp_path):
    watcher, engine = Watcher(), fedloom.EngineSettings(threads=1, device="cpu")
    out = tmp_path / "run"
    result = fedloom.run(
        "fedavg",
        nn.Linear(2, 2),
        clients(),
        rounds=1,
        engine=engine,
        out=out,
        progress=watcher,
    )
    assert watcher.threads == {1}
    assert torch.get_num_threads() == 2
    result.gain()
    assert torch.get_num_threads() == 2
    fedloom.resume(out, nn.Linear(2, 2), clients())
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_threads_come_back_after_an_error():
    with pytest.raises(ValueError, match="stop"), on_threads(1):
        raise ValueError("stop")
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("threads", [0, 1025, 100_000])
def test_a_number_of_threads_that_no_machine_has_is_refused(threads):
    with pytest.raises(ConfigError, match=r"threads.*at least 1 and at most 1024"):
        fedloom.EngineSettings(threads=threads)
