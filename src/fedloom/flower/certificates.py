"""Certificates and keys to try a federation out: a CA, a server, and clients.

A real federation has an authority of its own; these are as good as any other, but for
who has seen the CA's key: it is not written anywhere.
"""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from cryptography import x509
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
