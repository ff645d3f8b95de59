"""What `fedloom serve`, `join` and `leave` refuse before anything is started."""

from __future__ import annotations

import asyncio
import shutil
import socket
import ssl
import subprocess
import sys
import tempfile
import threading
import time
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

pytest.importorskip("flwr")

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    PrivateFormat,
    PublicFormat,
)
from driver import fedloom, refused

import fedloom_superlink
from fedloom.commands import server_view
from fedloom.config import parse, to_toml
from fedloom.core.digests import write_checked_json
from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.deploy import own_results, serve
from fedloom.flower import joining, processes, serving
from fedloom.flower.certificates import make_client_key, make_server_certificate
from fedloom.flower.client_app import ASKED, answer_records, client_node
from fedloom.flower.joining import claimed_home, is_there
from fedloom.flower.processes import Link, free_port
from fedloom.flower.records import to_records
from fedloom.flower.serving import ServerSettings, own_address, running_server
from fedloom.remote import InProcessChannel, Policy, WireMessage, greeting_for
from fedloom.remote.home import Home
from fedloom.server import checkpoint
from fedloom.server.checkpoint import Position
from fedloom_flower_client import socket_path
from fedloom_superlink import is_allowed

CONFIG = 'algorithm = { name = "ditto" }\ndata = { name = "file", path = "own" }\n'


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    make_server_certificate(folder, ["localhost", "127.0.0.1"])
    make_client_key(folder, "client-1")
    return folder


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    (tmp_path / "my.csv").write_text("a,y\n1,0\n2,1\n")
    return tmp_path / "my.csv"


