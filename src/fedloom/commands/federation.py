"""`fedloom serve`, `join` and `leave`: a federation whose clients are elsewhere."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from fedloom.commands import options
from fedloom.commands.console import print_json, say, stoppable, tell
from fedloom.commands.documents import report_document
from fedloom.commands.node_config import (
    MOST_CLIENTS,
    demands,
    own_settings,
    refuse_name,
    refuse_unfit_keys,
    which_client,
)
from fedloom.commands.options import argument, option
from fedloom.commands.report import write_and_show
from fedloom.commands.server_view import expected, show_server
from fedloom.core.errors import ConfigError, error_for, shown
from fedloom.core.policy import Policy
from fedloom.core.settings import Count, accepts
from fedloom.core.wording import counted

if TYPE_CHECKING:
    from fedloom.config import RunConfig
    from fedloom.deploy import OwnResults
    from fedloom.flower.processes import Link
    from fedloom.flower.serving import ServerSettings


def serve_command(
    config: Annotated[Path, argument("TOML file of the run.")],
    clients: Annotated[int, option("How many clients take part.")],
    out: Annotated[Path, option("Directory for the run; the same one goes on.")],
    tls: Annotated[
        Path | None,
        option(
            "Folder with ca.pem, server.pem, server.key and the public keys of the "
            "clients (*.pub), as `fedloom certs` makes it."
        ),
    ] = None,
    insecure: Annotated[
        bool,
        option("Do without encryption and keys: anybody may take part.", "--insecure"),
    ] = False,
    host: Annotated[str, option("Address to listen at; by default all.")] = "0.0.0.0",
    port: Annotated[int, option("Port to listen at.")] = 9092,
    deadline_s: Annotated[
        float,
        option("Seconds after which a round goes on without those who are missing."),
    ] = Policy.deadline_s,
    quorum: Annotated[
        float, option("Share of the clients whose answers a round needs.")
    ] = Policy.quorum,
    patience_s: Annotated[
        float, option("Seconds to wait for enough clients before it stops.")
    ] = Policy.patience_s,
    retry_s: Annotated[
        float, option("Seconds after which who is silent is asked again.")
    ] = Policy.retry_s,
    end_s: Annotated[
        float, option("Seconds to wait at the end until all clients know of it.")
    ] = Policy.end_s,
    of_teams: Annotated[
        bool,
        option(
            "Serve team servers in the place of clients; --clients is how many there "
            "are.",
            "--of-teams",
        ),
    ] = False,
    team: Annotated[
        str | None,
        option(
            "Serve a team: what the team is called at the global server. It needs "
            "--above and --run, and --client-key and --ca unless --insecure."
        ),
    ] = None,
    above: Annotated[
        str | None, option("Host and port of the team's global server.")
    ] = None,
    client_key: Annotated[
        Path | None, option("The team's private key; the global server has the public.")
    ] = None,
    ca: Annotated[
        Path | None, option("Certificate of who vouches for the global server: ca.pem.")
    ] = None,
    run: Annotated[
        str | None,
        option("Id of the run, the same at the global server and at all teams."),
    ] = None,
    device: options.Device = None,
    settings: options.Settings = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    """Serve a run to clients that join it from elsewhere, to its end.

    Ctrl-C ends it; the same command goes on from there.

    Examples:
        fedloom serve run.toml --clients 3 --out runs/served --tls keys
        fedloom serve run.toml --clients 2 --out runs/trial --insecure --port 9100
    """
    from fedloom.config import parse, read_toml, to_tables, to_toml
    from fedloom.deploy import refuse_other_run
    from fedloom.deploy.server import Tier, refuse_what_needs_samples, served_method

    if not accepts(Count, clients) or clients > MOST_CLIENTS:
        raise ConfigError(
            f"serve: --clients must be between 1 and {MOST_CLIENTS}, found "
            f"{shown(clients)}."
        )
    if not 0 < port < 1 << 16:
        raise ConfigError(
            f"serve: --port must be between 1 and 65535, found {shown(port)}."
        )
    if (tls is None) != insecure:
        raise ConfigError(
            "serve: give --tls DIR, the folder with the server's certificate and the "
            "clients' public keys (`fedloom certs DIR` makes one for a trial), or "
            "--insecure, with which anybody may read along and take part; not both."
        )
    options.refuse_samples(config)
    tables = read_toml(config)
    options.apply_options(tables, {"engine.device": device}, settings)
    run_config = parse(tables, str(config))
    refuse_what_needs_samples(run_config, str(config))
    policy = {
        "deadline_s": deadline_s,
        "quorum": quorum,
        "patience_s": patience_s,
        "retry_s": retry_s,
        "end_s": end_s,
    }
    tier: Tier = "global" if of_teams else "only" if team is None else "team"
    refuse_other_run(out, run_config, clients)
    served_method(run_config, clients, tier)  # or it is refused
    _refuse_policy(policy)
    serving = _flower("serve", "serving")
    server = serving.ServerSettings(
        config=to_toml(to_tables(run_config)),
        clients=clients,
        out=out,
        host=host,
        port=port,
        certificates=tls,
        policy={name.replace("_", "-"): float(v) for name, v in policy.items()},
        of_teams=of_teams,
        team=_team(
            team, above, client_key, ca, run, insecure=insecure, of_teams=of_teams
        ),
        run=_run_id(run),
    )
    serving.check_certificates(server)
    tell(_understood(run_config, server))
    if _has_ended(out):
        say("This run is over.")
    else:
        with stoppable("The same command goes on."), _ends_on_signals():
            outcome = show_server(run_config, server, serving.running_server)
        if outcome.exit_code:
            error = error_for(outcome.exit_code, outcome.error)
            for note in outcome.notes:
                error.add_note(note)
            raise error
    findings, written = write_and_show([out])
    if as_json:
        print_json(report_document("serve", findings, written, ()))


def join_command(
    address: Annotated[str, argument("Host and port of the server.")],
    home: Annotated[
        Path, option("Folder of this client's own: its memory, model and report.")
    ],
    data: Annotated[
        Path | None, option("This client's samples: .csv, .tsv, .parquet or .npz.")
    ] = None,
    name: Annotated[
        str | None, option("What this client is called, with --data.")
    ] = None,
    client: Annotated[
        str | None,
        option(
            "Instead of --data: one of the clients that the run's own data and "
            "partition make, by name or number."
        ),
    ] = None,
    client_key: Annotated[
        Path | None, option("This client's private key; the server has the public.")
    ] = None,
    ca: Annotated[
        Path | None, option("Certificate of who vouches for the server: ca.pem.")
    ] = None,
    insecure: Annotated[
        bool, option("Join a server that does without encryption.", "--insecure")
    ] = False,
    team: Annotated[int, option("Number of this client's team, from 0.")] = 0,
    sizes: Annotated[
        bool,
        option(
            "Tell the server how many samples there are, or do not.",
            "--sizes/--no-sizes",
        ),
    ] = True,
    log_odds: Annotated[
        bool,
        option(
            "With two classes, send with every score how many samples have which "
            "log-odds, in few bins, for the AUC over all clients, or do not.",
            "--log-odds/--no-log-odds",
        ),
    ] = False,
    begin_anew: Annotated[
        bool,
        option(
            "Take part as a newcomer if the memory at home is gone.", "--begin-anew"
        ),
    ] = False,
    secure: Annotated[
        int | None,
        option(
            "Take part only if what is sent is summed securely, over at least so many "
            "clients."
        ),
    ] = None,
    least_noise: Annotated[
        float | None,
        option(
            "Take part only if clients add noise of at least so many times [privacy] "
            "clip to what they send."
        ),
    ] = None,
    peers: Annotated[
        Path | None,
        option(
            "Folder with the public keys (*.pub) of the clients that may take part in "
            "secure sums; by default whoever does."
        ),
    ] = None,
    data_dir: options.DataDir = None,
    settings: Annotated[
        list[str] | None,
        option(
            "Setting of this client's own, in [data] or [split] of the run's file: "
            'data.target=sick, data.drop=["note"], split.time=visit.',
            "--set",
        ),
    ] = None,
    device: options.Device = None,
    quiet: options.Quiet = False,
    as_json: options.Json = False,
) -> None:
    r"""Join a run with data that stay here, and leave with a model of one's own.

    Ctrl-C ends it; the same command goes on from there.

    Examples:
        fedloom join server.example.org:9092 --home mine --data mine.csv \
                     --name north --client-key keys/client-1 --ca keys/ca.pem
        fedloom join server.example.org:9092 --home mine --data mine.csv \
                     --name north --client-key keys/client-1 --ca keys/ca.pem \
                     --secure 5 --peers keys
        fedloom join localhost:9100 --home home-0 --client 0 --insecure
    """
    from fedloom.deploy import OWN_SETTINGS

    node: dict[str, str | int | float | bool] = {"home": str(home.resolve())}
    node |= which_client(data, name, client, team)
    if data_dir is not None:
        node["data-dir"] = str(data_dir.resolve())
    if not sizes:
        node["tells-sizes"] = False
    if log_odds:
        node["tells-log-odds"] = True
    if begin_anew:
        node["begins-anew"] = True
    node |= demands(secure, least_noise, peers, client_key)
    if settings or device is not None:
        node[OWN_SETTINGS] = own_settings(settings or [], device)
    joining = _flower("join", "joining")
    server = joining.Server(
        *_server_of("join", address, client_key, ca, insecure=insecure)
    )
    refuse_unfit_keys(secure, client_key, peers)
    with (
        joining.claimed_home(home, node) as claimed,
        stoppable("The same command goes on."),
        _ends_on_signals(),
    ):
        results = joining.join(server, claimed, node, tell)
    _show("join", results, home, as_json=as_json)


def leave_command(
    home: Annotated[Path, argument("Folder of the client, as given to `join`.")],
    run: Annotated[
        str | None, option("Id of the run: a folder in it; the last by default.")
    ] = None,
    as_json: options.Json = False,
) -> None:
    """Make a client's model and report from its own folder, without the server.

    Examples:
        fedloom leave mine
        fedloom leave mine --run first --json
    """
    joining = _flower("leave", "joining")
    with stoppable():
        results = joining.leave(home, run)
    _show("leave", results, home, as_json=as_json)


def _flower(command: str, module: str) -> Any:
    """A module that needs Flower."""
    if not hasattr(os, "fork"):
        raise ConfigError(
            f"{command}: federations need Linux or macOS. On Windows use its Subsystem "
            "for Linux (WSL); `fedloom run` and `fedloom compare` work as they are."
        )
    try:
        from importlib import import_module

        return import_module(f"fedloom.flower.{module}")
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"{command} needs a library that is not installed ({error}). Install it "
            "with: pip install 'fedloom[flower]'"
        ) from error


def _server_of(
    command: str,
    address: str,
    client_key: Path | None,
    ca: Path | None,
    *,
    insecure: bool,
) -> tuple[Link, Path | None]:
    """How a server is reached, and the key that is shown there, all of it checked."""
    joining, processes = _flower(command, "joining"), _flower(command, "processes")
    joining.read_address(address, "serve: --above" if command == "serve" else command)
    if insecure == (ca is not None or client_key is not None):
        raise ConfigError(
            f"{command}: give --ca ca.pem and --client-key KEY, or --insecure for a "
            "server that does without; not both."
        )
    if not insecure:
        for path, what in ((ca, "--ca ca.pem"), (client_key, "--client-key KEY")):
            if path is None:
                raise ConfigError(f"{command}: {what} is missing.")
        joining.check_ca(ca)
        joining.check_key(client_key)
    link = processes.Link(address, None if ca is None else ca.resolve())
    return link, None if client_key is None else client_key.resolve()


def _refuse_policy(policy: dict[str, float]) -> None:
    """Refuse an option on how long to wait, by its name."""
    for name, value in policy.items():
        try:
            Policy(**{name: value})
        except ConfigError as error:
            text = str(error).removeprefix(f"Policy: {name} ")
            raise ConfigError(f"serve: --{name.replace('_', '-')} {text}") from error


def _run_id(run: str | None) -> str | None:
    """The id of a run, checked."""
    if run is not None and re.fullmatch(r"[a-z0-9][a-z0-9-]{0,63}", run) is None:
        raise ConfigError(
            "serve: --run must be up to 64 small letters, digits and hyphens, found "
            f"{shown(run)}."
        )
    return run


def _team(
    team: str | None,
    above: str | None,
    client_key: Path | None,
    ca: Path | None,
    run: str | None,
    *,
    insecure: bool,
    of_teams: bool,
) -> Any:
    """Where a team's server belongs; None for any other server."""
    if team is None:
        if above is not None or client_key is not None or ca is not None:
            raise ConfigError("serve: --above, --client-key and --ca go with --team.")
        return None
    if of_teams:
        raise ConfigError(
            "serve: give --team NAME for a team's server, or --of-teams for the global "
            "one; not both."
        )
    refuse_name("serve: --team", "the team", team)
    for value, what in ((above, "--above HOST:PORT"), (run, "--run ID")):
        if value is None:
            raise ConfigError(
                f"serve: {what} is missing: a team's server takes part in the run of a "
                "global one, which says where it listens and what the run is called."
            )
    joining, serving = _flower("serve", "joining"), _flower("serve", "serving")
    server = _server_of("serve", above or "", client_key, ca, insecure=insecure)
    return serving.Team(team, joining.Server(*server))


