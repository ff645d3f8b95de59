"""The keys of clients that take part in secure sums: one's own, those of the others."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedloom.core.errors import ConfigError
from fedloom.secure.primitives import SigningKey, identity_of


def read_signing_key(path: Path) -> SigningKey:
    """The key that a client proves itself with to the server.

    Raises:
        ConfigError: The file has none on P-384.
    """
    try:
        raw = path.read_bytes()
        is_ssh = b"OPENSSH PRIVATE KEY" in raw
        key = (load_ssh_private_key if is_ssh else load_pem_private_key)(raw, None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(f"it is a {type(key).__name__}")
        return SigningKey(key)
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"{path}: secure sums need an ECDSA key on P-384 without a password "
            f"({error}). ssh-keygen -t ecdsa -b 384 -N '' -f NAME makes one."
        ) from error


def read_identities(folder: Path) -> frozenset[bytes]:
    """The public keys, *.pub, in a folder.

    Raises:
        ConfigError: There are none, or one is something else.
    """
    identities = set()
    for path in sorted(folder.glob("*.pub")):
        try:
            identities.add(identity_of(load_ssh_public_key(path.read_bytes())))
        except (OSError, ValueError, TypeError) as error:
            raise ConfigError(
                f"{path}: expected a client's public key on P-384 ({error})."
            ) from error
    if not identities:
        raise ConfigError(f"{folder}: expected public keys, *.pub, found none.")
    return frozenset(identities)


def read_keys(
    client_key: Path | None, peers: Path | None
) -> tuple[SigningKey | None, frozenset[bytes]]:
    """What a client signs with, and who may take part with it.

    Args:
        client_key: the file of its own key; None if that follows from its secret.
        peers: the folder with the public keys of all; None if whoever does may.

    Returns:
        Its key, None if that follows from its secret; and the public halves of those
        who may take part, empty if whoever does.

    Raises:
        ConfigError: A file is no key on P-384, or the client itself may not take part.
    """
    key = None if client_key is None else read_signing_key(client_key)
    admitted = frozenset() if peers is None else read_identities(peers)
    if key is not None and admitted and key.identity not in admitted:
        raise ConfigError(
            f"{peers}: expected the public keys of all who may take part in secure "
            f"sums, this client's among them, found {len(admitted)} without it, so "
            "that no sum could begin. Put the public half of "
            f"{client_key} beside them: ssh-keygen -y -f {client_key} prints it."
        )
    return key, admitted
