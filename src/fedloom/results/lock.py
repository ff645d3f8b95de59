"""One writer per directory: a lock that the system lets go of when its holder dies.

The lock is the kernel's (`flock`), not the file's being there: the file stays, and one
that a killed process left behind holds nobody up. Where Python has no `fcntl`, and on
file systems that know no locks, nothing keeps two writers apart.
"""

from __future__ import annotations

import errno
import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.files import cannot_write

try:
    import fcntl
except ImportError:  # not a Unix
    fcntl = None  # type: ignore[assignment]

_PATIENCE_S = 3.0
"""A process that was killed may take as long to let go of its memory and its locks."""


@contextmanager
def hold(file: Path) -> Iterator[None]:
    """Be the only one who holds this lock.

    Args:
        file: the lock; it lies in the directory that it protects.

    Raises:
        ConfigError: another process holds it.
        DataError: the file cannot be made.
    """
    try:
        descriptor = os.open(file, os.O_RDWR | os.O_CREAT, 0o666)
    except OSError as error:
        raise cannot_write(file, error) from error
    try:
        _wait(descriptor, file)
        # On a full disk the lock holds all the same; only the holder's name is lost.
        with suppress(OSError):
            os.ftruncate(descriptor, 0)
            os.write(descriptor, f"{os.getpid()} {platform.node()}\n".encode())
        yield
    finally:
        os.close(descriptor)


def _wait(descriptor: int, file: Path) -> None:
    if fcntl is None:
        return
    deadline = time.monotonic() + _PATIENCE_S
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= deadline:
                raise ConfigError(_refusal(file)) from None
            time.sleep(0.05)
        except OSError as error:
            if error.errno in (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS):
                return
            raise cannot_write(file, error) from error


def _refusal(file: Path) -> str:
    pid, _, host = file.read_text().strip().partition(" ")
    holder = f"process {pid} on {host}" if pid else "another process"
    stop = f", stop it with `kill {pid}`," if pid else ""
    return (
        f"{file.parent}: {holder} is writing to it. Wait until it is done{stop} "
        "or choose another directory."
    )
