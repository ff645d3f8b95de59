"""One client of a federation: its SuperNode, started, watched and ended."""

from __future__ import annotations

import shlex
import shutil
import socket
import ssl
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
)

from fedloom.config import parse, read_toml
from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import (
    ConfigError,
    DataError,
    MessageError,
    error_for,
    shown,
)
from fedloom.core.files import cannot_write, remove
from fedloom.deploy import OwnResults, read_own_results
from fedloom.engine.threads import on_threads
from fedloom.flower.client_app import ASKED, client_node, finish
from fedloom.flower.processes import (
    Link,
    SuperNode,
    end_left_behind,
    mark_for,
)
from fedloom.remote.home import Answer, Home
from fedloom.results.lock import hold

NodeConfig = Mapping[str, str | int | float | bool]
"""As `fedloom.flower.client_app` reads it."""

_POLL_S = 0.5
_TRY_S = 5.0
"""Time between two tries to reach a server, or to be taken in by it."""
_PATIENCE_S = 100.0
"""How long a key that the server does not take is tried: a server that has not noticed
yet that this client was killed refuses it for about a minute."""
_UNTOLD_S = 20.0
"""A server that has just been started takes as long to admit its keys."""
_DELIVERY_S = 8.0
"""Time that the last answer needs to reach the server."""
_LOOK_S = 20.0
"""Time between two looks whether the server of a client that waits is still there."""
_UNANSWERED_S = 900.0
"""How long a client that was never taken in waits for a server that has gone."""
_MOST_RESTARTS = 20
_ABOUT = "client.json"


@dataclass(frozen=True)
class Server:
    """Whom a client joins."""

    link: Link
    key: Path | None
    """The client's private key, where the server asks for one."""


def read_address(text: str, where: str = "join") -> str:
    """An address, host and port.

    Args:
        text: what was given.
        where: the command, and the option if it is one's.

    Raises:
        ConfigError: It is something else.
    """
    host, colon, port = text.rpartition(":")
    is_port = port.isascii() and port.isdigit() and 0 < int(port) < 1 << 16
    if "://" in text or not colon or not host or not is_port:
        raise ConfigError(
            f"{where}: expected the server's host and port, such as "
            f"fl.hospital.org:9092, found {shown(text)}."
        )
    return text


def check_key(path: Path) -> None:
    """Refuse a file that is no private key of a client.

    Raises:
        ConfigError: It cannot be read, or is something else.
    """
    advice = "ssh-keygen -t ecdsa -b 384 -N '' -f NAME makes one."
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"--client-key {path}: cannot be read ({error.strerror})."
        ) from error
    is_ssh = b"OPENSSH PRIVATE KEY" in content
    read = load_ssh_private_key if is_ssh else load_pem_private_key
    try:
        key = read(content, password=None)
    except (ValueError, TypeError) as error:
        what = "its public half" if path.suffix == ".pub" else f"{error}"
        raise ConfigError(
            f"--client-key {path}: expected a private key without a password, found "
            f"something else ({what}). {advice}"
        ) from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise ConfigError(
            f"--client-key {path}: expected an ECDSA key, found {type(key).__name__}. "
            f"{advice}"
        )


def check_ca(path: Path) -> None:
    """Refuse a file that is no certificate.

    Raises:
        ConfigError: It cannot be read, or is something else.
    """
    try:
        x509.load_pem_x509_certificate(path.read_bytes())
    except OSError as error:
        raise ConfigError(f"--ca {path}: cannot be read ({error.strerror}).") from error
    except ValueError as error:
        raise ConfigError(
            f"--ca {path}: expected the certificate of the authority that vouches for "
            f"the server, as PEM ({error})."
        ) from error


class UnknownHostError(MessageError):
    """No machine goes by the server's name, at least not now."""


