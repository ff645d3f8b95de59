"""Work in pieces, one after another or several at a time in processes of their own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch

from fedloom.comparison.workers import hand_out, workers

Task = TypeVar("Task")
Came = TypeVar("Came")


def each(
    tasks: Sequence[Task],
    work: Callable[[Task], Came],
    jobs: int,
    finish: Callable[[Task, Came], None],
) -> None:
    """Do every piece of work, and hand over what came of it as soon as it is done.

    Args:
        tasks: what there is to do; with several jobs they travel to processes.
        work: does one.
        jobs: how many go on at the same time.
        finish: is given each that is done, and what came of it.
    """
    count = min(jobs, len(tasks))
    if count <= 1:
        for task in tasks:
            finish(task, work(task))
        return
    with workers(count, _begin_worker, (work, count)) as start:
        hand_out(tasks, lambda task: start(_work, task), count, finish)


_here: dict[str, Callable[[Any], Any]] = {}
"""In a worker: what does a piece of work, and keeps what the next one needs too."""


def _begin_worker(work: Callable[[Any], Any], count: int) -> None:
    torch.set_num_threads(max(1, torch.get_num_threads() // count))
    _here["work"] = work


def _work(task: Any) -> Any:
    return _here["work"](task)
