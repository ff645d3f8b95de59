"""Flower's processes: a SuperLink, SuperNodes, keys, a run; started and ended whole.

A SuperLink and a SuperNode start processes of their own, some in a session of theirs.
All that we start, and all that it starts, carries a mark in its environment, by which
`FlowerProcess.end` finds it.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import tomli_w
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_public_key
from flwr.proto.control_pb2 import (
    ListNodesRequest,
    ListRunsRequest,
    RegisterNodeRequest,
    StreamLogsRequest,
    UnregisterNodeRequest,
)
from flwr.supercore.constant import NodeStatus
from flwr.supercore.control import ControlHttpClient
from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
from flwr.supercore.primitives.asymmetric import public_key_to_bytes, uses_nist_ec_curve

from fedloom.core.errors import ConfigError, MessageError
from fedloom.core.files import write_text
from fedloom.flower.logs import without_tracebacks
from fedloom_flower_client import TEAM_HOME, socket_path

_MARK = "FEDLOOM_FLOWER_PROCESS"
_GRACE_S = 5.0
_RESTART_S = 5.0
_CONNECTED = "SuperNode ID:"
_NOT_ACTIVATED = "Failed to activate SuperNode"
"""What a SuperNode prints when it is taken in, and when it is not."""
_POLL_S = 0.2
_STATUS_S = 1.0
"""Time between two looks at a run."""
CONNECTION = "fedloom"
"""What the connection to the SuperLink is called in Flower's own config."""


@dataclass(frozen=True)
class Link:
    """How a SuperLink is reached."""

    address: str
    """Host and port."""
    ca: Path | None
    """The certificate of who vouches for the server; None means no encryption."""


class FlowerProcess:
    """A process of Flower's, with all that it starts.

    Args:
        command: the program and its arguments.
        home: folder for what Flower keeps; FLWR_HOME of the process.
        log: file that its output is added to.
        mark: what it and all that it starts are known by; see `mark_for`.
    """

    def __init__(
        self, command: Sequence[str], home: Path, log: Path, mark: str | None = None
    ) -> None:
        self.log = log
        self._command = list(command)
        self._home = home
        self._mark = mark if mark is not None else secrets.token_hex(16)
        self._log_start = 0
        home.mkdir(parents=True, exist_ok=True)
        self._process = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        with self.log.open("ab") as file:
            self._log_start = file.tell()
            return subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=subprocess.STDOUT,
                env=_environment(self._home) | {_MARK: self._mark},
                start_new_session=True,
            )

    @property
    def is_running(self) -> bool:
        """Whether the process itself runs."""
        return self._process.poll() is None

    def said(self) -> str:
        """The end of what it has printed since it was started, without tracebacks."""
        try:
            with self.log.open("rb") as file:
                file.seek(self._log_start)
                text = file.read().decode(errors="replace")[-20_000:]
                return without_tracebacks(text)
        except OSError:
            return ""

    def kill(self) -> None:
        """End it and all that it started at once, as a power cut would."""
        for _ in range(10):  # whoever is ended may just be starting another
            ids = self._ids()
            _signal(ids, signal.SIGKILL)
            if not ids:
                break
            time.sleep(0.05)
        self._process.wait()

    def end(self) -> None:
        """Ask it and all that it started to end; who does not is killed."""
        _signal(self._ids(), signal.SIGTERM)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and self._ids():
            self._process.poll()
            time.sleep(0.1)
        self.kill()

    def _ids(self) -> list[int]:
        """Of the process and all that it started, wherever they belong now."""
        self._process.poll()
        ids = {self._process.pid} if self._process.returncode is None else set()
        return sorted(ids.union(_marked(self._mark)))


def mark_for(folder: Path) -> str:
    """What the processes of a folder are known by, by whoever starts them next too."""
    return hashlib.blake2b(str(folder.resolve()).encode(), digest_size=16).hexdigest()


def end_left_behind(mark: str) -> int:
    """End what a process that was killed has left running.

    Args:
        mark: as `mark_for` gives it.

    Returns:
        How many processes there were.
    """
    left = ids = _marked(mark)
    for sign in (signal.SIGTERM, *[signal.SIGKILL] * 10):
        if not ids:
            break
        _signal(ids, sign)
        deadline = time.monotonic() + _GRACE_S
        while time.monotonic() < deadline and (ids := _marked(mark)):
            time.sleep(0.1)
    return len(left)


