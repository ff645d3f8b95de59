"""The peers, and an environment of its own for each that has to be installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import torch

from fedloom.core.errors import ConfigError
from fedloom.core.files import atomic_write, write_text
from fedloom.core.user_cache import user_cache

SCRIPTS = Path(__file__).parent / "scripts"
_TORCH = "torch==" + torch.__version__.partition("+")[0]
"""Everybody trains with the PyTorch that Fedloom has here."""
_READY = "ready.txt"
"""File of a finished environment; says what is installed in it."""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """Somebody who can do the workloads."""

    name: str
    about: str
    """What it is and how it is set up, in a few words."""
    installs: tuple[tuple[str, ...], ...] = ()
    """Arguments of `pip install`, one call after another; if there are none, it runs in
    the environment of Fedloom."""
    needs_gpu: bool = False

    @property
    def script(self) -> Path:
        """What trains."""
        return SCRIPTS / f"run_{self.name}.py"


PEERS = {
    peer.name: peer
    for peer in (
        Peer(name="fedloom", about="Fedloom, compiled"),
        Peer(name="loop", about="a tuned PyTorch loop over two processes"),
        Peer(
            name="pfl",
            about="pfl-research, two processes",
            installs=((_TORCH, "pfl[pytorch]==0.6.0"),),
        ),
        Peer(
            name="flower",
            about="Flower, simulated with Ray, two actors",
            installs=((_TORCH, "flwr[simulation]==1.41.0", "ray==2.55.1"),),
        ),
        Peer(
            name="blazefl",
            about="BlazeFL, its FedAvg with a pool of two processes",
            # It asks for Python 3.12, but has nothing in it that 3.11 does not know.
            installs=(
                (_TORCH, "numpy", "tqdm"),
                ("--ignore-requires-python", "--no-deps", "blazefl==2.0.3"),
            ),
        ),
        Peer(
            name="fluke",
            about="fluke, one process",
            installs=((_TORCH, "fluke-fl==0.8.1"),),
        ),
        Peer(
            name="jax",
            about="JAX, vmap over clients and scan over steps",
            installs=(("jax[cuda12]==0.10.2", "numpy"),),
            needs_gpu=True,
        ),
    )
}


class NotInstalled(Exception):
    """A peer cannot be installed; says why."""


def default_folder() -> Path:
    """Where environments are kept from run to run."""
    try:
        return user_cache() / "peers"
    except OSError as error:
        raise ConfigError(
            f"bench peers: there is no folder to keep environments in ({error}). Say "
            "where with --venvs DIR."
        ) from error


def interpreter(peer: Peer, folder: Path) -> Path:
    """The Python of a peer, installed if it is not there yet.

    Args:
        peer: whose.
        folder: where environments are kept.

    Raises:
        NotInstalled: It cannot be installed.
    """
    if not peer.installs:
        return Path(sys.executable)
    place = folder / peer.name
    python = place / ("Scripts" if os.name == "nt" else "bin") / "python"
    wanted = "\n".join(" ".join(arguments) for arguments in peer.installs)
    ready = place / _READY
    if ready.exists() and ready.read_text("utf-8") == wanted:
        return python
    shutil.rmtree(place, ignore_errors=True)
    _call([sys.executable, "-m", "venv", str(place)])
    for arguments in peer.installs:
        _call([str(python), "-m", "pip", "install", "--quiet", *arguments])
    with atomic_write(ready) as part:
        write_text(part, wanted)
    return python


def _call(command: list[str]) -> None:
    ended = subprocess.run(
        command, capture_output=True, encoding="utf-8", errors="replace"
    )
    if ended.returncode != 0:
        raise NotInstalled(last_line(ended.stderr or ended.stdout))


def last_line(text: str) -> str:
    """The last line that says something; of pip's errors, the last one."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return (errors or lines or ["It ended without a word."])[-1]
