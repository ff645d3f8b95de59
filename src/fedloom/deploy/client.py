"""One client of a run whose server is elsewhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from fedloom.clients import Federation, Iid
from fedloom.config import RunConfig, override, parse, to_tables
from fedloom.core.errors import ConfigError, DataError, shown, unknown
from fedloom.core.losses import Loss
from fedloom.core.task import Task
from fedloom.engine.effort import gradients_of_a_sample
from fedloom.engine.loop import Loop
from fedloom.engine.weave import Weave
from fedloom.models.imported import ImportedModel
from fedloom.plan import built_in_module, make_clients, make_module, make_task
from fedloom.privacy import (
    OwnNoise,
    Privacy,
    private,
    private_client,
    refuse_large_delta,
    refuse_lone_noise,
    refuse_overspending,
)
from fedloom.privacy.secret import Secret
from fedloom.remote import Node
from fedloom.remote.home import Home

_SECRET_BYTES = 32
OWN_SETTINGS = "set"
"""In the node config of a client: what it sets for itself, a JSON list of texts."""


def with_own_settings(config: RunConfig, node_config: Mapping[str, Any]) -> RunConfig:
    """The settings of a run with what a client says of its own data.

    Args:
        config: as the server sent it.
        node_config: of the client.

    Raises:
        ConfigError: What it says is not valid.
    """
    text = node_config.get(OWN_SETTINGS)
    if not text:
        return config
    tables = to_tables(config)
    try:
        for assignment in json.loads(str(text)):
            override(tables, str(assignment))
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"node config: {OWN_SETTINGS} must be a JSON list of texts such as "
            f"data.target=sick, found {shown(text)}."
        ) from error
    parsed = parse(tables, "settings of this client")
    engine = replace(config.engine, device=parsed.engine.device)
    return replace(config, data=parsed.data, split=parsed.split, engine=engine)


def only_client(clients: Federation, client: str | int) -> Federation:
    """One client of several that the same data hold, as in a simulation.

    Args:
        clients: all of them.
        client: its name, or its number.

    Raises:
        DataError: There is no such client.
    """
    if isinstance(client, str):
        if client not in clients.names:
            raise DataError(unknown("client", client, clients.names))
        client = clients.names.index(client)
    alone = clients.only([client])
    # What standardises samples is agreed with the server, from moments of each client.
    return replace(alone, constants=None, target_constants=None)


def whole_dataset_as_client(
    config: RunConfig, name: str, *, team: int = 0, data_dir: Path | None = None
) -> Federation:
    """All samples of a config's data as those of one client.

    Args:
        config: what to load, and how to split it into training and test.
        name: what the client is called.
        team: the number of its team, from 0.
        data_dir: where the files of named datasets lie.
    """
    alone = replace(config, partition=Iid(clients=1), teams=None)
    _, clients = make_clients(alone, data_dir)
    teams = clients.teams + team
    return replace(clients, names=(name,), teams=teams, clients_from="")


def make_node(
    config: RunConfig,
    client: Federation,
    home: Path,
    *,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
    run: str | None = None,
    tells_sizes: bool = True,
    tells_log_odds: bool = False,
    begins_anew: bool = False,
    secret: int | None = None,
    at_least: int | None = None,
    least_noise: float | None = None,
    client_key: Path | None = None,
    peers: Path | None = None,
) -> Node:
    """A client that answers the server of a run.

    Args:
        config: method, model, seed and engine, as the server has them.
        client: this client and its data.
        home: folder of the client's own.
        model: a module of one's own in place of the config's; the server has the same.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.
        run: as for `Node`.
        tells_sizes: as for `Node`.
        tells_log_odds: as for `Node`.
        begins_anew: as for `Node`.
        secret: as for `Node`.
        at_least: fewest clients that a sum with what this one sends may be over. It
            then takes part in secure sums alone.
        least_noise: least noise that this client adds to what it sends, or to the
            total of a secure sum together with others, in multiples of `clip`. It then
            takes part in no run with less.
        client_key: the key that it proves itself with to the server, by which it signs
            in secure sums; by default one that follows from its secret.
        peers: folder with the public keys of those who may take part in them; by
            default whoever does.

    Raises:
        ConfigError: The run is not as this client wants it, would pass its budget by
            this client's own account, may give away one of its samples, or a key is no
            key.
    """
    _refuse_insecure_run(config, at_least)
    _refuse_little_noise(config, least_noise)
    if model is None and isinstance(config.model, ImportedModel):
        raise ConfigError(
            f"join: the server names {config.model.name} as the model, a module of its "
            "own, and a client imports nothing because a server says so. Ask for a "
            "run with a built-in model, or give the module from Python: model=..."
        )
    module = (
        built_in_module(config, client)
        if model is None
        else make_module(model, client, config.schedule.seed)
    )
    method, noise = config.method, None
    if config.privacy is not None:
        refuse_lone_noise(config.privacy, is_secure=config.secure is not None)
        privacy = replace(config.privacy, secret=None)
        if privacy.unit == "sample":
            own = int(client.train.sizes.sum())
            refuse_large_delta(privacy, own, "training samples of this client")
        noise = _own_noise(privacy, home, secret)
        method = (
            private(method, privacy)
            if noise is None
            else private_client(method, privacy, noise)
        )

    def make(clients: Federation) -> Task:
        return make_task(module, clients, config.engine, loss=loss, head=head)

    if noise is not None:
        _refuse_overspending(config, client, make)
    return Node(
        client,
        method,
        make,
        home,
        seed=config.schedule.seed,
        # A source of noise draws on the host, which nothing that is vmapped can wait
        # for.
        runner=Loop() if noise or config.engine.runner == "loop" else Weave(1),
        run=run,
        tells_sizes=tells_sizes,
        tells_log_odds=tells_log_odds,
        begins_anew=begins_anew,
        secret=secret,
        noise=noise,
        secure=config.secure,
        is_scored=config.schedule.is_scored,
        rounds=config.schedule.rounds,
        **_signing(config, client_key, peers),
    )


def _refuse_overspending(
    config: RunConfig, client: Federation, make: Callable[[Federation], Task]
) -> None:
    """Refuse a run that would pass its budget for this client's own samples.

    Raises:
        ConfigError: It would.
    """
    privacy, algorithm = config.privacy, config.algorithm
    if privacy is None or privacy.budget is None or algorithm.needs == "nothing":
        return
    releases = float(algorithm.exchanges)
    if privacy.unit == "sample":
        data, some = client.dataset, client.train.indices[:1]
        if not len(some):
            return  # nothing of it is ever trained on
        releases = gradients_of_a_sample(
            private(algorithm, privacy),
            make(client),
            tuple(x[some] for x in data.inputs),
            data.targets[some],
            torch.as_tensor(client.train.sizes),
        )
    refuse_overspending(privacy, rounds=config.schedule.rounds, releases=releases)


def _own_noise(privacy: Privacy, home: Path, secret: int | None) -> OwnNoise | None:
    """The noise that this client adds by itself; None where it adds none."""
    if not privacy.has_noise_of_clients:
        return None
    number = Home(home).secret() if secret is None else secret
    return OwnNoise(Secret(number.to_bytes(_SECRET_BYTES, "big")))


def _refuse_insecure_run(config: RunConfig, at_least: int | None) -> None:
    """Refuse a run in which what a client sends would be seen, or in too small a sum.

    Raises:
        ConfigError: It would.
    """
    if at_least is None or config.algorithm.needs == "nothing":
        return
    if config.secure is None:
        raise ConfigError(
            "join --secure: the server's run has no secure sums, so that its people "
            "would see what this client sends. Ask them for a [secure] section, or "
            "join without --secure."
        )
    if config.secure.fewest < at_least:
        raise ConfigError(
            f"join --secure {at_least}: the server's run opens sums of "
            f"{config.secure.fewest} clients (fewest in [secure]). Ask its people to "
            f"set fewest to {at_least}, or give a lower number."
        )


def _refuse_little_noise(config: RunConfig, least: float | None) -> None:
    """Refuse a run in which this client would add less noise than it wants.

    Raises:
        ConfigError: It would.
    """
    privacy = config.privacy
    if least is None or config.algorithm.needs == "nothing":
        return
    if privacy is None or not privacy.noise:
        found = "the server's run has no noise"
    elif not privacy.has_noise_of_clients:
        found = "in the server's run the server adds the noise, if it does"
    elif privacy.noise < least:
        found = f"the server's run has noise = {privacy.noise:g}"
    else:
        return
    raise ConfigError(
        f"join --least-noise {least:g}: expected clients to add noise of {least:g} "
        f"times clip at least, and {found}. Ask its people for a [privacy] section "
        f'with noise = {least:g} and unit = "sample", at = "local" or at = "clients"; '
        "or give a lower number."
    )


def _signing(
    config: RunConfig, client_key: Path | None, peers: Path | None
) -> dict[str, Any]:
    """What a client signs with in secure sums, and who may take part in them."""
    if config.secure is None:
        return {}
    from fedloom.deploy.signing_keys import read_keys  # it needs an extra

    key, admitted = read_keys(client_key, peers)
    return {"signing_key": key, "admitted": admitted}