def is_there(link: Link) -> bool:
    """Whether a server listens, and is the one that is expected.

    Raises:
        UnknownHostError: Nobody knows the host.
        MessageError: It is another one, or encrypts and should not, or the reverse.
    """
    host, _, port = link.address.rpartition(":")
    host = host.strip("[]")
    context = ssl.create_default_context(cafile=link.ca)
    if link.ca is None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        with (
            socket.create_connection((host, int(port)), timeout=10.0) as plain,
            context.wrap_socket(plain, server_hostname=host),
        ):
            pass
    except ssl.SSLCertVerificationError as error:
        raise MessageError(
            f"{link.address}: {link.ca} does not vouch for this server "
            f"({error.verify_message}). Is the address one that its certificate names, "
            "and the certificate of the authority the one that the server's people "
            "gave you?"
        ) from error
    except ssl.SSLError as error:
        if link.ca is None:
            return True  # it does not encrypt, as was agreed to
        raise MessageError(
            f"{link.address}: the server does not encrypt ({error.reason}). Nothing "
            "was sent. Is the port right?"
        ) from error
    except socket.gaierror as error:
        raise UnknownHostError(
            f"{link.address}: the host is not known ({error.strerror}). Is the name "
            "right, and this machine connected to the network?"
        ) from error
    except OSError:
        return False
    if link.ca is None:
        raise MessageError(
            f"{link.address}: the server encrypts, and --insecure does not. Give "
            "--ca and --client-key instead."
        )
    return True


