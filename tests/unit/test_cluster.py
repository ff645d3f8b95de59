"""A cluster before there is one: addresses, extras, versions, how tensors cross."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading

import pytest
import torch

from fedloom import cluster
from fedloom.cluster import RaySettings, connected
from fedloom.commands.options import ray_settings
from fedloom.core.errors import ConfigError


def test_ray_is_not_imported_before_it_is_asked_for() -> None:
    code = "import sys, fedloom.cli; sys.exit('ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_a_missing_extra_says_which_command_installs_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ConfigError, match=r"pip install 'fedloom\[ray\]'"):
        connected("local").__enter__()


def test_without_ray_there_is_no_cluster() -> None:
    with connected(None) as nobody:
        assert nobody is None


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "h:99999", "ray://h:1"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(ConfigError, match="expected local, auto or HOST:PORT"):
        RaySettings(address=address)


def test_no_workers_are_refused() -> None:
    with pytest.raises(ConfigError, match="workers must be a whole number at least 1"):
        RaySettings(workers=0)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_whoever_does_not_speak_grpc_is_refused_at_once(
    answer: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster, "_ANSWERS_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = f"127.0.0.1:{server.getsockname()[1]}"
        held = []

        def serve() -> None:
            held.append(server.accept()[0])
            held[0].sendall(answer)

        threading.Thread(target=serve, daemon=True).start()
        with pytest.raises(ConfigError, match=f"expected a Ray cluster at {address}"):
            cluster._refuse_silence(address)
        held[0].close()
    with pytest.raises(ConfigError, match="found nobody who answers"):
        cluster._refuse_silence(address)


def test_another_version_is_named_with_its_machine() -> None:
    versions = cluster._versions() | {"torch": "1.0"}
    with pytest.raises(ConfigError, match=r"far-away has torch 1\.0, and this machine"):
        cluster._refuse_other_versions(cluster._Hello("far-away", 1, "", versions))


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).reshape(2, 3).T,
        torch.tensor(3),
        torch.zeros(0, 4, dtype=torch.float64),
        torch.tensor([True, False]),
        torch.ones(2, dtype=torch.bfloat16),
        torch.tensor([1.5]).expand(3, 1),
    ],
)
def test_tensors_arrive_as_they_were_sent(tensor: torch.Tensor) -> None:
    sent = cluster._as_array(tensor)
    sent[0].flags.writeable = False  # as Ray hands it on
    arrived = cluster._from_array(sent)
    assert (arrived.dtype, arrived.shape) == (tensor.dtype, tensor.shape)
    assert torch.equal(arrived, tensor)
    arrived += 1 if tensor.dtype != torch.bool else True  # its memory is its own


def test_options_that_contradict_one_another_are_refused() -> None:
    assert ray_settings(None, None, 4) is None
    assert ray_settings("auto", 3) == RaySettings(address="auto", workers=3)
    with pytest.raises(ConfigError, match="Say which: --ray local"):
        ray_settings(None, 2)
    with pytest.raises(ConfigError, match="With --ray give --ray-workers"):
        ray_settings("local", None, 2)
