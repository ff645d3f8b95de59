"""What a server of a federation does, as it is told while `fedloom serve` goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from fedloom.commands.console import progress, remark, tell
from fedloom.core.wording import counted

if TYPE_CHECKING:
    from fedloom.config import RunConfig
    from fedloom.flower.serving import Outcome, RunningServer, ServerSettings
    from fedloom.progress import Watcher

_POLL_S = 0.5


def show_server(
    config: RunConfig,
    settings: ServerSettings,
    running_server: Callable[[ServerSettings], AbstractContextManager[RunningServer]],
) -> Outcome:
    """Run a server to its end, and tell what it does.

    Args:
        config: of the run.
        settings: of the server.
        running_server: `fedloom.flower.serving.running_server`, which needs Flower.
    """
    from fedloom.progress import watch

    with watch(progress) as watcher, running_server(settings) as server:
        server.start()
        if server.keys_removed:
            tell(
                f"No longer admitted, since not in {settings.certificates} any more: "
                f"{counted(server.keys_removed, 'key')}."
            )
        tell(listening(config, settings))
        if settings.of_teams:
            tell(f"Team servers are started with --run {server.run}")
        rows = _Rows(config, settings.out, watcher)
        while True:
            outcome: Outcome | None = server.outcome()
            _show_lines(server)
            rows.show()
            if outcome is not None:
                return outcome
            time.sleep(_POLL_S)


def _show_lines(server: RunningServer) -> None:
    for line in server.new_lines():
        tell(line)


class _Rows:
    """Shows the rows of a run as they are written."""

    def __init__(self, config: RunConfig, out: Path, watcher: Watcher) -> None:
        from fedloom.results.directory import RunDirectory

        self._directory = RunDirectory(out)
        self._rounds = config.schedule.rounds
        self._watcher = watcher
        self._shown: int | None = None
        self._size = -1

    def show(self) -> None:
        """Show what is new."""
        file = self._directory.path / "rounds.jsonl"
        if not self._directory.manifest.is_file() or not file.is_file():
            return
        size = file.stat().st_size
        if size == self._size:
            return
        self._size = size
        rows = self._directory.read_rounds()
        if self._shown is None:
            self._shown = max((row.round for row in rows), default=0)
            metric = str(self._directory.read_manifest()["metric"])
            self._watcher.begin(self._rounds, self._shown, metric, is_elsewhere=True)
        for row in rows:
            if row.round <= self._shown:
                continue
            self._shown = row.round
            self._watcher.round(row)
            names = self._names()
            for refusal in row.refusals:
                name = names[refusal["client"]]
                remark(f"round {row.round}: {name} was refused: {refusal['reason']}")
            silent = {*row.absent} - {refusal["client"] for refusal in row.refusals}
            for number in sorted(silent):
                remark(f"round {row.round}: {names[number]} did not answer in time")

    def _names(self) -> list[str]:
        from fedloom.core.digests import read_checked_json

        table = read_checked_json(
            self._directory.federation, "a federation", ("names",)
        )
        return list(table["names"])


def listening(config: RunConfig, server: ServerSettings) -> str:
    """What is true once a server has started: where it is, and for whom it waits."""
    from fedloom.results.directory import RunDirectory
    from fedloom.server.checkpoint import whole_positions

    how = (
        f"encrypted, {counted(len(server.keys), 'key')} admitted"
        if server.certificates is not None
        else "NOT ENCRYPTED, anybody may take part"
    )
    text = (
        f"Listening at {server.host}, port {server.port}, {how}. Waiting for "
        f"{expected(server)} to join."
    )
    positions = whole_positions(RunDirectory(server.out).checkpoint)
    if not positions:
        return text
    done, rounds = positions[0].round, config.schedule.rounds
    if done >= rounds:
        return f"{text} Its last round is done; clients are told so."
    return f"{text} The run goes on with round {done + 1} of {rounds}."


def expected(server: ServerSettings) -> str:
    """Who is to join: `2 clients`."""
    return counted(server.clients, "team server" if server.of_teams else "client")
