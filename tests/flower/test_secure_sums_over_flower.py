"""Secure sums over Flower: ten clients with TLS, of whom some are killed."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from federation import SETTINGS, Federation
from numpy.typing import NDArray
from safetensors.numpy import load_file

from fedloom.config import parse
from fedloom.core.errors import MessageError
from fedloom.core.secure_sums import SecureSums
from fedloom.plan import built_in_module, make_clients, make_task
from fedloom.secure.fixed_point import FixedPoint

pytestmark = [pytest.mark.flower, pytest.mark.timeout(1200)]

COUNT = 10
NEEDED = 7
SIZE = 8 * 4 + 4  # of the model
HASTY = {"deadline_s": 30.0, "retry_s": 20.0, "patience_s": 60.0, "quorum": 0.5}
CHANGES: dict[str, Any] = {
    "rounds": 1,
    "data": {**SETTINGS["data"], "clients": COUNT},
    "secure": {"threshold": NEEDED / COUNT},
}

RECORDER = """
from pathlib import Path

from flwr.common.serde import recorddict_to_proto

from fedloom.flower.channel import GridChannel
from fedloom.flower.server_app import make_server_app

recording = Path({file!r})


class Recorded:
    def __init__(self, grid):
        self.grid = grid

    def __getattr__(self, name):
        return getattr(self.grid, name)

    def pull_messages(self, ids):
        answers = list(self.grid.pull_messages(ids))
        with recording.open("ab") as file:
            for answer in answers:
                if not answer.has_error():
                    content = recorddict_to_proto(answer.content)
                    file.write(content.SerializeToString())
        return answers


def __init__(self, grid, *, ttl_s, begin=GridChannel.__init__):
    begin(self, Recorded(grid), ttl_s=ttl_s)


GridChannel.__init__ = __init__
app = make_server_app()
"""


class SecureFederation(Federation):
    """Ten clients that take part in secure sums alone, and a server that records."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, COUNT)
        self.run = "all"
        """The run under way."""
        self.recording = folder / "recording"
        self.seen: set[Path] = set()
        """Stages that were waited for."""
        project = self.app / "pyproject.toml"
        text = project.read_text(encoding="utf-8")
        app = "fedloom.flower.server_app:app"
        assert app in text
        project.write_text(text.replace(app, "recorder:app"), encoding="utf-8")
        recorder = RECORDER.format(file=str(self.recording))
        (self.app / "recorder.py").write_text(recorder, encoding="utf-8")

    def node_config(self, n: int) -> dict[str, Any]:
        peers, key = str(self.certificates), str(self.keys[n][0])
        return {"secure": 3, "peers": peers, "client-key": key}

    def sums(self, n: int) -> Path:
        return self.home(n) / self.run / "secure"

    def words(self, n: int) -> NDArray[np.uint32]:
        """A client's last summand, as whole numbers before any mask."""
        words: NDArray[np.int32] = load_file(self.sums(n) / "summand.safetensors")[
            "words"
        ]
        return words.view(np.uint32)

    def numbers(self, n: int) -> NDArray[np.float64]:
        """The same as the numbers that they stand for: a change, and a weight."""
        bounds = np.array([SecureSums().bound] * SIZE + [1.0])
        bits = SecureSums().bits_for(COUNT)
        return FixedPoint(bits, bounds).decode(self.words(n))

    def shared(self) -> NDArray[np.float64]:
        """The server's model after its last exchange."""
        state = load_file(self.out(self.run) / "checkpoint.safetensors")
        return state["server.shared"].astype(np.float64)

    def wait_for_shares(self, clients: Collection[int]) -> None:
        """Wait until these clients have sealed their shares in the next round."""
        end, waiting = time.monotonic() + 400, set(clients)
        while waiting and time.monotonic() < end:
            for n in list(waiting):
                new = set(self.sums(n).glob("*.share")) - self.seen
                if new:
                    self.seen |= new
                    waiting.discard(n)
            time.sleep(0.02)
        assert not waiting, f"no shares of {waiting}"

    def kill(self, clients: Collection[int]) -> None:
        for n in clients:
            self.nodes[n].kill()


@pytest.fixture(scope="module")
def federation(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecureFederation]:
    made = SecureFederation(tmp_path_factory.mktemp("federation"))
    yield made
    made.end()


def refuse_single_summands(federation: SecureFederation) -> None:
    """No four numbers of anybody's summand reached the server, in whatever form."""
    reached = federation.recording.read_bytes()
    for n in range(COUNT):
        words, numbers = federation.words(n), federation.numbers(n)
        forms = (words, numbers, numbers.astype(np.float32), words.astype(">u4"))
        for form in forms:
            for at in range(0, SIZE - 3, 4):
                assert form[at : at + 4].tobytes() not in reached, (n, form.dtype)
    # The recording is what it says: what is sent in the open is in it.
    assert reached.count(b"report.loss") >= COUNT
    assert b"secure.masked" in reached
    assert b"upload." not in reached


def change_of(clients: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """What the plain sum of these numbers makes of the server's model."""
    total = np.sum(clients, 0)
    return np.asarray(total[:SIZE] / total[SIZE])


def start(seed: int = 0) -> NDArray[np.float64]:
    """The model that a run of a seed begins with."""
    config = parse(SETTINGS | CHANGES | {"seed": seed})
    clients = make_clients(config)[1]
    task = make_task(built_in_module(config, clients), clients, config.engine)
    return np.asarray(task.start.double().numpy())


def test_the_server_learns_totals_and_nothing_else(
    federation: SecureFederation,
) -> None:
    """All ten; three of ten killed in mid-round; six of ten, which is refused."""
    run = federation.submit("all", CHANGES, patience_s=900.0)
    federation.wait_for_shares(range(COUNT))
    summands = [federation.numbers(n) for n in range(COUNT)]
    federation.flwr.wait(run, 900)
    assert [row.participants for row in federation.rounds("all")[1:]] == [COUNT]
    model = start() + change_of(summands)
    assert np.abs(federation.shared() - model).max() < 1e-6
    assert np.abs(change_of(summands)).max() > 1e-3
    refuse_single_summands(federation)

    federation.run = "killed"
    # With the seed of the run before no client would take part.
    run = federation.submit("killed", CHANGES | {"rounds": 2, "seed": 1}, **HASTY)
    federation.wait_for_shares(range(COUNT))
    federation.kill([2, 5, 8])
    summands = [federation.numbers(n) for n in range(COUNT)]
    refuse_single_summands(federation)
    federation.wait_for_round("killed", 1, 300)
    row = federation.rounds("killed")[-1]
    summed = [summands[n] for n in range(COUNT) if n not in row.absent]
    assert row.participants == len(summed) == NEEDED
    model = start(seed=1) + change_of(summed)
    assert np.abs(federation.shared() - model).max() < 1e-6
    refuse_single_summands(federation)

    federation.wait_for_shares([0, 1, 3, 4, 6, 7, 9])
    federation.kill([0, 1, 3])
    with pytest.raises(MessageError, match="no secure sum, and no single upload"):
        federation.flwr.wait(run, 600)
    assert np.abs(federation.shared() - model).max() < 1e-6
    for n in (4, 6, 7, 9):
        assert list(federation.sums(n).glob("*.share"))
        assert not list(federation.sums(n).glob("*.agree"))
        assert not list(federation.sums(n).glob("*.open"))
    refuse_single_summands(federation)
