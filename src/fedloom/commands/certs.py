"""`fedloom certs`: certificates and keys to try a federation out."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from fedloom.commands.console import remark, say
from fedloom.commands.options import argument, option
from fedloom.core.errors import ConfigError, shown
from fedloom.core.settings import Count, accepts

_MOST_CLIENTS = 10_000
_HERE = ("localhost", "127.0.0.1", "::1")


def certs_command(
    folder: Annotated[Path, argument("New folder for certificates and keys.")],
    clients: Annotated[int, option("How many clients get a key.")] = 5,
    host: Annotated[
        list[str] | None,
        option(
            "Name or address by which clients reach the server; localhost is always "
            "among them. May be given several times."
        ),
    ] = None,
) -> None:
    """Make a certificate authority, a server certificate and client keys, for trials.

    An institution uses its own authority, and every client makes its key itself
    (ssh-keygen -t ecdsa -b 384) and sends the public half to the server.

    Examples:
        fedloom certs keys --clients 3
        fedloom certs keys --host server.example.org
    """
    if not accepts(Count, clients) or clients > _MOST_CLIENTS:
        raise ConfigError(
            f"certs: --clients must be between 1 and {_MOST_CLIENTS}, found "
            f"{shown(clients)}."
        )
    try:
        from fedloom.flower import certificates
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"certs needs a library that is not installed ({error}). Install it with: "
            "pip install 'fedloom[flower]'"
        ) from error
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConfigError(
            f"certs: {shown(str(folder))} is there already, and whoever trusts what is "
            "in it would no longer be let in if it were replaced. Name a new folder."
        )
    certificates.make_server_certificate(folder, [*(host or ()), *_HERE])
    names = [f"client-{n + 1}" for n in range(clients)]
    for name in names:
        certificates.make_client_key(folder, name)
    last = f" to {names[-1]}" if clients > 1 else ""
    say(
        f"Written to {folder}: {certificates.CA} for everybody; {certificates.SERVER} "
        f"and {certificates.SERVER_KEY} for the server alone; {names[0]}{last}, a "
        "private key for each client alone; and *.pub, by which the server admits them."
    )
    remark("For trials: whoever has this folder has everybody's keys.")
