"""One client of a federation as a Flower app.

Which client this is comes from the node config of its SuperNode
(`flower-supernode --node-config`):

    home        the client's own folder, where its memory is kept
    data        its data, in place of the path in the run's [data] section; with it:
    name        what the client is called
    team        the number of its team, from 0; 0 by default
    client      instead of data: the name or number of one of the clients that the run's
                own data and partition make, as in a simulation
    data-dir    where the files of named datasets lie
    tells-sizes whether the server is told how many samples there are; true by default
    tells-log-odds  whether, with two classes, scores tell how many samples have which
                log-odds, in few bins; false by default
    begins-anew whether the client may go on without its memory; false by default
    secure      fewest clients that a sum with what this one sends may be over: it takes
                part in runs with secure sums alone
    least-noise least noise that clients add to what they send, in multiples of clip: it
                takes part in no run with less
    client-key  the key that it signs with in secure sums: its SuperNode's; by default
                one that follows from the secret in its folder
    peers       folder with the public keys of those who may take part in secure sums;
                by default whoever does, each with one key for the whole run
    set         a JSON list of settings of [data] and [split] that are this client's own

In Flower's own simulation nodes are numbered, and homes lie below `homes` of the run
config.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from flwr.app import Context, Message, RecordDict
from flwr.clientapp import ClientApp
from torch import nn

from fedloom.clients import Federation
from fedloom.config import RunConfig, to_tables
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.digests import read_checked_json, write_checked_json
from fedloom.core.errors import ConfigError, FedloomError, MessageError
from fedloom.core.files import atomic_write, write_text
from fedloom.core.losses import Loss
from fedloom.deploy import (
    OWN_SETTINGS,
    make_node,
    only_client,
    whole_dataset_as_client,
    with_own_settings,
    write_own_results,
)
from fedloom.deploy.own_results import write_failure
from fedloom.engine.threads import on_threads
from fedloom.flower.records import HEADER, from_records, to_records
from fedloom.flower.server_app import run_settings
from fedloom.plan import make_clients
from fedloom.remote import Header, Node, WireMessage
from fedloom.remote.home import Home
from fedloom.remote.wire import OtherProtocolError
from fedloom_flower_client import RUN, with_run_id

_log = logging.getLogger(__name__)
ASKED = "asked.json"
"""In a client's folder while `fedloom join` runs: which run the client has asked to be
taken into; none before that."""
_KEYS = (
    *("home", "data", "name", "team", "client", "data-dir", "tells-sizes"),
    OWN_SETTINGS,
    *("tells-log-odds", "begins-anew", "partition-id", "num-partitions"),
    *("secure", "least-noise", "client-key", "peers"),
)


def make_client_app(
    *,
    algorithm: AnyAlgorithm | None = None,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    clients: Federation | Callable[[], Federation] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
) -> ClientApp:
    """A Flower client app, for a method, a module or data of one's own.

    Args:
        algorithm: a method in place of the config's; the server app has the same.
        model: a module in place of the config's; the server app has the same.
        clients: the client's data, or a function that loads them, in place of the
            config's; one of several clients is chosen by `client` of the node config.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.
    """
    own = {"model": model, "clients": clients, "loss": loss, "head": head}

    def answer_with_own(message: Message, context: Context) -> Message:
        return answer(message, context, algorithm=algorithm, **own)

    app = ClientApp()
    for answers in (app.query, app.train, app.evaluate):
        answers()(answer_with_own)
    return app


def answer(
    message: Message,
    context: Context,
    *,
    algorithm: AnyAlgorithm | None = None,
    **own: Any,
) -> Message:
    """What the client of a SuperNode answers to a message.

    Args:
        message: as Flower gives it.
        context: as Flower gives it.
        algorithm: as for `make_client_app`.
        **own: the other arguments of `make_client_app`.
    """
    run_config = with_run_id(context)
    node_config = context.node_config

    @cache
    def client() -> tuple[RunConfig, Node]:
        config = run_settings(run_config, algorithm)
        with on_threads(config.engine.threads):
            return config, client_node(config, node_config, run_config, **own)

    is_own = own.get("model") is not None
    answered = answer_records(
        message.content, node_config, run_config, client, is_own=is_own
    )
    # This process ends with the answer.
    finish_run(message.content, client, is_own=is_own)
    return Message(to_records(answered), reply_to=message)


def answer_records(
    records: RecordDict,
    node_config: Mapping[str, Any],
    run_config: Mapping[str, Any],
    client: Callable[[], tuple[RunConfig, Node]],
    *,
    is_own: bool = False,
) -> WireMessage:
    """What a client answers to what came, be it that it cannot.

    Args:
        records: the message as Flower carries it.
        node_config: as Flower gives it.
        run_config: as Flower gives it.
        client: gives the settings of the run and the client.
        is_own: whether method or module are one's own, which no file can say.

    Raises:
        MessageError: What came is no message.
    """
    try:
        asked = from_records(records)
    except OtherProtocolError as error:
        answer = error.answer(_called(node_config))
        _keep_failure(answer.header, node_config, error)
        return answer
    try:
        _refuse_other_run(asked.header, node_config)
    except MessageError as error:
        _keep_failure(asked.header, node_config, error)
        name = _called(node_config)
        text = f"{name}: has asked to be taken into another run, and takes part there."
        header = replace(asked.header, kind="refused", name=name, text=text)
        return WireMessage(header, {})
    try:
        config, node = client()
    except FedloomError as error:
        _log.warning("%s", error)
        _keep_failure(asked.header, node_config, error)
        # What is wrong with its data is said at home alone: it may show some of them.
        name = _called(node_config)
        text = f"{name}: its data or settings cannot be used; its own log says why."
        header = replace(asked.header, kind="refused", name=name, text=text)
        return WireMessage(header, {})
    with on_threads(config.engine.threads):
        answer = node.answer(asked)
    if answer.header.kind in ("enrolled", "trained"):
        _keep_asked(asked.header, node_config)
    if answer.header.kind == "enrolled" and not is_own:
        file = node.home.path / asked.header.run / "config.toml"
        with atomic_write(file) as part:
            write_text(part, str(run_config.get("config", "")))
    return answer


def finish_run(
    records: RecordDict,
    client: Callable[[], tuple[RunConfig, Node]],
    *,
    is_own: bool = False,
) -> None:
    """After a message that said so, make what a client has of a run that is over.

    Args:
        records: the message as Flower carries it.
        client: gives the settings of the run and the client.
        is_own: as for `answer_records`.
    """
    header = records.config_records.get(HEADER)
    if header is None or header.get("kind") != "end":
        return
    try:
        asked = from_records(records).header
        config, node = client()
    except FedloomError:
        return  # which the answer has said
    if node.home.end_of(asked.run) is not None:  # else it was not for this client
        with on_threads(config.engine.threads):
            finish(node, asked.run, config, is_own=is_own)


def _called(node_config: Mapping[str, Any]) -> str:
    """What a client is called, as far as its node config says."""
    return str(node_config.get("name", node_config.get("client", ""))) or "a client"


def _asked_file(node_config: Mapping[str, Any]) -> Path | None:
    """Where it is kept which run a client has asked for; None where it may be any."""
    file = Path(str(node_config["home"])) / ASKED if "home" in node_config else None
    return file if file is not None and file.is_file() else None


def _asked_run(file: Path) -> str | None:
    """Which run a client has asked for; None if there is none yet."""
    run: str | None = read_checked_json(file, "which run was asked for", ("run",))[
        "run"
    ]
    return run


def _refuse_other_run(asked: Header, node_config: Mapping[str, Any]) -> None:
    """Refuse to enrol or train in a run when another was asked for.

    Nobody has agreed to it, and each run spends privacy by itself.
    """
    file = _asked_file(node_config)
    if file is None or asked.kind not in ("enrol", "train"):
        return
    run = _asked_run(file)
    if run not in (None, asked.run):
        raise MessageError(
            f"another run is there now: {asked.run}. This client has asked to be taken "
            f"into {run}, and takes part in no other by itself. The same command joins "
            "the run that is there."
        )


def _keep_asked(asked: Header, node_config: Mapping[str, Any]) -> None:
    file = _asked_file(node_config)
    if file is not None and _asked_run(file) != asked.run:
        write_checked_json(file, {"run": asked.run})


def _keep_failure(
    asked: Header, node_config: Mapping[str, Any], error: FedloomError
) -> None:
    """Say at home, where `fedloom join` reads it, what keeps a client from a run."""
    if "home" in node_config:
        home = Home(Path(str(node_config["home"])))
        home.keep_failure(asked.run, asked.kind, str(error), error.exit_code)


def finish(node: Node, run: str, config: RunConfig, *, is_own: bool = False) -> None:
    """Make what a client has of a run that is over; or say at home why it cannot.

    Args:
        node: the client.
        run: id of the run.
        config: its settings.
        is_own: whether the module is one's own.
    """
    end = node.home.end_of(run)
    if end is not None and end[1] and not end[0]:
        return  # it was not taken in
    tables = to_tables(config)
    if is_own:
        del tables["model"]
    try:
        results = write_own_results(node, run, tables)
        _log.info("%s", results.sentence)
    except FedloomError as error:
        _log.warning("There is no model of %s: %s", run, error)
        write_failure(node.home, run, error)
    except Exception as error:
        # Whoever waits for the results must learn that there are none.
        _log.exception("There is no model of %s.", run)
        write_failure(node.home, run, FedloomError(f"{type(error).__name__}: {error}"))


def client_node(
    config: RunConfig,
    node_config: Mapping[str, Any],
    run_config: Mapping[str, Any],
    *,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    clients: Federation | Callable[[], Federation] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
) -> Node:
    """The client that a SuperNode's config is about.

    Args:
        config: the settings of the run.
        node_config: as `flower-supernode --node-config` gave it.
        run_config: as `flwr run -c` gave it.
        model: as for `make_client_app`.
        clients: as for `make_client_app`.
        loss: as for `make_client_app`.
        head: as for `make_client_app`.

    Raises:
        ConfigError: A key is unknown, or one is missing.
        DataError: There is no such client, or its data cannot be used.
    """
    for key in node_config:
        if key not in _KEYS:
            raise ConfigError(
                f"node config: unknown key {key!r}. Known: {', '.join(_KEYS)}."
            )
    client = _client(config, node_config, clients)
    home = node_config.get("home")
    if home is None and run_config.get("homes"):
        home = Path(str(run_config["homes"])) / client.names[0]
    if home is None:
        raise ConfigError(
            "node config: home must name the client's own folder. For instance: "
            "flower-supernode --node-config 'home=\"/srv/fedloom\" ...'."
        )
    return make_node(
        config,
        client,
        Path(str(home)),
        model=model,
        loss=loss,
        head=head,
        run=str(run_config.get(RUN) or "") or None,
        tells_sizes=bool(node_config.get("tells-sizes", True)),
        tells_log_odds=bool(node_config.get("tells-log-odds", False)),
        begins_anew=bool(node_config.get("begins-anew", False)),
        at_least=int(node_config["secure"]) if "secure" in node_config else None,
        least_noise=(
            float(node_config["least-noise"]) if "least-noise" in node_config else None
        ),
        client_key=_path(node_config, "client-key"),
        peers=_path(node_config, "peers"),
    )


def _path(node_config: Mapping[str, Any], key: str) -> Path | None:
    return Path(str(node_config[key])) if key in node_config else None


def _client(
    config: RunConfig,
    node_config: Mapping[str, Any],
    clients: Federation | Callable[[], Federation] | None,
) -> Federation:
    """The client's data."""
    config = with_own_settings(config, node_config)
    data_dir = _path(node_config, "data-dir")
    if "data" in node_config:
        if "name" not in node_config:
            raise ConfigError("node config: name must say what the client is called.")
        if not hasattr(config.data, "path"):
            raise ConfigError(
                "node config: data names a file, and the run's [data] section has no "
                "path. Ask the server's people for a source of files in it: name = "
                "'file'."
            )
        source: Any = config.data
        source = replace(source, path=str(node_config["data"]))
        return whole_dataset_as_client(
            replace(config, data=source),
            str(node_config["name"]),
            team=int(node_config.get("team", 0)),
            data_dir=data_dir,
        )
    everyone = clients() if callable(clients) else clients
    if everyone is not None and everyone.count == 1:
        return everyone
    chosen = node_config.get("client", node_config.get("partition-id"))
    if not isinstance(chosen, str | int):
        raise ConfigError(
            "node config: expected data (the client's own file) or client (one of "
            "those that the run's data and partition make), found neither."
        )
    if everyone is None:
        everyone = make_clients(config, data_dir)[1]
    return only_client(everyone, chosen)
