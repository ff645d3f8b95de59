"""The server of a federation: a SuperLink and a run on it, started, watched and ended.

What it keeps lies beside the run's directory OUT, in OUT.server:

    run             id of the run, the same when the server is started again
    superlink.db    Flower's state: admitted keys, messages under way
    superlink.log, server.log   what the SuperLink and the run's server said
    outcome.json    how the run ended
    team/, above/   of a team's server: what the global one asked for; its SuperNode
"""

from __future__ import annotations

import re
import secrets
import shutil
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cryptography import x509

from fedloom.core.digests import read_checked_json
from fedloom.core.errors import ConfigError, DataError, FedloomError, MessageError
from fedloom.core.files import atomic_write, cannot_write, remove, write_text
from fedloom.flower.app import write_app
from fedloom.flower.certificates import (
    CA,
    SERVER,
    SERVER_KEY,
    check_server_certificate,
)
from fedloom.flower.joining import Connection, Server, is_there
from fedloom.flower.processes import (
    FlowerCommands,
    SuperLink,
    SuperNode,
    end_left_behind,
    mark_for,
    read_public_key,
)
from fedloom.flower.server_app import OUTCOME, SERVER_LOG
from fedloom.results.lock import hold
from fedloom_flower_client import TEAM_HOME

_STATUS_S = 30.0
"""Time between two looks whether Flower still knows of a run that says nothing."""
_ABOVE = "above"
"""Where the SuperNode of a team's server keeps its files."""
_NOTHING = {".lock", ".run.lock"}
"""What lies in the directory of a run that has not begun."""
_POLL_S = 0.5
_TRY_S = 5.0
"""Time between two tries to reach a global server."""
_GRACE_S = 10.0
"""Longest that ending waits for a look at the global server."""
_DELIVERY_S = 8.0
"""Time that a team's last answer needs to reach the global server."""


@dataclass(frozen=True)
class Outcome:
    """How a run ended."""

    exit_code: int
    error: str
    """Why it could not go on; empty if it came to its last round."""
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Team:
    """What makes a server that of a team."""

    name: str
    above: Server
    """The global server, and the key by which the team takes part there."""


@dataclass(frozen=True, kw_only=True)
class ServerSettings:
    """What a server is started with."""

    config: str
    """The settings of the run, as TOML."""
    clients: int
    out: Path
    host: str
    port: int
    certificates: Path | None
    """Folder with ca.pem, server.pem, server.key and the *.pub of the clients; None
    means no encryption, and anybody may take part."""
    policy: Mapping[str, float] = field(default_factory=dict)
    """As in the run config of `fedloom.flower.server_app`."""
    of_teams: bool = False
    """Whether the clients are team servers."""
    team: Team | None = None
    """Which team the server is of, if it is a team's."""
    run: str | None = None
    """Id of the run; drawn by default. Servers of one run in several tiers share it."""

    @property
    def team_home(self) -> Path:
        """The folder in which a team's server keeps what the global one asked for."""
        return self.state / "team"

    @property
    def state(self) -> Path:
        """The folder for what the server keeps."""
        return self.out.with_name(f"{self.out.name}.server")

    @property
    def keys(self) -> list[Path]:
        """The public keys of the clients."""
        return sorted(self.certificates.glob("*.pub")) if self.certificates else []


def check_certificates(settings: ServerSettings) -> None:
    """Refuse a folder that a server cannot be started with.

    Raises:
        ConfigError: A file is missing or no key, or the server's do not go together,
            or there are fewer keys than clients.
    """
    folder = settings.certificates
    if folder is None:
        return
    for name in (CA, SERVER, SERVER_KEY):
        if not (folder / name).is_file():
            raise ConfigError(
                f"--tls {folder}: expected {CA}, {SERVER} and {SERVER_KEY} in it, and "
                f"there is no {name}. `fedloom certs {folder}` makes them for a trial."
            )
    check_server_certificate(folder)
    for key in settings.keys:
        read_public_key(key)  # or it is refused
    if len(settings.keys) < settings.clients:
        raise ConfigError(
            f"--tls {folder}: {settings.clients} clients are to take part, and there "
            f"are the public keys (*.pub) of {len(settings.keys)}. Put those of the "
            "others beside them."
        )


