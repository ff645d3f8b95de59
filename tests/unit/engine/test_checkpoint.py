from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from patchwork import COUNT, Patchwork, simulation_of, small_federation
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn

from fedloom.algorithms import Ditto, FedAvg, Local
from fedloom.core.errors import DataError, MessageError
from fedloom.core.records import named
from fedloom.core.task import Task
from fedloom.engine.weave import Weave
from fedloom.server import checkpoint
from fedloom.server.checkpoint import restore, save
from fedloom.server.simulation import Simulation


def patchwork(**sampling: Any) -> Simulation:
    return simulation_of(Patchwork(), Weave(4), **sampling)


def standing(simulation: Simulation) -> dict[str, torch.Tensor]:
    personal = {"personal models": simulation.personal(torch.arange(COUNT))}
    return named(simulation.state.server) | simulation.clients.memory.save() | personal


def assert_identical(one: Simulation, two: Simulation) -> None:
    assert (one.state.round, one.state.exchange) == (
        two.state.round,
        two.state.exchange,
    )
    found, expected = standing(one), standing(two)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in expected)


@pytest.mark.parametrize("stop", [0, 1, 4, 6])
def test_a_run_may_stop_after_any_exchange(stop: int, tmp_path: Path) -> None:
    whole, before, after = (patchwork(rate=0.4) for _ in range(3))
    whole_costs = [whole.run_exchange() for _ in range(6)]
    for _ in range(stop):
        before.run_exchange()
    save(before, tmp_path / "run.safetensors")
    restore(after, tmp_path / "run.safetensors")
    costs = [after.run_exchange() for _ in range(6 - stop)]
    assert_identical(after, whole)
    for one, two in zip(costs, whole_costs[stop:], strict=True):
        assert (one is None) == (two is None)
        if one is not None and two is not None:
            assert replace(one, seconds=0.0) == replace(two, seconds=0.0)


def test_restoring_forgets_what_came_after(tmp_path: Path) -> None:
    early, late = patchwork(rate=0.4), patchwork(rate=0.4)
    early.run_exchange()
    save(early, tmp_path / "run.safetensors")
    for _ in range(4):
        late.run_exchange()
    restore(late, tmp_path / "run.safetensors")
    assert_identical(late, early)
    assert replace(late.state.cost, seconds=0) == replace(early.state.cost, seconds=0)


def test_server_fields_that_share_memory_are_saved(tmp_path: Path) -> None:
    simulation = patchwork()
    assert simulation.state.server.shared is simulation.state.server.before
    save(simulation, tmp_path / "run.safetensors")
    again = patchwork()
    restore(again, tmp_path / "run.safetensors")
    assert_identical(again, simulation)


def test_the_folder_is_made(tmp_path: Path) -> None:
    save(patchwork(), tmp_path / "new" / "folder" / "run.safetensors")
    assert (tmp_path / "new" / "folder" / "run.safetensors").is_file()


@pytest.mark.parametrize("keep", [0, 7, 100, -1])
def test_a_truncated_file_is_refused(keep: int, tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save(patchwork(), path)
    path.write_bytes(path.read_bytes()[:keep])
    simulation = patchwork()
    with pytest.raises(MessageError, match=r"run\.safetensors: not a whole checkpoint"):
        restore(simulation, path)


def test_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    path.write_text("not a checkpoint, but longer than a header would be")
    with pytest.raises(MessageError, match="not a whole checkpoint"):
        restore(patchwork(), path)
    save_file({"server.shared": torch.zeros(3)}, path)
    with pytest.raises(MessageError, match="format is None, expected"):
        restore(patchwork(), path)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MessageError, match="not a whole checkpoint"):
        restore(patchwork(), tmp_path / "run.safetensors")


def test_a_checkpoint_of_another_method_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save(simulation_of(FedAvg()), path)
    with pytest.raises(MessageError, match="algorithm is 'fedavg', this run has 'dit"):
        restore(simulation_of(Ditto()), path)


