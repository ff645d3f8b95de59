"""A run that was stopped, back at a checkpoint and with the rows up to there."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fedloom.clients.federation import Federation
from fedloom.core.errors import DataError, MessageError
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.server import checkpoint
from fedloom.server.checkpoint import START, Position
from fedloom.server.training import Training


def refuse_other_data(
    where: Path, manifest: Mapping[str, Any], clients: Federation
) -> None:
    """Refuse to go on with other samples, or the same ones divided otherwise.

    Args:
        where: the directory of the run.
        manifest: its manifest.
        clients: who would hold what.

    Raises:
        DataError: they are not those that the run began with.
    """
    data = clients.dataset
    if manifest.get("data", data.hash) != data.hash:
        raise DataError(
            f"{where}: the samples of {data.name} are not those that the run "
            f"began with: their hash is {data.hash[:12]}, was "
            f"{manifest['data'][:12]}. Put the data back, or start a new run."
        )
    if manifest.get("names", clients.names_hash) != clients.names_hash:
        raise DataError(
            f"{where}: the clients have other names than when the run began. Name "
            "them as before, or start a new run."
        )
    if manifest["split"] != clients.hash:
        raise DataError(
            f"{where}: the samples are divided among clients in another way "
            f"than when the run began: the hash is {clients.hash[:12]}, was "
            f"{manifest['split'][:12]}. Divide them as before, or start a new run."
        )


def restore_latest(training: Training, directory: RunDirectory) -> str:
    """Put a run back to its last whole checkpoint, or leave it at its start.

    Returns:
        A remark for the user; empty if there is nothing to say.
    """
    if not checkpoint.exists(directory.checkpoint):
        return ""
    try:
        return checkpoint.restore(training, directory.checkpoint)
    except MessageError as error:
        if checkpoint.whole_positions(directory.checkpoint):
            raise
        return f"{error} No other is there, so the run starts from its beginning."


def truncate_after(directory: RunDirectory, at: Position) -> list[Round]:
    """Forget what a run wrote after a checkpoint.

    Returns:
        The rows up to there.

    Raises:
        MessageError: a row up to there was changed or lost; nothing was changed.
    """
    is_new = at == START
    rows = {} if is_new else checkpoint.rows_at(directory.checkpoint, at)
    directory.rows.go_on_after(rows)
    checkpoint.forget_after(directory.checkpoint, at)
    return directory.truncate_rows(-1 if is_new else at.round)