def test_mistakes_of_a_server_are_named_before_anything_starts(
    keys: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(CONFIG)
    command: list[Any] = ["serve", file, "--out", out]
    assert "--tls DIR" in refused(*command, "--clients", 1)
    assert "not both" in refused(*command, "--clients", 1, "--tls", keys, "--insecure")
    assert "between 1 and" in refused(*command, "--clients", 0, "--tls", keys)
    assert "keys (*.pub) of 1" in refused(*command, "--clients", 2, "--tls", keys)
    assert "no ca.pem" in refused(*command, "--clients", 1, "--tls", tmp_path)
    odd = tmp_path / "odd"
    shutil.copytree(keys, odd)
    (odd / "client-2.pub").write_text("ssh-ed25519 AAAA")
    assert "client-2.pub: expected the public half" in refused(
        *command, "--clients", 1, "--tls", odd
    )
    one = [*command, "--clients", 1, "--tls", keys]
    assert "--port" in refused(*one, "--port", 70_000)
    assert "serve: --quorum must be" in refused(*one, "--quorum", 2)
    assert "serve: --end-s must be" in refused(*one, "--end-s", -1)
    assert "learning rate" in refused(*one, "--set", "algorithm.lr=auto")
    assert "unknown key" in refused(*one, "--set", "algorithm.speed=1")
    assert "found a file of samples" in refused("serve", "my.csv", *one[2:])
    assert not out.exists()
    assert not out.with_name("out.server").exists()


def test_a_servers_files_that_do_not_go_together_are_named(
    keys: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(CONFIG)
    other = tmp_path / "other"
    make_server_certificate(other, ["localhost"])
    for wrong, message in (
        ("server.key", "server.key: is not the key of the certificate"),
        ("ca.pem", "ca.pem: does not vouch for"),
    ):
        tls = tmp_path / wrong
        shutil.copytree(keys, tls)
        shutil.copy(other / wrong, tls)
        command = ["serve", file, "--out", out, "--clients", 1, "--tls", tls]
        said = refused(*command)
        assert message in said
        assert str(tls / "server.pem") in said
        assert fedloom(*command).exception.exit_code == 2
        (tls / wrong).write_text("something else")
        assert f"{wrong}: expected" in refused(*command)
    assert not out.with_name("out.server").exists()


def test_what_so_many_clients_cannot_have_is_refused_before_a_server_listens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is told to join a run that is refused when all have."""
    started: list[Any] = []
    monkeypatch.setattr(serving, "running_server", started.append)
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(CONFIG)
    serve = ["serve", file, "--out", out, "--insecure", "--clients"]
    krum = ["--set", "robust.rule=krum", "--set", "robust.attackers=3"]
    secure = ["--set", "secure.threshold=0.7"]
    for words, reason in (
        ([8, *krum, *secure], "krum compares what single clients send"),
        ([6, *krum], "krum needs 2 f + 3 = 9 clients against f = 3 attackers, found 6"),
        ([6, *secure, "--set", "secure.bits=30"], "6 clients with bits = 30 come to"),
        ([2, *secure], "a sum of 2 clients may be opened for 2"),
        (
            [6, *secure, "--set", "sampling.rate=0.4"],
            "a sum of 2 clients may be opened for 2",
        ),
        (
            [
                *(6, *secure, "--set", "privacy.noise=0.0"),
                *("--set", "privacy.most_samples=none"),
                *("--set", "privacy.clip=none"),
            ],
            "Set most_samples in [privacy]",
        ),
        (
            [
                *(6, *secure, "--set", "secure.bits=10"),
                *("--set", "privacy.at=clients", "--set", "privacy.delta=1e-5"),
                *("--set", "privacy.least_clients=4"),
            ],
            "each must stay below 511 (bits = 10). Lower bits in [privacy]",
        ),
    ):
        assert reason in " ".join(refused(*serve, *words).split())
    assert not started
    assert not out.exists()


def test_mistakes_of_a_teams_server_are_named_before_anything_starts(
    keys: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "run.toml", tmp_path / "out"
    file.write_text(CONFIG)
    serve = ["serve", file, "--out", out, "--clients", 1, "--tls", keys]
    assert "ditto: has no team servers" in refused(*serve, "--of-teams")
    file.write_text(CONFIG.replace("ditto", "pfedmt"))
    assert "go with --team" in refused(*serve, "--above", "host:1")
    team = [*serve, "--team", "north"]
    assert "--above HOST:PORT is missing" in refused(*team)
    assert "--run ID is missing" in refused(*team, "--above", "host:1")
    team += ["--above", "host:1", "--run", "tiers"]
    assert "not both" in refused(*team, "--of-teams")
    assert "--ca ca.pem" in refused(*team)
    proof = ["--ca", keys / "ca.pem", "--client-key", keys / "client-1"]
    assert "small letters" in refused(*team, *proof, "--run", "Two Teams")
    assert "serve: --above: expected the server's host and port" in refused(
        *team, *proof, "--above", "host"
    )
    assert not out.exists()


class Started:
    """What `RunningServer` starts, with nothing behind it."""

    log = Path("log")
    is_running = is_connected = True
    is_unknown = False
    runs: ClassVar[list[dict[str, Any]]] = []
    nodes: ClassVar[list[Any]] = []

    def __init__(self, *given: Any, **_: Any) -> None:
        self.link = Link("here:1", None)
        Started.nodes.append(given)

    def wait_until_ready(self) -> None:
        pass

    def register(self, _: Any) -> None:
        pass

    def unregister_others(self, _: Any) -> int:
        return 2

    def submit(self, _: Path, run_config: dict[str, Any]) -> int:
        Started.runs.append(run_config)
        return 1

    def end(self) -> None:
        pass


def test_a_teams_server_takes_part_at_the_global_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SuperLink", "FlowerCommands", "SuperNode"):
        monkeypatch.setattr(serving, name, Started)
    monkeypatch.setattr(serving, "is_there", lambda _: True)
    above = joining.Server(Link("top:1", None), None)
    own = settings(None, tmp_path / "out", free_port())
    own = replace(own, run="tiers", team=serving.Team("north", above))
    with running_server(own) as server:
        server.start()
        while not (lines := server.new_lines()):
            time.sleep(0.01)
        (own.state / "server.log").write_text("ward has enrolled (1 of 3).\n")
    assert lines == ["Connected to top:1."]
    run_config = Started.runs[-1]
    home = str((tmp_path / "out.server" / "team").resolve())
    expected = {"tier": "team", "team": "north", "team-home": home, "run": "tiers"}
    assert expected.items() <= run_config.items()
    assert Started.nodes[-1][0] == above.link
    assert Started.nodes[-1][2] == {"team-home": home}
    with (
        pytest.raises(ConfigError, match="is for the run tiers, found --run other"),
        running_server(replace(own, run="other")),
    ):
        pass


class Control:
    """Who is admitted, as Flower keeps it."""

    def __init__(self) -> None:
        self.nodes: list[Any] = []

    def ListNodes(self, _: Any) -> Any:
        return SimpleNamespace(nodes_info=self.nodes)

    def RegisterNode(self, request: Any) -> None:
        self.nodes.append(
            SimpleNamespace(
                node_id=len(self.nodes),
                public_key=request.public_key,
                status="registered",
            )
        )

    def UnregisterNode(self, request: Any) -> None:
        self.nodes[request.node_id].status = "unregistered"


def test_a_key_that_is_taken_out_of_the_folder_is_not_admitted_any_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    control = Control()
    monkeypatch.setattr(
        processes.FlowerCommands, "_control", lambda *_: nullcontext(control)
    )
    flwr = processes.FlowerCommands(Link("here:1", None), tmp_path / "flwr")
    old, new = (make_client_key(tmp_path, name)[1] for name in ("old", "new"))
    assert flwr.register({"old": old}) == 1
    assert flwr.unregister_others([old]) == 0
    assert flwr.unregister_others([new]) == 1
    assert flwr.register({"new": new}) == 1
    assert [node.status for node in control.nodes] == ["unregistered", "registered"]
    assert flwr.unregister_others([new]) == 0
    with pytest.raises(ConfigError, match=r"old.pub: this key was taken out"):
        flwr.register({"old": old, "new": new})


@pytest.mark.parametrize("is_secured", [True, False])
def test_a_server_admits_the_keys_of_its_folder_alone(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_secured: bool
) -> None:
    for name in ("SuperLink", "FlowerCommands"):
        monkeypatch.setattr(serving, name, Started)
    own = settings(keys if is_secured else None, tmp_path / "out", free_port())
    with running_server(own) as server:
        server.start()
    assert server.keys_removed == (2 if is_secured else 0)


def test_mistakes_of_a_client_are_named_before_anything_starts(
    keys: Path, samples: Path, tmp_path: Path
) -> None:
    home = tmp_path / "home"
    key, ca = keys / "client-1", keys / "ca.pem"
    proof: list[Any] = ["--client-key", key, "--ca", ca]
    own: list[Any] = ["--data", samples, "--name", "ward", "--home", home]
    join = ["join", "localhost:9092"]
    assert "host and port" in refused("join", "localhost", *own, *proof)
    assert "host and port" in refused("join", "https://host:1", *own, *proof)
    assert "no such file" in refused(
        *join, "--data", "no.csv", "--name", "a", "--home", home, *proof
    )
    assert ".parquet" in refused(
        *join, "--data", key, "--name", "a", "--home", home, *proof
    )
    assert "--name must say what this client is called" in (
        nameless := refused(*join, "--data", samples, "--home", home, *proof)
    )
    assert nameless.endswith("found nothing.")
    assert "--data FILE" in refused(*join, "--home", home, *proof)
    assert "go with --data" in refused(
        *join, "--client", "1", "--team", "1", "--home", home, *proof
    )
    assert "--team" in refused(*join, *own, *proof, "--team", "-1")
    assert "--ca ca.pem" in refused(*join, *own)
    assert "not both" in refused(*join, *own, *proof, "--insecure")
    assert "--client-key KEY is missing" in refused(*join, *own, "--ca", ca)
    assert "cannot be read" in refused(
        *join, *own, "--ca", ca, "--client-key", tmp_path / "none"
    )
    assert "its public half" in refused(
        *join, *own, "--ca", ca, "--client-key", keys / "client-1.pub"
    )
    assert "as PEM" in refused(*join, *own, "--ca", samples, "--client-key", key)
    assert "[data] or [split]" in refused(*join, *own, *proof, "--set", "rounds=3")
    assert "section.key=value" in refused(*join, *own, *proof, "--set", "data")
    assert not home.exists()
    assert "there is no client.json in it. Name the one" in refused("leave", tmp_path)
    assert "there is none. Name the one" in refused("leave", tmp_path / "nope")


def test_keys_that_no_secure_sum_could_begin_with_are_named_before_anything_starts(
    keys: Path, samples: Path, tmp_path: Path
) -> None:
    home, short = tmp_path / "home", tmp_path / "short"
    make_short_key(short)
    own: list[Any] = ["--data", samples, "--name", "ward", "--home", home]
    join = ["join", "localhost:9092", *own]
    ca = ["--ca", keys / "ca.pem"]
    said = refused(*join, *ca, "--client-key", short / "client", "--secure", 3)
    assert f"{short / 'client'}: secure sums need an ECDSA key on P-384" in said
    proof = [*ca, "--client-key", keys / "client-1"]
    said = refused(*join, *proof, "--peers", short)
    assert "client.pub: expected a client's public key on P-384" in said
    others = tmp_path / "others"
    make_client_key(others, "client-2")
    said = refused(*join, *proof, "--peers", others, "--secure", 3)
    assert f"join --peers {others} --secure 3: " in said
    assert "this client's among them, found 1 without it" in said
    assert f"ssh-keygen -y -f {keys / 'client-1'}" in said
    said = refused(*join, "--insecure", "--peers", keys)
    assert "--peers" in said
    assert "goes with --client-key" in said
    assert not home.exists()


def make_short_key(folder: Path) -> None:
    """A key on another curve, which a server takes and no secure sum does."""
    key = ec.generate_private_key(ec.SECP256R1())
    folder.mkdir()
    (folder / "client").write_bytes(
        key.private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, serialization.NoEncryption()
        )
    )
    (folder / "client.pub").write_bytes(
        key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    )


@pytest.mark.usefixtures("hasty")
def test_a_home_is_one_clients(tmp_path: Path) -> None:
    ward = {"name": "ward", "home": "x"}
    with (
        claimed_home(tmp_path / "home", ward),
        pytest.raises(ConfigError, match="is writing to it"),
        claimed_home(tmp_path / "home", ward),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="folder of client ward, and this is client"),
        claimed_home(tmp_path / "home", {"name": "other"}),
    ):
        pass
    with (
        pytest.raises(ConfigError, match="is not empty"),
        claimed_home(tmp_path, ward),
    ):
        pass


@contextmanager
def listening(context: ssl.SSLContext | None) -> Iterator[str]:
    """Somebody who listens, encrypted or not."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                    with connection:
                        if context is None:
                            connection.recv(10)
                            connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
                        else:
                            context.wrap_socket(connection, server_side=True).close()
                except ssl.SSLError:
                    continue
                except OSError:
                    return

        thread = threading.Thread(target=answer, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
    thread.join(5)


def test_a_server_that_is_not_the_expected_one_is_refused(
    keys: Path, tmp_path: Path
) -> None:
    make_server_certificate(tmp_path, ["elsewhere"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(keys / "server.pem", keys / "server.key")
    with listening(context) as address:
        assert is_there(Link(address, keys / "ca.pem"))
        with pytest.raises(MessageError, match="does not vouch for this server"):
            is_there(Link(address, tmp_path / "ca.pem"))
        with pytest.raises(MessageError, match="the server encrypts"):
            is_there(Link(address, None))
    with listening(None) as address:
        assert is_there(Link(address, None))
        with pytest.raises(MessageError, match="the server does not encrypt"):
            is_there(Link(address, keys / "ca.pem"))
    assert not is_there(Link(address, keys / "ca.pem"))


def test_a_certificate_for_another_name_is_refused(tmp_path: Path) -> None:
    make_server_certificate(tmp_path, ["elsewhere"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "server.pem", tmp_path / "server.key")
    with (
        listening(context) as address,
        pytest.raises(MessageError, match="does not vouch"),
    ):
        is_there(Link(address, tmp_path / "ca.pem"))


def settings(keys: Path | None, out: Path, port: int = 9092) -> ServerSettings:
    return ServerSettings(
        config="", clients=1, out=out, host="0.0.0.0", port=port, certificates=keys
    )


def test_the_server_reaches_itself_by_a_name_that_its_certificate_has(
    keys: Path, tmp_path: Path
) -> None:
    assert own_address(settings(keys, tmp_path)) == "127.0.0.1:9092"
    assert own_address(settings(None, tmp_path)) == "127.0.0.1:9092"
    make_server_certificate(tmp_path, ["fl.hospital.org"])
    assert own_address(settings(tmp_path, tmp_path)) == "fl.hospital.org:9092"


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    with socket.create_server(("0.0.0.0", 0)) as listener:
        port = listener.getsockname()[1]
        with (
            pytest.raises(ConfigError, match=f"port {port}"),
            running_server(settings(None, tmp_path / "out", port)),
        ):
            pass
        assert not list(tmp_path.iterdir())  # nothing is left of what did not start
        (tmp_path / "out").mkdir()
        with (
            pytest.raises(ConfigError, match=f"port {port}"),
            running_server(settings(None, tmp_path / "out", port)),
        ):
            pass
    assert [path.name for path in tmp_path.iterdir()] == ["out"]  # it was there before


def test_a_server_says_that_it_listens_and_where_it_goes_on_when_it_does(
    keys: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, config = settings(keys, tmp_path / "out"), parse({"rounds": 5})
    assert server_view.listening(config, own) == (
        "Listening at 0.0.0.0, port 9092, encrypted, 1 key admitted. Waiting for 1 "
        "client to join."
    )
    for done, text in ((2, "goes on with round 3 of 5"), (5, "last round is done")):
        positions = [Position(done, 0)]
        monkeypatch.setattr(checkpoint, "whole_positions", lambda _, p=positions: p)
        assert text in server_view.listening(config, own)
    file = tmp_path / "run.toml"
    file.write_text(CONFIG)
    with socket.create_server(("0.0.0.0", 0)) as listener:
        command = ["serve", file, "--out", tmp_path / "out", "--tls", keys]
        port = listener.getsockname()[1]
        refused_at_once = fedloom(*command, "--clients", 1, "--port", port)
    assert isinstance(refused_at_once.exception, ConfigError)
    assert "ditto for" in refused_at_once.output
    assert "admitted" not in refused_at_once.output


def test_what_a_server_keeps_is_for_its_user_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SuperLink", "FlowerCommands"):
        monkeypatch.setattr(serving, name, Started)
    own = settings(None, tmp_path / "out", free_port())
    for _ in range(2):  # a folder that was there before, too
        with running_server(own):
            (own.state / "server.log").write_text("ward has enrolled (1 of 3).\n")
            assert own.state.stat().st_mode & 0o777 == 0o700
        own.state.chmod(0o755)


def test_a_server_to_which_nobody_came_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("SuperLink", "FlowerCommands"):
        monkeypatch.setattr(serving, name, Started)
    own = settings(None, tmp_path / "out", free_port())

    def begin(*, error: BaseException | None = None, line: str = "") -> None:
        with running_server(own) as server:
            server.start()
            (own.state / "superlink.db").touch()
            (own.state / "server.log").write_text(line)
            if error is not None:
                raise error

    begin()
    with pytest.raises(KeyboardInterrupt):
        begin(error=KeyboardInterrupt())
    assert not list(tmp_path.iterdir())
    with pytest.raises(MessageError):
        begin(error=MessageError("superlink.log: the SuperLink has ended."))
    assert (own.state / "superlink.db").is_file()
    shutil.rmtree(own.state)
    begin(line="ward has enrolled (1 of 3).\n")  # and waits for this run
    assert (own.state / "run").is_file()
    shutil.rmtree(own.state)
    own = replace(own, of_teams=True)
    begin()  # team servers wait for this run
    assert (own.state / "run").is_file()


def test_what_a_killed_process_left_running_is_ended(tmp_path: Path) -> None:
    mark = processes.mark_for(tmp_path)
    sleeper = subprocess.Popen(
        [sys.executable, "-c", "import time; time.sleep(60)"],
        env={processes._MARK: mark},
    )
    while not processes._marked(mark):
        time.sleep(0.01)
    reaper = threading.Thread(target=sleeper.wait)
    reaper.start()
    assert processes.end_left_behind(mark) == 1
    reaper.join(5)
    assert sleeper.returncode
    assert processes.end_left_behind(mark) == 0


@pytest.mark.parametrize("host", ["10.0.0.7", "2001:db8::7", None, "::ffff:10.0.0.7"])
def test_from_elsewhere_only_what_clients_need_is_answered(host: str | None) -> None:
    client = None if host is None else (host, 4000)
    assert is_allowed(client, "/v1/fleet/pull")
    for path in ("/v1/control/start-run", "/v1/runtime/x", "/docs", "/v1/fleeting", ""):
        assert not is_allowed(client, path)
    for here in ("127.0.0.1", "::1", "::ffff:127.0.0.1"):
        assert is_allowed((here, 4000), "/v1/control/start-run")


def test_help_says_how_long_a_server_waits() -> None:
    shown = fedloom("serve", "--help").output
    for field in fields(Policy):
        if field.name != "largest_norm":
            assert f"--{field.name.replace('_', '-')}" in shown
            assert f"[default: {field.default}]" in shown


def test_help_shows_what_stands_in_brackets_and_every_kind_of_file() -> None:
    shown = " ".join(fedloom("join", "--help").output.replace("│", " ").split())
    assert "in [data] or [split] of the run's file" in shown
    assert ".csv, .tsv, .parquet or .npz" in shown
    assert 'data.drop=["note"]' in shown


def test_a_home_that_nothing_came_into_is_removed(tmp_path: Path) -> None:
    """Such as that of a client whose server is another one."""
    path = tmp_path / "home"
    with pytest.raises(MessageError, match="one"), claimed_home(path, {"name": "ward"}):
        raise MessageError("it is another one")
    assert not (tmp_path / "home").exists()

    def begin() -> None:
        with claimed_home(path, {"name": "ward"}) as home:
            home.secret()
            raise MessageError("it went on without this client")

    with pytest.raises(MessageError, match="went on"):
        begin()
    assert (path / "secret").is_file()


def _known_names(monkeypatch: pytest.MonkeyPatch, answers: list[bool | None]) -> None:
    """Let a server be there or not, one look after the other; None: no such host."""

    def look(_: Link) -> bool:
        answer = answers.pop(0)
        if answer is None:
            raise joining.UnknownHostError("the host is not known")
        return answer

    monkeypatch.setattr(joining, "_TRY_S", 0.0)
    monkeypatch.setattr(joining, "is_there", look)


def test_a_name_that_nobody_knows_ends_a_client_at_its_start_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    link = Link("host:1", None)
    _known_names(monkeypatch, [False, None])
    with pytest.raises(MessageError, match="host is not known"):
        joining._wait_for_server(link, lines.append, is_known=False)
    _known_names(monkeypatch, [None, False, None, True])
    joining._wait_for_server(link, lines.append, is_known=True)
    _known_names(monkeypatch, [None, None, True])
    node: Any = Node()
    node.is_unknown = False
    joining.Connection(node, joining.Server(link, None), lines.append).look()
    assert "Connecting again" in "".join(lines)


def test_a_client_whose_run_is_over_says_so_and_where_its_results_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[str] = []
    home, server = Home(tmp_path), joining.Server(Link("host:1", None), None)
    (tmp_path / "a-run").mkdir()
    (tmp_path / "a-run" / "memory.safetensors").touch()
    _known_names(monkeypatch, [False, False, None])
    monkeypatch.setattr(joining, "_TRY_S", 0.0)
    with pytest.raises(IndexError):  # it waits, for the server may come back
        joining.join(server, home, {}, lines.append)
    assert not (tmp_path / ASKED).exists()
    assert f"`fedloom leave {tmp_path}`" in lines[0]
    home.keep_end("a-run", 5, "")
    done = own_results.OwnResults("a-run", "ward gains 2 points.", 0, "")
    own_results._write(home, done)
    for is_there_now in (False, None):
        _known_names(monkeypatch, [is_there_now])
        assert joining.join(server, home, {}, lines.append) == done
        assert lines[-1] == "Nobody answers at host:1: the run a-run is over."


def test_only_an_answer_of_the_server_says_that_a_client_is_taken_in(
    tmp_path: Path,
) -> None:
    home, lines = Home(tmp_path), list[str]()
    follower = joining._Follower(home, 0.0, lines.append)
    line = joining.Answer(
        time=time.time(), asked="enrol", kind="enrolled", round=0, number=0
    )
    home._add_line("a-run", line)
    assert follower.look() is None
    assert lines == [
        "Asked to be taken into the run a-run, which begins when all its clients are "
        "there. Who comes after that is not taken in."
    ]


def test_what_a_client_sets_for_itself_is_about_its_own_data(tmp_path: Path) -> None:
    (tmp_path / "my.csv").write_text("age,note,sick\n" + "30,a,0\n40,b,1\n" * 10)
    config = parse({"data": {"name": "file", "path": "own", "target": "ill"}})
    about = {"data": str(tmp_path / "my.csv"), "name": "ward", "home": str(tmp_path)}
    with pytest.raises(DataError, match="ill"):
        client_node(config, about, {})
    own = {"set": '["data.target=sick", "data.drop=[\\"note\\"]"]'}
    node = client_node(config, about | own, {})
    assert node.format.features == ("age",)
    with pytest.raises(ConfigError, match="JSON list"):
        client_node(config, about | {"set": "data.target=sick"}, {})


def test_a_client_whose_rows_have_one_class_reads_how_to_name_all(
    tmp_path: Path,
) -> None:
    (tmp_path / "my.csv").write_text("age,sick\n" + "30,no\n40,no\n" * 10)
    about = {"data": str(tmp_path / "my.csv"), "name": "ward", "home": str(tmp_path)}
    data = {"name": "file", "path": "own", "target": "sick"}
    with pytest.raises(DataError, match=r"in \[data\] of .*: classes = \[...\]"):
        client_node(parse({"data": data}), about, {})
    named = parse({"data": data | {"classes": ["no", "yes"]}})
    assert client_node(named, about, {}).format.classes == 2
    (tmp_path / "my.csv").write_text("age,sick\n" + "30,0.5\n40,0.5\n" * 10)
    with pytest.raises(DataError, match=r"learn. Name another column as data.target"):
        client_node(parse({"data": data}), about, {})


def test_what_a_worker_listened_at_goes_with_its_client(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    node_config = {"home": str(tmp_path)}
    place = socket_path(node_config)
    place.touch()
    place.with_suffix(".lock").touch()
    monkeypatch.setattr(processes.SuperNode, "_start", lambda self: Finished())
    node = processes.SuperNode(Link("host:1", None), tmp_path / "node", node_config)
    node.end()
    assert not list(place.parent.iterdir())


class Finished:
    """A process that has ended."""

    pid = -1
    returncode = 0

    def poll(self) -> int:
        return 0

    def wait(self) -> int:
        return 0


class Node:
    """A SuperNode that the server does not know."""

    is_running = is_connected = False
    is_unknown = True
    log = Path("log")

    def restart(self) -> None:
        pass


def test_a_key_that_the_server_does_not_take_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(joining, "_TRY_S", 0.0)
    monkeypatch.setattr(joining, "_PATIENCE_S", 0.01)
    monkeypatch.setattr(joining, "_UNTOLD_S", 0.0)
    monkeypatch.setattr(joining, "is_there", lambda _: True)
    server = joining.Server(Link("host:1", None), Path("key"))
    node: Any = Node()
    connection = joining.Connection(node, server, lines.append)
    connection.look()
    time.sleep(0.02)
    with pytest.raises(MessageError, match=r"the key key. If another client uses it"):
        connection.look()
    assert "does not take this client's key" in lines[0]


def test_a_client_says_that_its_server_has_gone_and_that_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lines: list[str] = []
    monkeypatch.setattr(joining, "_LOOK_S", -1.0)
    _known_names(monkeypatch, [True, False, None, True])
    node: Any = Node()
    node.is_running = node.is_connected = True
    server = joining.Server(Link("host:1", None), None)
    connection = joining.Connection(node, server, lines.append)
    for _ in range(4):
        connection.look()
    assert [line.split(" ")[0] for line in lines] == ["Connected", "Nobody", "The"]
    assert "Waiting for the server to come back" in lines[1]


def test_a_client_that_was_never_taken_in_waits_for_a_server_for_a_while_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(joining, "_LOOK_S", -1.0)
    monkeypatch.setattr(joining, "_TRY_S", 0.0)
    monkeypatch.setattr(joining, "_UNANSWERED_S", 0.0)
    monkeypatch.setattr(joining, "is_there", lambda _: False)
    server = joining.Server(Link("host:1", None), None)
    for is_running in (True, False):
        node: Any = Node()
        node.is_running, node.is_unknown = is_running, False
        node.is_connected = True
        connection = joining.Connection(node, server, lambda _: None)
        if is_running:
            connection.look()  # who was taken in waits
            connection.look()
        connection.asked = "a-run"
        with pytest.raises(MessageError, match="a-run had not taken this client in"):
            connection.look()


def test_a_client_knows_whether_it_was_taken_in(tmp_path: Path) -> None:
    home = Home(tmp_path)
    follower = joining._Follower(home, 0.0, lambda _: None)
    for asked, kind, waits_for in (
        ("enrol", "enrolled", "a"),
        ("train", "trained", None),
    ):
        line = joining.Answer(
            time=time.time(), asked=asked, kind=kind, round=0, number=0
        )
        home._add_line("a", line)
        follower.look()
        assert follower.asked == waits_for


def test_a_client_that_asked_for_a_run_does_not_enrol_in_another_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_DELIVERY_S", 0.0)
    text = """
        algorithm = { name = "fedavg" }
        data = { name = "synthetic", clients = 2, features = 4, classes = 2 }
        model = { name = "mlr" }
        engine = { device = "cpu", compile = "off", threads = 1 }
    """
    config = parse(tomllib.loads(text))
    about = {"client": 0, "home": str(tmp_path)}

    def enrol(run: str, kind: str = "enrol") -> Any:
        greeting = greeting_for(config.algorithm, run=run, seed=config.schedule.seed)
        if kind != "enrol":
            greeting = replace(greeting, kind=kind, text="")
        return answer_records(
            to_records(WireMessage(greeting, {})),
            about,
            {"config": text, "run": run},
            lambda: (config, client_node(config, about, {"run": run})),
        ).header

    assert [enrol(run).kind for run in "ab"] == ["enrolled", "enrolled"]  # by Flower
    write_checked_json(tmp_path / ASKED, {"run": None})  # by `fedloom join`
    follower = joining._Follower(Home(tmp_path), time.time(), lambda _: None)
    assert [enrol(run).kind for run in "aba"] == ["enrolled", "refused", "enrolled"]
    assert "another run" in enrol("b").text
    assert "another run" in enrol("b", "train").text
    assert "another run" not in enrol("a", "train").text  # it is refused for what it is
    with pytest.raises(MessageError, match="another run is there now: b") as raised:
        follower.look()
    assert raised.value.exit_code == 6


def test_a_client_whose_data_do_not_fit_ends_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "_DELIVERY_S", 0.0)
    home, lines = Home(tmp_path), list[str]()
    home.keep_failure("a-run", "enrol", "an old one", 3)
    follower = joining._Follower(home, time.time() + 0.001, lines.append)
    assert follower.look() is None
    time.sleep(0.002)
    home.keep_failure("a-run", "enrol", "my.csv: unknown column 'y'.", 3)
    with pytest.raises(DataError, match="unknown column 'y'"):
        follower.look()


def test_a_client_that_was_turned_away_says_why(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.keep_end("a-run", 0, "two clients go by this name.")
    follower = joining._Follower(home, 0.0, lambda _: None)
    line = joining.Answer(
        time=time.time(), asked="end", kind="ended", round=0, number=0
    )
    home._add_line("a-run", line)
    with pytest.raises(MessageError, match="does not take this client in: two clients"):
        follower.look()


def test_a_client_leaves_with_its_model_without_the_server(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    text = to_toml(
        {
            "rounds": 1,
            "algorithm": {"name": "fedavg", "epochs": 1},
            "data": {"name": "synthetic", "clients": 2, "features": 4, "classes": 2},
            "model": {"name": "mlr"},
            "engine": {"device": "cpu", "compile": "off", "threads": 1},
        }
    )
    config, nodes = parse(tomllib.loads(text)), {}
    for n in range(2):
        about = {"client": n, "home": str(tmp_path / f"home-{n}")}
        with claimed_home(tmp_path / f"home-{n}", about):
            nodes[n] = client_node(config, about, {}).answer
    assert "no run yet" in refused("leave", tmp_path / "home-0")
    channel = InProcessChannel(nodes)
    serve(config, channel, tmp_path / "out", run="a-run", clients=2)
    file = tmp_path / "run.toml"
    file.write_text(text)
    again = ["serve", file, "--out", tmp_path / "out", "--insecure", "--clients"]
    assert "run with 2 clients, found --clients 3" in refused(*again, 3)
    assert "algorithm.lr is 0.9" in refused(*again, 2, "--set", "algorithm.lr=0.9")
    for n in range(2):
        (tmp_path / f"home-{n}" / "a-run" / "config.toml").write_text(text)
    folder = tmp_path / "home-0" / "a-run"
    (folder / "end.json").unlink()  # the server was lost before it said so
    done = fedloom("leave", tmp_path / "home-0")
    assert done.exit_code == 0, done.output
    assert "with as much work" in done.output
    assert (folder / "report.html").is_file()
    assert "Several clients" in (folder / "report.md").read_text()
    assert "no run x" in refused("leave", tmp_path / "home-0", "--run", "x")


def test_the_superlink_that_is_started_asks_where_somebody_is(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from flwr.superlink import cli, extensions
    from flwr.superlink.main import _get_middleware

    monkeypatch.setattr(cli, "flower_superlink", lambda: None)
    monkeypatch.setattr(extensions, "get_middleware", extensions.get_middleware)
    fedloom_superlink.main()
    first = _get_middleware()[0]
    assert first.cls is fedloom_superlink.OnlyClientsFromElsewhere
    reached, sent = [], []

    async def app(*_: Any) -> None:
        reached.append(True)

    async def send(message: Any) -> None:
        sent.append(message)

    door = fedloom_superlink.OnlyClientsFromElsewhere(app)
    asked = {"type": "http", "client": ("10.0.0.7", 1), "path": "/v1/control/runs"}
    asyncio.run(door(asked, app, send))
    assert sent[0]["status"] == 403
    assert not reached
    asyncio.run(door(asked | {"path": "/v1/fleet/pull"}, app, send))
    asyncio.run(door({"type": "lifespan"}, app, send))
    assert len(reached) == 2
    asyncio.run(door(asked | {"type": "websocket"}, app, send))
    assert sent[-1]["type"] == "websocket.close"