def test_a_checkpoint_of_another_split_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save(patchwork(), path)
    other = replace(small_federation(), teams=np.zeros(COUNT, dtype=np.int64))
    with pytest.raises(MessageError, match="split is '"):
        restore(simulation_of(Patchwork(), federation=other), path)


def test_a_checkpoint_of_other_inputs_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    save(patchwork(), path)
    federation = small_federation()
    data = federation.dataset
    changed = replace(data, inputs=(data.inputs[0].flip(0),))
    other = replace(federation, dataset=changed)
    assert other.hash == federation.hash
    with pytest.raises(MessageError, match="data is '"):
        restore(simulation_of(Patchwork(), federation=other), path)


@pytest.mark.parametrize("method", [FedAvg(), Local()], ids=["fedavg", "local"])
def test_a_checkpoint_of_another_model_is_refused(
    method: FedAvg | Local, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    saved = simulation_of(method)
    saved.run_exchange()
    save(saved, path)
    other = Task(nn.Linear(3, 2, bias=False), dtype=torch.float64)
    simulation = simulation_of(method, task=other)
    before = standing(simulation)
    with pytest.raises(MessageError, match=r"should be torch\.float64"):
        restore(simulation, path)
    assert all(torch.equal(before[name], t) for name, t in standing(simulation).items())


def test_a_checkpoint_with_a_field_missing_changes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    saved = patchwork()
    saved.run_exchange()
    save(saved, path)
    with checkpoint.safe_open(path, framework="pt") as file:
        metadata = file.metadata()
    tensors = load_file(path)
    del tensors["clients.memory.personal"]
    save_file(tensors, path, metadata=metadata)
    simulation = patchwork()
    before = standing(simulation)
    with pytest.raises(MessageError, match="its checksum is wrong"):
        restore(simulation, path)
    assert all(torch.equal(before[name], t) for name, t in standing(simulation).items())
    assert (simulation.state.round, simulation.state.exchange) == (0, 0)


def test_an_interrupted_save_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    simulation, old = patchwork(), patchwork()
    save(simulation, path)

    def half(tensors: Any, name: Path, metadata: Any) -> None:
        save_file(tensors, name, metadata=metadata)
        name.write_bytes(name.read_bytes()[:50])
        raise KeyboardInterrupt

    simulation.run_exchange()
    monkeypatch.setattr(checkpoint, "save_file", half)
    with pytest.raises(KeyboardInterrupt):
        save(simulation, path)
    again = patchwork()
    again.run_exchange()
    restore(again, path)
    assert_identical(again, old)


def saved_thrice(path: Path) -> list[Simulation]:
    """The run as it was at three checkpoints, one exchange apart."""
    simulation, copies = patchwork(), []
    for exchange in range(3):
        save(simulation, path)
        copies.append(patchwork())
        for _ in range(exchange):
            copies[-1].run_exchange()
        simulation.run_exchange()
    return copies


def test_the_newest_checkpoint_and_the_one_before_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "run.safetensors"
    _, second, third = saved_thrice(path)
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {"run.safetensors", "run-before.safetensors"}
    assert checkpoint.whole_positions(path) == [(1, 0), (0, 1)]
    again = patchwork()
    assert restore(again, path) == ""
    assert_identical(again, third)
    assert restore(again, path, at=checkpoint.Position(0, 1)) == ""
    assert_identical(again, second)
    with pytest.raises(MessageError, match="no checkpoint of round 7"):
        restore(again, path, at=checkpoint.Position(7, 0))


@pytest.mark.parametrize("place", [20, -1], ids=["header", "numbers"])
def test_a_damaged_checkpoint_gives_way_to_the_one_before(
    place: int, tmp_path: Path
) -> None:
    path = tmp_path / "run.safetensors"
    _, second, _ = saved_thrice(path)
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)
    again = patchwork()
    assert "The one before it is used" in restore(again, path)
    assert_identical(again, second)
    assert checkpoint.whole_positions(path) == [(0, 1)]


