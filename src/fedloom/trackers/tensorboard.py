"""TensorBoard: event files in the run's directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fedloom.core.errors import ConfigError
from fedloom.results.directory import RunDirectory
from fedloom.results.rows import Round
from fedloom.trackers.extra import missing
from fedloom.trackers.tracker import About, Ending


class TensorBoard:
    """Curves of every number, beside the settings; nothing leaves this machine.

    Args:
        folder: where the event files go; `tensorboard` in the run's directory if not
            given.
    """

    name = "tensorboard"

    def __init__(self, folder: str | Path | None = None) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise missing(self.name, error) from error
        self._make = SummaryWriter
        self._folder = Path(folder) if folder is not None else None
        self._writer: Any = None

    def start(self, about: About) -> None:
        """Open the event file; what an interrupted run wrote too much is hidden."""
        if self._folder is None:
            if about.path is None:
                raise ConfigError("a run without a directory; give it a folder.")
            directory = RunDirectory(about.path)
            self._folder = directory.tensorboard
            if not about.first:
                # Of this run before it started again; others may be the user's own.
                for old in directory.tracked_by(self.name):
                    old.unlink()
            directory.claim_tracked(self.name)
        purge = about.first + 1 if about.first else None
        # Written through, so that a run that is killed leaves what it had.
        self._writer = self._make(str(self._folder), purge_step=purge, max_queue=1)
        lines = [f"    {name} = {value}" for name, value in about.settings().items()]
        self._writer.add_text("settings", "\n".join(lines), about.first)

    def round(self, row: Round) -> None:
        """One point on every curve."""
        for name, value in row.numbers().items():
            self._writer.add_scalar(name, value, row.round)

    def end(self, ending: Ending) -> None:
        """Add the closing table, or why there is none."""
        text = f"stopped: {ending.failure}\n\n" if ending.failure else ""
        lines = [f"    {line}" for line in str(ending.table).splitlines()]
        self._writer.add_text("result", text + "\n".join(lines), ending.table.round)
        self._writer.close()
