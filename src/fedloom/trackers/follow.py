"""Trackers at a run: told of everything, trusted with nothing."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from fedloom.results.table import closing_table
from fedloom.server.history import History
from fedloom.trackers.tracker import About, Ending, Tracker

_log = logging.getLogger(__name__)


@contextmanager
def follow(
    history: History, config: Mapping[str, Any], trackers: Sequence[Tracker]
) -> Iterator[None]:
    """Let trackers follow a run while the block trains it.

    A tracker that raises is mentioned once and left out from then on.

    Args:
        history: of the run; its rows are passed on as they are kept.
        config: the resolved settings of the run.
        trackers: who follows.
    """
    going = list(trackers)
    if not going:
        yield
        return

    def tell(what: str, value: Any) -> None:
        for tracker in tuple(going):
            try:
                getattr(tracker, what)(value)
            except Exception as error:
                going.remove(tracker)
                _log.warning(
                    "tracker %s failed (%s: %s); the run goes on without it",
                    tracker.name,
                    type(error).__name__,
                    error,
                )

    tell("start", _about(history, config))
    history.follower = lambda row: tell("round", row)
    failure: str | None = None
    try:
        yield
        if history.directory is not None:
            failure = history.directory.read_failure()
    except BaseException as error:
        failure = str(error) or type(error).__name__
        raise
    finally:
        history.follower = None
        table = closing_table(history.rounds, history.training.task.metric)
        tell("end", Ending(table=table, failure=failure))


def _about(history: History, config: Mapping[str, Any]) -> About:
    directory = history.directory
    return About(
        name=history.training.algorithm.name
        if directory is None
        else str(directory.path),
        path=None if directory is None else directory.path,
        config=config,
        manifest={} if directory is None else directory.read_manifest(),
        first=history.training.state.round,
    )