@pytest.mark.parametrize("newest", ["damaged", "later", "gone"])
def test_the_checkpoint_a_run_goes_on_from_is_not_pushed_out(
    newest: str, tmp_path: Path
) -> None:
    """Killed during the next save, the run still has the one it came from."""
    path = tmp_path / "run.safetensors"
    _, _, third = saved_thrice(path)
    if newest == "damaged":
        path.write_bytes(b"damaged")
    elif newest == "gone":
        path.unlink()
        assert restore(patchwork(), path) == ""
    at = checkpoint.Position(0, 1)
    checkpoint.forget_after(path, at)
    assert checkpoint.whole_positions(path) == [at]
    save(third, path)
    assert checkpoint.whole_positions(path) == [(1, 0), at]
    checkpoint.forget_after(path, checkpoint.Position(1, 0))
    assert checkpoint.whole_positions(path) == [(1, 0), at]
    checkpoint.forget_after(path, checkpoint.START)
    assert not checkpoint.exists(path)


def test_a_full_disk_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    _, _, third = saved_thrice(path)

    def full(tensors: Any, name: Path, metadata: Any) -> None:
        name.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(
        DataError, match=r"No space left.*Make room; .* before is whole"
    ):
        save(third, path)
    assert not list(tmp_path.glob("*.part"))
    assert checkpoint.whole_positions(path) == [(1, 0), (0, 1)]


def test_a_position_is_read_without_the_tensors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "run.safetensors"
    assert checkpoint.newest_position(path) is None
    run = patchwork()
    run.run_exchange()
    save(run, path)
    monkeypatch.setattr(checkpoint, "tensors_digest", None)  # nobody may ask for it
    assert checkpoint.newest_position(path) == (0, 1)
    path.write_bytes(path.read_bytes()[:200])
    assert checkpoint.newest_position(path) is None


@pytest.mark.parametrize(
    "damage",
    [
        lambda header: [],
        lambda header: {k: v for k, v in header.items() if k != "digest"},
        lambda header: {k: v for k, v in header.items() if k != "round"},
        lambda header: {**header, "exchange": None},
        lambda header: {**header, "cost": None},
        lambda header: {**header, "cost": {"other": 1}},
    ],
    ids=["no table", "no digest", "no round", "no exchange", "no cost", "other cost"],
)
def test_a_damaged_header_is_a_damaged_checkpoint(
    tmp_path: Path, damage: Callable[[Any], Any]
) -> None:
    path, run = tmp_path / "run.safetensors", patchwork()
    run.run_exchange()
    save(run, path)
    with safe_open(path, framework="pt") as file:
        header = json.loads(file.metadata()["fedloom"])
        tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    save_file(tensors, path, metadata={"fedloom": json.dumps(damage(header))})
    with pytest.raises(MessageError, match="not a whole checkpoint"):
        checkpoint.restore(patchwork(), path)
    assert checkpoint.whole_positions(path) == []
    checkpoint.newest_position(path)  # never an error


def test_a_checkpoint_of_few_who_took_part_has_their_rows_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same run goes on from it as from one with the rows of all clients."""
    path, whole = tmp_path / "run.safetensors", patchwork(rate=0.4)
    for _ in range(2):
        whole.run_exchange()
    save(whole, path)
    assert "taken" in load_file(path)
    monkeypatch.setattr(checkpoint, "_PACKED_BYTES", 1)
    for exchanges in (0, 4):
        for _ in range(exchanges):
            whole.run_exchange()
        save(whole, path)
        assert ("packed.taken.rows" in load_file(path)) == (exchanges == 0)
        again = patchwork(rate=0.4)
        restore(again, path)
        assert_identical(again, whole)
        assert torch.equal(again.state.taken, whole.state.taken)
        assert torch.equal(again.state.work, whole.state.work)
