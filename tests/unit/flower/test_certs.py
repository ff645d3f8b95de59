"""`fedloom certs`: what it makes is trusted, private, and never replaced."""

from __future__ import annotations

import socket
import ssl
import stat
import threading
from pathlib import Path

import pytest
from typer.testing import CliRunner

pytest.importorskip("flwr", reason="needs fedloom[flower]")

from cryptography.hazmat.primitives import serialization

from fedloom.cli import app
from fedloom.core.errors import ConfigError


def certs(*arguments: object) -> str:
    done = CliRunner().invoke(app, ["certs", *map(str, arguments)])
    if isinstance(done.exception, ConfigError):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certs") / "new"
    assert "client-1 to client-2" in certs(
        *(folder, "--clients", 2, "--host", "fl.example.org")
    )
    return folder


def greet(made: Path, authority: Path, host: str) -> str:
    """Connect to a server with the certificate made, and say by which version."""
    inside = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    inside.load_cert_chain(made / "server.pem", made / "server.key")
    ours, theirs = socket.socketpair()

    def serve() -> None:
        try:
            inside.wrap_socket(ours, server_side=True).close()
        except OSError:
            ours.close()

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        outside = ssl.create_default_context(cafile=str(authority))
        with outside.wrap_socket(theirs, server_hostname=host) as secured:
            return secured.version() or ""
    finally:
        theirs.close()
        thread.join()


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "fl.example.org"])
def test_a_client_with_the_authority_trusts_the_server(made: Path, host: str) -> None:
    assert greet(made, made / "ca.pem", host) == "TLSv1.3"


def test_another_name_or_another_authority_is_not_trusted(
    made: Path, tmp_path: Path
) -> None:
    with pytest.raises(ssl.SSLCertVerificationError, match="not valid for"):
        greet(made, made / "ca.pem", "other.example.org")
    certs(tmp_path / "others", "--clients", 1)
    with pytest.raises(ssl.SSLCertVerificationError):
        greet(made, tmp_path / "others" / "ca.pem", "localhost")


def test_keys_belong_together_and_private_ones_are_their_owners_alone(
    made: Path,
) -> None:
    for name in ("client-1", "client-2"):
        raw = (made / name).read_bytes()
        private = serialization.load_ssh_private_key(raw, password=None)
        public = (made / f"{name}.pub").read_bytes()
        assert private.public_key() == serialization.load_ssh_public_key(public)
    for path in made.iterdir():
        is_private = path.suffix not in (".pem", ".pub")
        assert (stat.S_IMODE(path.stat().st_mode) == 0o600) == is_private, path


def test_nothing_that_is_there_is_replaced(made: Path) -> None:
    before = {p.name: p.read_bytes() for p in made.iterdir()}
    with pytest.raises(ConfigError, match="is there already"):
        certs(made)
    assert {p.name: p.read_bytes() for p in made.iterdir()} == before


@pytest.mark.parametrize("host", ["", "a b", "-", "ä.org", "x" * 300, "http://h"])
def test_what_is_no_host_is_refused_before_anything_is_written(
    host: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="expected a host by name or address"):
        certs(tmp_path / "new", "--host", host)
    assert not (tmp_path / "new").exists()


def test_how_many_clients_has_bounds(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="between 1 and 10000"):
        certs(tmp_path / "new", "--clients", 0)
