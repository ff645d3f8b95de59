"""Clusters of several machines, emulated on this one, of which one may die."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ray_runs import MARKS, Watcher, assert_same, small

from fedloom.cluster import RaySettings, connected
from fedloom.core.errors import ConfigError, FedloomError
from fedloom.runs import run_config

pytestmark = MARKS


def children_of(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[1]) == parent:
                found.append(int(entry.name))
    return found


def test_the_death_of_a_machine_changes_nothing(
    make_cluster: Callable[[int], Any],
    alone: Callable[[str], Path],
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    cluster = make_cluster(3)
    lost = cluster.list_all_nodes()[-1]
    ray = RaySettings(address=cluster.address, workers=3)

    def die() -> None:
        raylet = lost.all_processes["raylet"][0].process.pid
        for pid in children_of(raylet):
            os.kill(pid, signal.SIGKILL)
        cluster.remove_node(lost, allow_graceful=False)

    out = tmp_path / "run"
    run_config(small("self-fl"), out=out, ray=ray, progress=Watcher(2, die))
    assert_same(out, alone("self-fl"))
    assert any("was lost" in record.getMessage() for record in caplog.records)


def test_a_cluster_without_room_is_told_from_a_slow_one(
    make_cluster: Callable[[int], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("fedloom.cluster._PLACED_S", 4.0)
    cluster = make_cluster(1)
    with connected(RaySettings(address=cluster.address)):
        import ray

        ray.remote(lambda: time.sleep(60)).options(num_cpus=1).remote()
        with pytest.raises(FedloomError) as caught:
            run_config(small("fedavg"), ray=RaySettings(workers=1))
    message = str(caught.value)
    assert "asked for 1 worker with 1 CPU each" in message
    assert "The cluster has 1 CPUs on 1 machine, 0 of them free" in message


def test_a_program_that_is_connected_elsewhere_is_told_so(
    make_cluster: Callable[[int], Any],
) -> None:
    cluster = make_cluster(1)
    with (
        connected(RaySettings(address=cluster.address)),
        pytest.raises(ConfigError, match="is connected to the Ray cluster at"),
    ):
        run_config(small("fedavg"), ray=RaySettings(address="10.0.0.1:6379"))
