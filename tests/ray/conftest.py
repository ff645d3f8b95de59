"""Clusters of several machines, emulated on this one."""

from __future__ import annotations

import gc
import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ray_runs import small

from fedloom.cluster import LOCAL, connected
from fedloom.runs import run_config

os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"


@contextmanager
def quietly() -> Iterator[None]:
    """Ray leaves files and processes of its own to be collected."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
        gc.collect()


@pytest.fixture(autouse=True)
def collected() -> Iterator[None]:
    yield
    with quietly():
        pass


@pytest.fixture(scope="module")
def local() -> Iterator[None]:
    """One cluster on this machine for many runs, which find it and leave it."""
    with connected(LOCAL):
        yield
        with quietly():
            import ray

            ray.shutdown()


@pytest.fixture
def make_cluster() -> Iterator[Callable[[int], Any]]:
    """Makes a cluster of so many machines with one CPU each; it ends with the test."""
    from ray.cluster_utils import Cluster

    import ray

    made: list[Any] = []

    def make(machines: int) -> Any:
        # A machine that is gone is noticed within seconds.
        config = {
            "health_check_initial_delay_ms": 0,
            "health_check_period_ms": 500,
            "health_check_failure_threshold": 3,
        }
        with quietly():
            cluster = Cluster(
                initialize_head=True,
                head_node_args={"num_cpus": 1, "_system_config": config},
            )
            made.append(cluster)
            for _ in range(machines - 1):
                cluster.add_node(num_cpus=1)
        return cluster

    yield make
    with quietly():
        ray.shutdown()
        for cluster in made:
            cluster.shutdown()
        made.clear()


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Where the run of a method on one machine lies."""
    folder = tmp_path_factory.mktemp("alone")

    def run(name: str) -> Path:
        if not (folder / name).exists():
            run_config(small(name), out=folder / name)
        return folder / name

    return run