def own_address(settings: ServerSettings) -> str:
    """How this machine reaches its own server, by a name that the certificate has.

    Raises:
        ConfigError: The certificate cannot be read, or names nobody.
    """
    here = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(settings.host, settings.host)
    names = [here, "localhost"]
    if settings.certificates is not None:
        file = settings.certificates / SERVER
        try:
            certificate = x509.load_pem_x509_certificate(file.read_bytes())
            extension = certificate.extensions.get_extension_for_class(
                x509.SubjectAlternativeName
            )
        except (OSError, ValueError, x509.ExtensionNotFound) as error:
            raise ConfigError(
                f"{file}: expected a certificate with the names of the server "
                f"({error})."
            ) from error
        known = [str(name.value) for name in extension.value]
        names = [name for name in names if name in known] or known
        if not names:
            raise ConfigError(f"{file}: the certificate names no host.")
    host = names[0]
    return f"[{host}]:{settings.port}" if ":" in host else f"{host}:{settings.port}"


class RunningServer:
    """A SuperLink and the run on it.

    Args:
        settings: what it is started with.
        run: id of the run.
    """

    def __init__(self, settings: ServerSettings, run: str) -> None:
        self.settings = settings
        self.run = run
        self.keys_removed = 0
        """How many keys were admitted before, and are not in the folder any more."""
        self._above: _Above | None = None
        self._log_at = 0
        self._looked = time.monotonic()
        state = settings.state
        log = state / SERVER_LOG
        if log.is_file():
            self._log_at = log.stat().st_size
        remove(state / OUTCOME)
        self.link = SuperLink(
            state,
            host=settings.host,
            port=settings.port,
            certificates=settings.certificates,
            address=own_address(settings),
            mark=mark_for(state),
        )

    def start(self) -> None:
        """Wait until it listens, admit the clients' keys alone, and start the run.

        Raises:
            MessageError: Flower refuses.
        """
        settings, state = self.settings, self.settings.state
        self.link.wait_until_ready()
        self._flwr = FlowerCommands(self.link.link, state / "flwr")
        if settings.certificates is not None:
            self.keys_removed = self._flwr.unregister_others(settings.keys)
        self._flwr.register({key.stem: key for key in settings.keys})
        run_config: dict[str, Any] = {
            "config": settings.config,
            "clients": settings.clients,
            "out": str(settings.out.resolve()),
            "run": self.run,
            "state": str(state.resolve()),
            "tier": "global" if settings.of_teams else "only",
            **settings.policy,
        }
        if settings.team is not None:
            home = str(settings.team_home.resolve())
            run_config |= {"tier": "team", "team": settings.team.name, TEAM_HOME: home}
        self._id = self._flwr.submit(write_app(state / "app"), run_config)
        if settings.team is not None:
            self._above = _Above(settings.team.above, state, settings.team_home)

    def new_lines(self) -> list[str]:
        """What the run's server has said since this was asked last."""
        lines = self._above.new_lines() if self._above is not None else []
        try:
            with (self.settings.state / SERVER_LOG).open("rb") as file:
                file.seek(self._log_at)
                text, newline, _ = file.read().rpartition(b"\n")
        except OSError:
            return lines
        self._log_at += len(text) + len(newline)
        return [*lines, *text.decode(errors="replace").splitlines()]

    def outcome(self) -> Outcome | None:
        """How the run ended; None if it goes on.

        Raises:
            MessageError: A process has ended without a word, or the global server does
                not take this team in.
        """
        if self._above is not None and self._above.error is not None:
            raise self._above.error
        file = self.settings.state / OUTCOME
        if file.is_file():
            keys = ("exit_code", "error", "notes")
            table = read_checked_json(file, "how a run ended", keys)
            return Outcome(*(table[key] for key in keys))
        if not self.link.is_running:
            raise MessageError(
                f"{self.link.log}: the SuperLink has ended. It said:\n"
                f"{self.link.said()[-2000:]}"
            )
        if time.monotonic() - self._looked > _STATUS_S:
            self._looked = time.monotonic()
            status = self._flwr.status(self._id)
            if status.startswith("finished") and not file.is_file():
                raise MessageError(
                    f"run {self.run}: {status}. Its server said:\n"
                    f"{self._flwr.output(self._id)[-4000:]}"
                )
        return None

    def end(self) -> None:
        """End all processes."""
        if self._above is not None:
            if (self.settings.state / OUTCOME).is_file():
                time.sleep(_DELIVERY_S)
            self._above.end()
        self.link.end()


