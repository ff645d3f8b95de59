"""What a client says of itself and demands of a run, from options of `fedloom join`."""

from __future__ import annotations

import json
import math
from pathlib import Path

from fedloom.core.errors import ConfigError, DataError, shown

MOST_CLIENTS = 10_000


def which_client(
    data: Path | None, name: str | None, client: str | None, team: int
) -> dict[str, str | int]:
    """Which client this is, as its node config says it.

    Raises:
        ConfigError: That is not said, or said in two ways.
        DataError: There are no data of a known kind.
    """
    from fedloom.data.files import has_known_kind

    if (data is None) == (client is None):
        raise ConfigError(
            "join: give --data FILE and --name NAME, or --client NAME for one of the "
            "clients that the run's own data and partition make."
        )
    if client is not None:
        if name is not None or team:
            raise ConfigError("join: --name and --team go with --data.")
        return {"client": int(client) if client.isdecimal() else client}
    assert data is not None
    if not data.is_file():
        raise DataError(f"--data {data}: there is no such file. Correct the path.")
    if not has_known_kind(data):
        raise DataError(f"--data {data}: expected a .csv, .tsv, .parquet or .npz file.")
    refuse_name("join: --name", "this client", name)
    if not 0 <= team < 1 << 20:
        raise ConfigError(f"join: --team must be a number from 0, found {shown(team)}.")
    return {"data": str(data.resolve()), "name": name or "", "team": team}


def demands(
    secure: int | None,
    least_noise: float | None,
    peers: Path | None,
    client_key: Path | None,
) -> dict[str, str | int | float]:
    """What a run must have for this client to take part, as its node config says it.

    Raises:
        ConfigError: A number is out of range, or there are no keys.
    """
    node: dict[str, str | int | float] = {}
    if secure is not None:
        if not 2 <= secure <= MOST_CLIENTS:
            raise ConfigError(
                "join: --secure must be the fewest clients that a sum may be over, "
                f"from 2 to {MOST_CLIENTS}, found {shown(secure)}."
            )
        node["secure"] = secure
    if least_noise is not None:
        if not 0 < least_noise < math.inf:
            raise ConfigError(
                "join: --least-noise must be a number above 0, found "
                f"{shown(least_noise)}."
            )
        node["least-noise"] = least_noise
    if peers is not None:
        if not any(peers.glob("*.pub")):
            raise ConfigError(f"--peers {peers}: expected public keys, *.pub, in it.")
        node["peers"] = str(peers.resolve())
    if client_key is not None:
        node["client-key"] = str(client_key.resolve())
    return node


def refuse_unfit_keys(
    secure: int | None, client_key: Path | None, peers: Path | None
) -> None:
    """Refuse keys that no secure sum could begin with, before a server is asked.

    Args:
        secure: fewest clients that a sum may be over; None if there may be no sums.
        client_key: the file of this client's key; None at a server without keys.
        peers: folder with the public keys of all clients; None if whoever takes part.

    Raises:
        ConfigError: A key is none for secure sums, or this client's is not among those
            of all.
    """
    if secure is None and peers is None:
        return  # the run may do without
    if peers is not None and client_key is None:
        raise ConfigError(
            f"join: --peers {peers} goes with --client-key: with --insecure this "
            "client signs with a key that is in no folder, and could not take part "
            "itself. Leave out --peers, or join a server that has keys."
        )
    from fedloom.deploy.signing_keys import read_keys

    try:
        read_keys(client_key, peers)
    except ConfigError as error:
        options = (
            f"--peers {peers}" if peers is not None else "",
            f"--secure {secure}" if secure is not None else "",
        )
        raise ConfigError(f"join {' '.join(filter(None, options))}: {error}") from error


def own_settings(settings: list[str], device: str | None) -> str:
    """What a client sets for itself, as its node config says it.

    Raises:
        ConfigError: It is not this client's to set.
    """
    from fedloom.config import override

    for assignment in settings:
        override({}, assignment)  # says what is wrong with it
        if not assignment.strip().startswith(("data.", "split.")):
            raise ConfigError(
                f"join: --set {shown(assignment)}: expected a setting of [data] or "
                "[split], which are this client's own. All others are the server's."
            )
    own = [] if device is None else [f"engine.device={device}"]
    return json.dumps([*settings, *own])


def refuse_name(option: str, whose: str, name: str | None) -> None:
    """Refuse what nobody can be called.

    Args:
        option: that it was given by.
        whose: name it is to be, in words.
        name: what was given.

    Raises:
        ConfigError: There is no name, or it is too long or cannot be printed.
    """
    if not name or not name.isprintable() or len(name) > 200:
        raise ConfigError(
            f"{option} must say what {whose} is called, in at most 200 letters; found "
            f"{'nothing' if not name else shown(name)}."
        )
