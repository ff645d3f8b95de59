"""Processes that train methods at the same time, and end with the one that began."""

from __future__ import annotations

import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import AbstractContextManager, contextmanager
from itertools import islice
from typing import Any, TypeVar

from fedloom.core.errors import FedloomError
from fedloom.server.schedule import ENDS, handling

T = TypeVar("T")
Came = TypeVar("Came")

_PAUSE = 0.5
"""Seconds after which somebody who waits for tasks looks how far they are."""


@contextmanager
def workers(
    count: int, begin: Callable[..., None], values: tuple[Any, ...]
) -> Iterator[Callable[..., Future[Any]]]:
    """Processes that end with this one, whatever ends it.

    Args:
        count: how many.
        begin: what each calls first.
        values: what that is given.

    Yields:
        What calls a function in one of them.
    """
    others = set(multiprocessing.active_children())
    # Spawned, because a forked PyTorch may hang in its thread pools.
    context = multiprocessing.get_context("spawn")
    with (
        ended_by_signals(),
        ProcessPoolExecutor(
            count,
            mp_context=context,
            initializer=_follow_parent,
            initargs=(begin, values),
        ) as pool,
    ):

        def submit(*call: Any) -> Future[Any]:
            # A process that it spawns ignores Ctrl-C from its first moment on, so that
            # it is quiet while it imports; who began it says what there is to say.
            with handling([signal.SIGINT], signal.SIG_IGN):
                return pool.submit(*call)

        try:
            yield submit
        except BaseException as error:
            # To one that trains this says: finish the exchange, secure it, and stop.
            for worker in set(multiprocessing.active_children()) - others:
                worker.terminate()
            if isinstance(error, BrokenProcessPool):
                raise FedloomError(
                    "A process that trained a method was killed, perhaps for want of "
                    "memory; --jobs 1 needs the least."
                ) from error
            raise


def hand_out(
    tasks: Sequence[T],
    start: Callable[[T], Future[Came]],
    count: int,
    finish: Callable[[T, Came], None],
    look: Callable[[], None] = lambda: None,
) -> None:
    """Start a task whenever one is finished, and no earlier.

    Args:
        tasks: what there is to do.
        start: what starts one.
        count: how many go on at the same time.
        finish: is given each that is finished, and its result.
        look: is called now and then in between.
    """
    waiting = iter(tasks)
    running = {start(task): task for task in islice(waiting, count)}
    while running:
        done, _ = wait(running, timeout=_PAUSE, return_when=FIRST_COMPLETED)
        for future in done:
            finish(running.pop(future), future.result())
        running |= {start(task): task for task in islice(waiting, len(done))}
        look()


def ended_by_signals() -> AbstractContextManager[None]:
    """Have signals that ask this process to end raise SystemExit, as Ctrl-C raises.

    Whoever works for it can then be told to secure what is done.
    """
    return handling(ENDS, _end)


def _end(number: int, _: Any) -> None:
    raise SystemExit(128 + number)


def _follow_parent(begin: Callable[..., None], values: tuple[Any, ...]) -> None:
    """In a worker: end at once when the process that started it is no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # until there is something to stop
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()
    begin(*values)