@contextmanager
def claimed_home(home: Path, node_config: NodeConfig) -> Iterator[Home]:
    """A client's folder, held: a new one, or that of the same client.

    What an earlier process has left running, since it was killed, is ended first. A new
    folder into which nothing came until an error is removed.

    Raises:
        ConfigError: It is another client's, or another process uses it.
        DataError: It cannot be written.
    """
    if home.exists() and not home.is_dir():
        raise ConfigError(f"--home {home}: expected a folder, found a file.")
    who = _who(node_config)
    file = home / _ABOUT
    if file.is_file():
        before = read_checked_json(file, "whose folder this is", ("node",))["node"]
        if _who(before) != who:
            raise ConfigError(
                f"--home {home}: is the folder of {_who(before)}, and this is {who}. "
                "Give each client a folder of its own."
            )
    elif home.is_dir() and any(p for p in home.iterdir() if p.name != ".lock"):
        raise ConfigError(
            f"--home {home}: is not empty, and not the folder of a client. Name a new "
            "one."
        )
    is_new = not home.exists()
    try:
        home.mkdir(mode=0o700, parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(home, error) from error
    try:
        with hold(home / ".lock"):
            end_left_behind(mark_for(home))
            write_checked_json(file, {"node": dict(node_config)})
            yield Home(home)
    except BaseException:
        if is_new and {path.name for path in home.iterdir()} <= {".lock", _ABOUT}:
            shutil.rmtree(home)
        raise


def _who(node_config: NodeConfig) -> str:
    if "name" in node_config:
        return f"client {node_config['name']}"
    return f"client {node_config.get('client')} of the run's own data"


def join(
    server: Server, home: Home, node_config: NodeConfig, tell: Callable[[str], None]
) -> OwnResults:
    """Take part in a run until its end is told.

    Args:
        server: whom to join.
        home: the client's folder, claimed.
        node_config: which client this is.
        tell: is given what happens, a line each.

    Returns:
        What the client has of the run; of its last one, if that is over and there is
        no server.

    Raises:
        MessageError: The server is another one, or does not take this client in.
        FedloomError: What else keeps it from taking part.
    """
    began = time.time()
    last = next(reversed(home.runs()), None)
    if last is not None and not _answers(server.link):
        results = read_own_results(home, last) if home.end_of(last) else None
        if results is not None and not results.exit_code:
            tell(f"Nobody answers at {server.link.address}: the run {last} is over.")
            return results
        tell(
            f"If the run {last} is over, `fedloom leave "
            f"{shlex.quote(str(home.path))}` makes this client's model and report "
            "without the server."
        )
    _wait_for_server(server.link, tell, is_known=last is not None)
    asked = home.path / ASKED
    write_checked_json(asked, {"run": None})
    node = SuperNode(
        server.link,
        home.path / "flower",
        node_config,
        key=server.key,
        mark=mark_for(home.path),
    )
    connection = Connection(node, server, tell)
    follower = _Follower(home, began, tell)
    try:
        while True:
            connection.asked = follower.asked
            connection.look()
            results = follower.look()
            if results is not None:
                return results
            time.sleep(_POLL_S)
    finally:
        node.end()
        remove(asked)


def _answers(link: Link) -> bool:
    """Whether a server is there, be its host not known for the moment."""
    try:
        return is_there(link)
    except UnknownHostError:
        return False


def _wait_for_server(
    link: Link, tell: Callable[[str], None], *, is_known: bool
) -> None:
    """Wait until the server answers.

    Args:
        link: where it is.
        tell: is given what happens.
        is_known: whether it was there before, so that its name must be right.
    """
    has_told = False
    while not (_answers(link) if is_known else is_there(link)):
        if not has_told:
            tell(f"Nobody answers at {link.address} yet. Waiting for the server.")
            has_told = True
        time.sleep(_TRY_S)


class Connection:
    """Keeps a SuperNode connected.

    Args:
        node: the SuperNode, started.
        server: whom it is connected to.
        tell: is given what happens, a line each.
    """

    def __init__(
        self, node: SuperNode, server: Server, tell: Callable[[str], None]
    ) -> None:
        self.asked: str | None = None
        """The run that this client has asked to be taken into, and has not been."""
        self._node = node
        self._server = server
        self._tell = tell
        self._is_connected = False
        self._refused_since: float | None = None
        self._has_told = False
        self._restarts = 0
        self._looked = time.monotonic()
        self._lost_since: float | None = None

    def look(self) -> None:
        """Say when it is connected or not, and start it again if it has ended.

        Raises:
            MessageError: The server is another one, or refuses the key for good, or
                has been gone for long and never took this client in.
        """
        node = self._node
        if not self._is_connected and node.is_connected:
            self._is_connected, self._refused_since, self._restarts = True, None, 0
            self._tell(f"Connected to {self._server.link.address}.")
        if node.is_running:
            if self._is_connected and time.monotonic() - self._looked > _LOOK_S:
                self._looked = time.monotonic()
                self._is_lost()
            return
        self._is_connected = False
        if node.is_unknown:
            self._bear_refusal()
        else:
            self._restarts += 1
            if self._restarts > _MOST_RESTARTS:
                raise MessageError(
                    f"{node.log}: the connection ended {self._restarts} times in a "
                    f"row. It said:\n{node.said()[-2000:]}"
                )
            self._tell("The connection has ended. Connecting again.")
        time.sleep(_TRY_S)
        while self._is_lost():
            time.sleep(_TRY_S)
        node.restart()

    def _is_lost(self) -> bool:
        """Whether the server has gone, and say so, or that it is back."""
        address, now = self._server.link.address, time.monotonic()
        if _answers(self._server.link):
            if self._lost_since is not None:
                self._tell("The server is back.")
            self._lost_since = None
            return False
        if self._lost_since is None:
            self._lost_since = now
            self._tell(
                f"Nobody answers at {address} any more. Waiting for the server to come "
                "back."
            )
        if self.asked is not None and now - self._lost_since > _UNANSWERED_S:
            raise MessageError(
                f"{address}: nobody has answered for {_UNANSWERED_S / 60:g} minutes, "
                f"and the run {self.asked} had not taken this client in. It is over, "
                "or was given up. The same command joins when a server is there again."
            )
        return True

    def _bear_refusal(self) -> None:
        now = time.monotonic()
        if self._refused_since is None:
            self._refused_since, self._has_told = now, False
        waited = now - self._refused_since
        if waited > _UNTOLD_S and not self._has_told:
            self._has_told = True
            self._tell(
                "The server does not take this client's key: it does not know it, "
                "another client uses it, or the server has not noticed yet that an "
                f"earlier process of this client has ended. Trying for {_PATIENCE_S:g} "
                "s."
            )
        if waited > _PATIENCE_S:
            key = self._server.key
            what = f"the key {key}" if key is not None else "a client without a key"
            raise MessageError(
                f"{self._server.link.address}: the server refuses {what}. If "
                "another client uses it, on this machine or elsewhere, end that one or "
                "give this one a key of its own. If the server's people do not have "
                "its public half (.pub), send it to them; they put it beside their "
                "certificate and start the server again."
            )


class _Follower:
    """Says what a client answers, and knows when it is over."""

    def __init__(self, home: Home, began: float, tell: Callable[[str], None]) -> None:
        self._home = home
        self._began = began
        self._tell = tell
        self.asked: str | None = None
        """The run that this client has asked to be taken into, and has not been."""
        self._seen: dict[str, int] = {}
        self._sizes: dict[Path, int] = {}
        self._ended: tuple[str, float] | None = None

    def look(self) -> OwnResults | None:
        """What the client has of the run, once it is over and all is made.

        Raises:
            FedloomError: The client was refused, or its data cannot be used.
        """
        for file in sorted(self._home.path.glob("*/messages.jsonl")):
            size = file.stat().st_size
            if self._sizes.get(file) == size:
                continue
            self._sizes[file] = size
            run = file.parent.name
            answers = self._home.answers(run)
            for answer in answers[self._seen.get(run, 0) :]:
                if answer.time >= self._began:
                    self._take(run, answer)
            self._seen[run] = len(answers)
        if self._ended is None:
            return None
        run, at = self._ended
        results = read_own_results(self._home, run)
        if results is None or time.time() - at < _DELIVERY_S:
            return None
        last = self._home.last_request(run)
        if results.exit_code:
            file = self._home.path / run / "results.json"
            if file.stat().st_mtime < at:
                return None  # from before
            raise error_for(results.exit_code, results.sentence)
        is_new = last is not None and results.request == last.content_digest
        return results if is_new else None

    def _take(self, run: str, answer: Answer) -> None:
        if answer.kind == "failed":
            time.sleep(_DELIVERY_S)
            raise error_for(answer.exit_code, answer.text)
        if answer.kind == "refused" and answer.asked == "enrol":
            time.sleep(_DELIVERY_S)
            raise MessageError(answer.text)
        is_question = answer.kind == "enrolled" and run not in self._home.runs()
        self.asked = run if is_question else None
        end = self._home.end_of(run) if answer.asked == "end" else None
        if end is not None:
            if end[1] and not end[0]:
                raise MessageError(f"The server does not take this client in: {end[1]}")
            self._ended = run, answer.time
            self._tell("The run is over. Training alone at home, to compare.")
        elif answer.kind == "enrolled":
            self._ended = None
            self._tell(
                f"Asked to be taken into the run {run}, which begins when all its "
                "clients are there. Who comes after that is not taken in."
            )
        elif answer.kind == "refused":
            self._tell(f"Refused what the server asked for: {answer.text}")
        elif answer.kind == "trained":
            self._tell(f"Round {answer.round + 1}: trained and sent.")


def leave(home: Path, run: str | None = None) -> OwnResults:
    """Make a client's model and report from its home, without the server.

    Args:
        home: the client's folder.
        run: id of the run; the last by default.

    Raises:
        DataError: There is no such folder or run, or no model in it yet.
        ConfigError: Another process uses the folder.
    """
    file = home / _ABOUT
    if not file.is_file():
        what = f"there is no {_ABOUT} in it" if home.is_dir() else "there is none"
        raise DataError(
            f"{home}: expected the folder of a client, and {what}. Name the one that "
            "was the --home of `fedloom join`."
        )
    node_config = read_checked_json(file, "whose folder this is", ("node",))["node"]
    runs = Home(home).runs()
    run = run if run is not None else next(reversed(runs), None)
    if run is None or run not in runs:
        known = ", ".join(runs) or "none"
        raise DataError(f"{home}: there is no run {run or 'yet'}. Known: {known}.")
    settings = home / run / "config.toml"
    config = parse(read_toml(settings), str(settings))
    with claimed_home(home, node_config), on_threads(config.engine.threads):
        node = client_node(config, node_config, {})
        finish(node, run, config)
        results = read_own_results(node.home, run)
    if results is None:
        raise DataError(f"{home}: there is no model of {run}.")
    if results.exit_code:
        raise error_for(results.exit_code, results.sentence)
    return results
