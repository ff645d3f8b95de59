"""A run whose clients are elsewhere: the server's half, a team's, and one client's."""

from fedloom.deploy.client import (
    OWN_SETTINGS,
    make_node,
    only_client,
    whole_dataset_as_client,
    with_own_settings,
)
from fedloom.deploy.own_results import (
    OwnResults,
    read_own_results,
    write_own_results,
)
from fedloom.deploy.server import refuse_other_run, serve
from fedloom.deploy.team import TeamServer, open_team

__all__ = [
    "OWN_SETTINGS",
    "OwnResults",
    "TeamServer",
    "make_node",
    "only_client",
    "open_team",
    "read_own_results",
    "refuse_other_run",
    "serve",
    "whole_dataset_as_client",
    "with_own_settings",
    "write_own_results",
]
