"""Certificates and keys: those of a server, checked; and new ones to try it out.

A real federation has an authority of its own; those that are made here are as good as
any other, but for who has seen the CA's key: it is not written anywhere.
"""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from fedloom.core.errors import ConfigError, shown
from fedloom.core.files import atomic_write

CA = "ca.pem"
SERVER = "server.pem"
SERVER_KEY = "server.key"
_DAYS = 365


def make_server_certificate(folder: Path, hosts: Sequence[str]) -> None:
    """Write ca.pem, server.pem and server.key.

    Args:
        folder: where to.
        hosts: names and addresses by which clients reach the server.

    Raises:
        ConfigError: A host is neither a name nor an address.
        DataError: A file cannot be written.
    """
    names = [_general_name(host) for host in hosts]
    authority = ec.generate_private_key(ec.SECP384R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "Fedloom try-out CA")])
    root = (
        _begun(name, name, authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    key = ec.generate_private_key(ec.SECP384R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])])
    server = (
        _begun(subject, name, key.public_key())
        .add_extension(
            x509.SubjectAlternativeName(names),
            critical=False,
        )
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(
            x509.ExtendedKeyUsage([x509.oid.ExtendedKeyUsageOID.SERVER_AUTH]),
            critical=False,
        )
        .add_extension(
            x509.AuthorityKeyIdentifier.from_issuer_public_key(authority.public_key()),
            critical=False,
        )
        .sign(authority, hashes.SHA384())
    )
    _write(folder / CA, root.public_bytes(serialization.Encoding.PEM))
    _write(folder / SERVER, server.public_bytes(serialization.Encoding.PEM))
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
    _write(folder / SERVER_KEY, private, is_secret=True)


def make_client_key(folder: Path, name: str) -> tuple[Path, Path]:
    """Write the key that a client proves itself with, as `ssh-keygen` would.

    Returns:
        Where the private and the public key lie: NAME and NAME.pub.

    Raises:
        DataError: A file cannot be written.
    """
    key = ec.generate_private_key(ec.SECP384R1())
    private, public = folder / name, folder / f"{name}.pub"
    _write(
        private,
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.OpenSSH,
            serialization.NoEncryption(),
        ),
        is_secret=True,
    )
    text = key.public_key().public_bytes(
        serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH
    )
    _write(public, text + b"\n")
    return private, public


def check_server_certificate(folder: Path) -> None:
    """Refuse ca.pem, server.pem and server.key that do not go together.

    Raises:
        ConfigError: One is something else, the key is not that of the certificate, or
            whoever trusts the authority does not trust the certificate.
    """
    ca, certificate, key = folder / CA, folder / SERVER, folder / SERVER_KEY
    try:
        public = x509.load_pem_x509_certificate(certificate.read_bytes()).public_key()
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{certificate}: expected the server's certificate as PEM ({error})."
        ) from error
    try:
        private = serialization.load_pem_private_key(key.read_bytes(), password=None)
    except (OSError, ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise ConfigError(
            f"{key}: expected the server's private key as PEM, without a password "
            f"({error})."
        ) from error
    if private.public_key() != public:
        raise ConfigError(
            f"{key}: is not the key of the certificate {certificate}. Put both files "
            "there as they were made together."
        )
    try:
        _shake_hands(ca, certificate, key)
    except ssl.SSLCertVerificationError as error:
        raise ConfigError(
            f"{ca}: does not vouch for {certificate} ({error.verify_message}), so that "
            "every client would refuse this server. Put the certificate of the "
            f"authority that signed {SERVER} there, or have it sign a new {SERVER}."
        ) from error
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{ca}: expected an authority's certificate as PEM, by which clients can "
            f"connect to a server with {certificate} ({error})."
        ) from error


def _shake_hands(ca: Path, certificate: Path, key: Path) -> None:
    """Let a client that trusts an authority connect to a server, in memory."""
    of_server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    of_server.load_cert_chain(certificate, key)
    of_client = ssl.create_default_context(cafile=ca)
    of_client.check_hostname = False
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = of_client.wrap_bio(down, up)
    server = of_server.wrap_bio(up, down, server_side=True)
    ends = [client, server]
    while ends:
        for end in list(ends):
            with suppress(ssl.SSLWantReadError):
                end.do_handshake()
                ends.remove(end)


def _begun(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(minutes=5))
        .not_valid_after(now + datetime.timedelta(days=_DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    """A name or an address as certificates have it."""
    with suppress(ValueError):
        return x509.IPAddress(ipaddress.ip_address(host))
    is_name = (
        host.isascii()
        and len(host) < 254
        and all(
            0 < len(label) < 64 and label.strip("-").replace("-", "").isalnum()
            for label in host.split(".")
        )
    )
    if not is_name:
        raise ConfigError(
            "expected a host by name or address, such as fl.hospital.org or 10.0.0.5, "
            f"found {shown(host)}."
        )
    return x509.DNSName(host)


def _write(path: Path, content: bytes, *, is_secret: bool = False) -> None:
    with atomic_write(path, lasting=True, private=is_secret) as part:
        part.write_bytes(content)