class _Above:
    """A team's place at the global server: a SuperNode that is kept connected.

    Args:
        server: the global server.
        state: folder for what the SuperNode keeps.
        home: the team server's own folder.
    """

    def __init__(self, server: Server, state: Path, home: Path) -> None:
        self.error: FedloomError | None = None
        """Why the team cannot take part."""
        self._server = server
        self._state = state
        self._node_config = {TEAM_HOME: str(home.resolve())}
        self._lines: deque[str] = deque()
        self._node: SuperNode | None = None
        self._is_ending = threading.Event()
        # A server that is not there yet is waited for, while clients enrol.
        self._thread = threading.Thread(target=self._keep_connected, daemon=True)
        self._thread.start()

    def new_lines(self) -> list[str]:
        """What has happened since this was asked last."""
        return [self._lines.popleft() for _ in range(len(self._lines))]

    def end(self) -> None:
        """End the SuperNode."""
        self._is_ending.set()
        self._thread.join(_GRACE_S)
        if self._node is not None:
            self._node.end()

    def _keep_connected(self) -> None:
        link = self._server.link
        try:
            while not is_there(link) and not self._is_ending.wait(_TRY_S):
                pass
            if self._is_ending.is_set():
                return
            self._node = SuperNode(
                link,
                self._state / _ABOVE,
                self._node_config,
                key=self._server.key,
                mark=mark_for(self._state / _ABOVE),
            )
            connection = Connection(self._node, self._server, self._lines.append)
            while not self._is_ending.wait(_POLL_S):
                connection.look()
        except FedloomError as error:
            self.error = error


@contextmanager
def running_server(settings: ServerSettings) -> Iterator[RunningServer]:
    """A server that runs until the end of the block, however that comes.

    What an earlier one has left running, since it was killed, is ended first. New
    folders are removed in the end if nobody came, unless Flower's logs say why.

    Raises:
        ConfigError: Another process serves this run, or the port is taken.
        DataError: The folder for what it keeps cannot be written.
    """
    state, out = settings.state, settings.out
    new = [folder for folder in (state, out) if not folder.exists()]
    # Keys and messages of others are for nobody else; who views OUT need not wait.
    for folder, mode in ((state, 0o700), (out, 0o777)):
        try:
            folder.mkdir(mode=mode, parents=True, exist_ok=True)
        except OSError as error:
            raise cannot_write(folder, error) from error
    try:
        with hold(state / ".lock"):
            state.chmod(0o700)  # it may be there from before
            for folder in (state, state / _ABOVE):
                end_left_behind(mark_for(folder))
            _refuse_taken(settings)
            server = RunningServer(settings, _run_id(settings))
            try:
                yield server
            finally:
                server.end()
    finally:
        is_for_logs = isinstance(sys.exception(), MessageError)
        if not is_for_logs and _is_unbegun(settings):
            for folder in new:
                shutil.rmtree(folder)


def _is_unbegun(settings: ServerSettings) -> bool:
    """Whether nobody has come to a server: no client, and none that was refused."""
    log = settings.state / SERVER_LOG
    has_lines = log.is_file() and log.stat().st_size > 0
    # Team servers may have been started with the id of the run.
    is_awaited = settings.of_teams and (settings.state / "run").is_file()
    is_empty = {path.name for path in settings.out.iterdir()} <= _NOTHING
    return is_empty and not has_lines and not is_awaited


def _refuse_taken(settings: ServerSettings) -> None:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    try:
        with socket.socket(family) as listener:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((settings.host, settings.port))
    except OSError as error:
        raise ConfigError(
            f"serve: cannot listen on {settings.host}, port {settings.port} "
            f"({error.strerror}). Choose another --port or --host."
        ) from error


def _run_id(settings: ServerSettings) -> str:
    """The id of the run, drawn or taken when the server is first started."""
    file = settings.state / "run"
    if not file.is_file():
        name = re.sub(r"[^a-z0-9]+", "-", settings.out.name.lower()).strip("-")[:40]
        run = settings.run or f"{name or 'run'}-{secrets.token_hex(4)}"
        with atomic_write(file, lasting=True) as part:
            write_text(part, f"{run}\n")
    try:
        run = file.read_text(encoding="utf-8").strip()
    except OSError as error:
        raise DataError(f"{file}: cannot be read ({error.strerror}).") from error
    if settings.run not in (None, run):
        raise ConfigError(
            f"{settings.out}: is for the run {run}, found --run {settings.run}. Give "
            "that one, or choose another --out."
        )
    return run