def _understood(config: RunConfig, server: ServerSettings) -> str:
    """What is about to be done, in one line."""
    return (
        f"{config.algorithm.name} for {counted(config.schedule.rounds, 'round')} with "
        f"{expected(server)}; the run is in {server.out}"
    )


def _has_ended(out: Path) -> bool:
    """Whether a run is over, and its clients have been told so."""
    from fedloom.core.digests import read_checked_json
    from fedloom.results.directory import RunDirectory

    file = RunDirectory(out).federation
    if not file.is_file():
        return False
    return bool(read_checked_json(file, "a federation", ("run",)).get("has_ended"))


@contextmanager
def _ends_on_signals() -> Iterator[None]:
    """Have signals that ask for an end raise, so that what was started is ended."""
    from fedloom.server.schedule import ENDS, handling

    def end(number: int, _: Any) -> None:
        raise SystemExit(128 + number)

    with handling(ENDS, end):
        yield


def _show(command: str, results: OwnResults, home: Path, *, as_json: bool) -> None:
    folder = home / results.run
    say(f"\n{results.sentence}\n")
    say(f"Model: {folder / 'model'}")
    say(f"Report: {folder / 'report.html'}")
    if as_json:
        print_json(
            {
                "command": command,
                "sentence": results.sentence,
                "model": folder / "model",
                "report": folder / "report.html",
            }
        )
