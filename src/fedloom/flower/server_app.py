"""The server of a federation as a Flower app.

What a run is like comes from Flower's run config (`flwr run -c`):

    config      the settings of the run, as the text of a TOML file
    clients     how many clients there are
    out         the run's directory, on the machine of the SuperLink
    run         id of the run; the same id and directory go on with it
    tier        "only" for the one server of a run, "global" for a server of team
                servers, "team" for one of these, which also has:
    team        what the team is called
    team-home   the team server's own folder; in the node config of the SuperNode by
                which the team takes part at the global server it is all there is
    state       folder for what `fedloom serve` reads: server.log, outcome.json
    deadline-s, quorum, patience-s, retry-s, end-s, largest-norm   as in `Policy`
"""

from __future__ import annotations

import logging
import sys
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from torch import nn

from fedloom.config import RunConfig, parse
from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.digests import write_checked_json
from fedloom.core.errors import ConfigError, FedloomError
from fedloom.core.losses import Loss
from fedloom.core.settings import build
from fedloom.deploy import open_team, serve
from fedloom.flower.channel import GridChannel
from fedloom.flower.team_listener import TeamListener
from fedloom.remote import Policy
from fedloom.results.rows import Round
from fedloom_flower_client import RUN, TEAM_HOME, with_run_id

_log = logging.getLogger(__name__)
OUTCOME = "outcome.json"
"""How a run ended, for whoever started it."""
SERVER_LOG = "server.log"
"""Who has enrolled, and whom the server refused."""


def run_settings(
    run_config: Mapping[str, Any], algorithm: AnyAlgorithm | None = None
) -> RunConfig:
    """The settings of a run from Flower's run config.

    Args:
        run_config: what `flwr run` was given.
        algorithm: a method of one's own in place of the config's.

    Raises:
        ConfigError: There are none, or they are not valid.
    """
    text = run_config.get("config", "")
    if not isinstance(text, str):
        raise ConfigError("run config: config must be the text of a TOML file.")
    try:
        tables = tomllib.loads(text)
    except ValueError as error:
        raise ConfigError(f"run config: config is not valid TOML: {error}.") from error
    if algorithm is None:
        return parse(tables, "run config")
    tables.pop("algorithm", None)
    return replace(parse(tables, "run config"), algorithm=algorithm)


def make_server_app(
    *,
    algorithm: AnyAlgorithm | None = None,
    model: str | nn.Module | Callable[[], nn.Module] | None = None,
    loss: str | Loss | None = None,
    head: str | None = None,
) -> ServerApp:
    """A Flower server app, for a method or a module of one's own.

    Args:
        algorithm: a method in place of the config's; the client app has the same.
        model: a module in place of the config's; the client app has the same.
        loss: as for `fedloom.run`.
        head: as for `fedloom.run`.
    """
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        logging.basicConfig(level=logging.WARNING, format="%(message)s")
        logging.getLogger("fedloom").setLevel(logging.INFO)
        settings = with_run_id(context)
        config = run_settings(settings, algorithm)
        waiting = {
            field.name: settings[key]
            for field in fields(Policy)
            if (key := field.name.replace("_", "-")) in settings
        }
        policy = build(Policy, waiting, "run config")
        run = str(settings[RUN])
        out = Path(str(settings.get("out") or f"fedloom-{run}"))
        with _outcome_written(str(settings.get("state", ""))):
            channel = GridChannel(grid, ttl_s=policy.deadline_s)
            tier = settings.get("tier", "only")
            own: dict[str, Any] = {"model": model, "loss": loss, "head": head}
            own |= {"run": run, "clients": _count(settings), "policy": policy}
            if tier == "team":
                home, name = Path(_text(settings, TEAM_HOME)), _text(settings, "team")
                with open_team(
                    config, channel, out, name=name, home=home, **own
                ) as team:
                    team.opened.history.follower = _tell
                    TeamListener(team, policy).run()
            elif tier in ("only", "global"):
                of_teams = tier == "global"
                serve(config, channel, out, of_teams=of_teams, follower=_tell, **own)
            else:
                raise ConfigError(
                    f"run config: tier must be only, global or team, found {tier!r}."
                )

    return app


@contextmanager
def _outcome_written(state: str) -> Iterator[None]:
    """Say in a folder what the server does, and how the run ended."""
    if not state:
        yield
        return
    folder = Path(state)
    handler = logging.FileHandler(folder / SERVER_LOG, encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(message)s"))
    for name in ("fedloom.remote", "fedloom.deploy"):
        logging.getLogger(name).addHandler(handler)
    outcome: dict[str, Any] = {"exit_code": 0, "error": "", "notes": []}
    try:
        yield
    except FedloomError as error:
        notes = list(getattr(error, "__notes__", ()))
        outcome = {"exit_code": error.exit_code, "error": str(error), "notes": notes}
        raise
    except Exception as error:
        outcome |= {"exit_code": 1, "error": f"{type(error).__name__}: {error}"}
        raise
    finally:
        handler.close()
        if not isinstance(sys.exception(), KeyboardInterrupt | SystemExit):
            write_checked_json(folder / OUTCOME, outcome)


def _count(settings: Mapping[str, Any]) -> int:
    clients = settings.get("clients", 0)
    if type(clients) is not int or clients < 1:
        raise ConfigError(
            "run config: clients must say how many clients there are, found "
            f"{clients!r}. For five: flwr run ... -c 'clients=5'."
        )
    return clients


def _text(settings: Mapping[str, Any], key: str) -> str:
    text = settings.get(key, "")
    if not isinstance(text, str) or not text:
        raise ConfigError(
            f"run config: a team's server needs {key}, found {text!r}. For instance: "
            'flwr run ... -c \'tier="team" team="north" team-home="/srv/north"\'.'
        )
    return text


def _tell(row: Round) -> None:
    _log.info(
        "Round %d: %d clients, %d missing, loss %s.",
        row.round,
        row.participants,
        row.missing,
        row.train_loss,
    )
    for refusal in row.refusals:
        _log.warning("%s was refused: %s", refusal["name"], refusal["reason"])


app = make_server_app()