def _marked(mark: str) -> list[int]:
    """The ids of processes that carry a mark in their environment."""
    ids, text = [], f"{_MARK}={mark}".encode()
    for entry in Path("/proc").glob("[0-9]*/environ"):
        try:
            if text in entry.read_bytes().split(b"\0"):
                ids.append(int(entry.parent.name))
        except OSError:
            continue  # it has ended, or is somebody else's
    return sorted(ids)


def _signal(ids: Sequence[int], number: int) -> None:
    for id_ in ids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(id_, number)


class SuperLink(FlowerProcess):
    """The meeting point of a federation.

    Args:
        folder: for its state, logs and what Flower keeps.
        host: where it listens.
        port: where it listens; one that is free by default.
        certificates: folder with ca.pem, server.pem and server.key; without it nothing
            is encrypted and anybody may take part.
        simulates: whether it makes up SuperNodes itself, as Flower's simulation does.
        address: how this machine reaches it, where that is not by host and port.
        mark: as for `FlowerProcess`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        host: str = "127.0.0.1",
        port: int | None = None,
        certificates: Path | None = None,
        simulates: bool = False,
        address: str | None = None,
        mark: str | None = None,
    ) -> None:
        port = port if port is not None else free_port()
        ca = None if certificates is None else certificates / "ca.pem"
        self.link = Link(address if address is not None else f"{host}:{port}", ca)
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "fedloom_superlink"),
            *("--host", host, "--port", str(port)),
            *("--database", str(folder / "superlink.db")),
            "--disable-runtime-dependency-installation",
        ]
        if certificates is None:
            command.append("--insecure")
        else:
            command += ["--ssl-ca-certfile", str(certificates / "ca.pem")]
            command += ["--ssl-certfile", str(certificates / "server.pem")]
            command += ["--ssl-keyfile", str(certificates / "server.key")]
            command.append("--enable-supernode-auth")
        if simulates:
            command.append("--simulation")
        super().__init__(command, folder / "flwr", folder / "superlink.log", mark)

    def wait_until_ready(self, timeout_s: float = 60.0) -> None:
        """Wait until it listens.

        Raises:
            MessageError: It ended, or took too long.
        """
        host, _, port = self.link.address.rpartition(":")
        end = time.monotonic() + timeout_s
        while time.monotonic() < end and self.is_running:
            with contextlib.suppress(OSError):
                where = (host.strip("[]"), int(port))
                socket.create_connection(where, timeout=1.0).close()
                return
            time.sleep(_POLL_S)
        raise MessageError(
            f"{self.link.address}: the SuperLink does not listen. It said:\n"
            f"{self.said()}"
        )


class SuperNode(FlowerProcess):
    """One client's connection to a SuperLink.

    Args:
        link: the SuperLink.
        folder: for logs and what Flower keeps.
        node_config: which client this is; see `fedloom.flower.client_app`.
        key: the client's private key, where the SuperLink asks for one.
        name: of the log file.
        mark: as for `FlowerProcess`.
    """

    def __init__(
        self,
        link: Link,
        folder: Path,
        node_config: Mapping[str, str | int | float | bool],
        *,
        key: Path | None = None,
        name: str = "supernode",
        mark: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        command = [
            *(sys.executable, "-m", "fedloom_supernode"),
            *("--superlink", link.address, "--port", str(free_port())),
            *("--node-config", spell_config(node_config)),
        ]
        if link.ca is None:
            command.append("--insecure")
        else:
            command += ["--root-certificates", str(link.ca)]
        if key is not None:
            command += ["--auth-supernode-private-key", str(key)]
        self._node_config = dict(node_config)
        super().__init__(command, folder / "flwr", folder / f"{name}.log", mark)

    def kill(self) -> None:
        """As for every process; what its worker listened at is removed, too."""
        super().kill()
        if TEAM_HOME not in self._node_config:  # that is another process's
            place = socket_path(self._node_config)
            for file in (place, place.with_suffix(".lock")):
                file.unlink(missing_ok=True)

    @property
    def is_connected(self) -> bool:
        """Whether the SuperLink has taken it in since it was started."""
        return _CONNECTED in self.said()

    @property
    def is_unknown(self) -> bool:
        """Whether the SuperLink does not take its key, or takes it for still there."""
        return _NOT_ACTIVATED in self.said()

    def restart(self) -> None:
        """Start it again, after it has ended."""
        self.kill()
        self._process = self._start()

    def wait_until_connected(self, timeout_s: float = 180.0) -> None:
        """Wait until the SuperLink has taken it in.

        A SuperLink that has not noticed yet that this client was killed refuses it for
        about a minute, in the same words as one that it does not know; so it is
        started again until the time is over.

        Raises:
            MessageError: It was not taken in.
        """
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.is_connected:
                return
            if not self.is_running:
                if not self.is_unknown:
                    break
                time.sleep(_RESTART_S)
                self.restart()
            time.sleep(_POLL_S)
        said = self.said()
        self.kill()
        raise MessageError(
            f"{self.log}: the SuperLink did not take this client in within "
            f"{timeout_s:g} s. Is its key registered, and the CA's certificate the "
            f"right one? It said:\n{said[-2000:]}"
        )


class FlowerCommands:
    """What the `flwr` command line does, at one SuperLink.

    Runs are started by that command. What is asked often, or for every key, is asked
    from here: the command takes seconds to start.

    Args:
        link: the SuperLink.
        home: folder for what Flower keeps; its config is written there.
        simulated: how many SuperNodes a SuperLink that simulates makes up.
    """

    def __init__(self, link: Link, home: Path, *, simulated: int = 0) -> None:
        self.link = link
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        connection: dict[str, Any] = {"address": link.address}
        if link.ca is None:
            connection["insecure"] = True
        else:
            connection["root-certificates"] = str(link.ca.resolve())
        if simulated:
            connection["options"] = {
                "num-supernodes": simulated,
                "backend": {"client-resources": {"num-cpus": 1}},
            }
        table = {"superlink": {"default": CONNECTION, CONNECTION: connection}}
        write_text(home / "config.toml", tomli_w.dumps(table))

    def register(self, public_keys: Mapping[str, Path]) -> int:
        """Admit clients by their public keys; who is admitted already stays so.

        Args:
            public_keys: by the client's name, the file.

        Returns:
            How many were not admitted before.

        Raises:
            ConfigError: A file is no public key that Flower takes, or one that was
                unregistered before.
            MessageError: Flower refuses.
        """
        keys = {read_public_key(path): name for name, path in public_keys.items()}
        with self._control("supernode register") as control:
            nodes = control.ListNodes(ListNodesRequest()).nodes_info
            known = {node.public_key: node.status for node in nodes}
            for key, name in keys.items():
                if known.get(key) == NodeStatus.UNREGISTERED:
                    raise ConfigError(
                        f"{public_keys[name]}: this key was taken out of the folder "
                        "before, and Flower does not admit a key twice. Put the public "
                        "half of a new one in its place: ssh-keygen -t ecdsa -b 384 "
                        "-N '' -f NAME makes one."
                    )
            new = {key: name for key, name in keys.items() if key not in known}
            for key, name in new.items():
                control.RegisterNode(RegisterNodeRequest(public_key=key, name=name))
        return len(new)

    def unregister_others(self, public_keys: Collection[Path]) -> int:
        """Admit nobody any more who was admitted by another key than these.

        Args:
            public_keys: the files of those who stay.

        Returns:
            How many were admitted until now.

        Raises:
            ConfigError: A file is no public key that Flower takes.
            MessageError: Flower refuses.
        """
        keys = {read_public_key(path) for path in public_keys}
        with self._control("supernode unregister") as control:
            others = [
                node.node_id
                for node in control.ListNodes(ListNodesRequest()).nodes_info
                if node.status != NodeStatus.UNREGISTERED
                and node.public_key not in keys
            ]
            for node_id in others:
                control.UnregisterNode(UnregisterNodeRequest(node_id=node_id))
        return len(others)

    def submit(self, app: Path, run_config: Mapping[str, Any]) -> int:
        """Start a run of an app.

        Args:
            app: folder of the app; see `fedloom.flower.app`.
            run_config: what its run config is to be.

        Returns:
            Flower's id of the run.

        Raises:
            MessageError: Flower refuses.
        """
        file = self.home / f"run-config-{secrets.token_hex(4)}.toml"
        write_text(file, tomli_w.dumps(dict(run_config)))
        try:
            table = self._run("run", str(app), CONNECTION, "--run-config", str(file))
        finally:
            file.unlink()
        return int(table["run-id"])

    def status(self, run: int) -> str:
        """What Flower says of a run, such as "running" or "finished:completed"."""
        with self._control("list") as control:
            runs = control.ListRuns(ListRunsRequest(run_id=run)).run_dict
        status = runs[run].status
        return ":".join(filter(None, (status.status, status.sub_status)))

    def output(self, run: int) -> str:
        """What the server app of a run has printed."""
        with self._control("log") as control:
            lines = control.StreamLogs(StreamLogsRequest(run_id=run))
            output = next((line.log_output for line in lines), "")
            return without_tracebacks(str(output))

    @contextlib.contextmanager
    def _control(self, what: str) -> Iterator[ControlHttpClient]:
        """A connection to what starts runs and admits keys."""
        ca = self.link.ca
        control = ControlHttpClient.from_server_address(
            server_address=self.link.address,
            insecure=ca is None,
            root_certificates=None if ca is None else ca.read_bytes(),
            interceptors=[RuntimeVersionHttpInterceptor(component_name="flwr CLI")],
        )
        try:
            yield control
        except httpx.HTTPStatusError as error:
            said = error.response.text or str(error)
            raise MessageError(f"flwr {what} failed: {said}") from error
        except httpx.HTTPError as error:
            raise MessageError(f"flwr {what} failed: {error}") from error
        finally:
            control.close()

    def wait(self, run: int, timeout_s: float) -> None:
        """Wait until a run is finished.

        Raises:
            MessageError: It failed or was stopped, or took too long.
        """
        end, status = time.monotonic() + timeout_s, ""
        while time.monotonic() < end:
            status = self.status(run)
            if status.startswith("finished"):
                break
            time.sleep(_STATUS_S)
        if status != "finished:completed":
            raise MessageError(
                f"run {run}: {status or 'unknown'}. Its server said:\n"
                f"{self.output(run)[-4000:]}"
            )

    def _run(self, *arguments: str) -> dict[str, Any]:
        """What a command of `flwr` answers."""
        answer = subprocess.run(
            [program("flwr"), *arguments, "--format", "json"],
            env=_environment(self.home),
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=120,
        )
        try:
            table: Any = json.loads(answer.stdout)
        except ValueError:
            table = {}
        if answer.returncode or not table.get("success"):
            said = table.get("error-message") or answer.stdout + answer.stderr
            said = without_tracebacks(said)
            raise MessageError(f"flwr {' '.join(arguments[:2])} failed: {said.strip()}")
        return dict(table)


def program(name: str) -> str:
    """Where a program of Flower's lies: beside this Python, or on the path.

    Raises:
        ConfigError: It is not installed.
    """
    beside = Path(sys.executable).parent / name
    path = str(beside) if beside.exists() else shutil.which(name)
    if path is None:
        raise ConfigError(
            f"{name} is not installed. Install it with: pip install 'fedloom[flower]'"
        )
    return path


def read_public_key(path: Path) -> bytes:
    """A client's public key as Flower has it.

    Raises:
        ConfigError: The file is something else.
    """
    try:
        key = load_ssh_public_key(path.read_bytes())
        if not isinstance(key, ec.EllipticCurvePublicKey) or not uses_nist_ec_curve(
            key
        ):
            raise ValueError(f"it is a {type(key).__name__}")
    except (OSError, ValueError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{path}: expected the public half of a client's ECDSA key ({error}). "
            "ssh-keygen -t ecdsa -b 384 -N '' -f NAME makes one."
        ) from error
    return public_key_to_bytes(key)


def spell_config(table: Mapping[str, str | int | float | bool]) -> str:
    """A node config as Flower reads it: key=value, values as in TOML."""
    values = {key: _spell_value(value) for key, value in table.items()}
    return " ".join(f"{key}={value}" for key, value in values.items())


def _spell_value(value: str | int | float | bool) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    # To Flower a text ends at the next quotation mark, whatever stands before it.
    return '"' + "".join(map(_spell_character, value)) + '"'


def _spell_character(character: str) -> str:
    is_plain = character.isprintable() and character not in '"\\'
    return character if is_plain else f"\\U{ord(character):08x}"


def free_port() -> int:
    """A port of this machine that nobody listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
    return port


def _environment(home: Path) -> dict[str, str]:
    """Of a process of Flower's: its programs on the path, nothing told to Flower.

    Its answers are read by us, so they have no colours, which a notebook asks for.
    """
    beside = str(Path(sys.executable).parent)
    return {
        **{name: text for name, text in os.environ.items() if name != "FORCE_COLOR"},
        "PATH": f"{beside}{os.pathsep}{os.environ.get('PATH', '')}",
        "FLWR_HOME": str(home.resolve()),
        "FLWR_TELEMETRY_ENABLED": "0",
    }
