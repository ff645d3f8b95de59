"""One writer per directory: a lock that the system lets go of when its holder dies.

The lock is the kernel's, not the file's being there: one that a killed process left
behind holds nobody up. On file systems that know no locks nothing
keeps two writers apart.
"""

from __future__ import annotations

import errno
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedloom.core.errors import ConfigError
from fedloom.core.files import cannot_write, write_text

_PATIENCE_S = 3.0
"""A process that was killed may take as long to let go of its memory and its locks."""
_KNOWS_NO_LOCKS = {errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS}


@contextmanager
def hold(
    file: Path, patience_s: float | None = None, *, stays: bool = True
) -> Iterator[None]:
    """Be the only one who holds this lock.

    Args:
        file: the lock; it lies in the directory that it protects.
        patience_s: how long to wait for another holder; a few seconds by default.
        stays: whether the file stays when nobody holds it any more.

    Raises:
        ConfigError: another process holds it, or it is a link.
        DataError: the file cannot be made.
    """
    from filelock import FileLock, Timeout  # only who writes a run needs it

    if file.is_symlink():
        raise ConfigError(
            f"{file}: expected a file, found a link. Remove it; it holds nothing of a "
            "run. A directory elsewhere may be a link as a whole."
        )
    # No soft lock instead: it would outlive a killed process.
    wait = _PATIENCE_S if patience_s is None else patience_s
    lock = FileLock(file, wait, fallback_to_soft=False, preserve_lock_file=True)
    try:
        lock.acquire()
    except Timeout:
        raise ConfigError(_refusal(file)) from None
    except OSError as error:
        if error.errno not in _KNOWS_NO_LOCKS:
            raise cannot_write(file, error) from error
    try:
        # On a full disk the lock holds all the same; only the holder's name is lost.
        with suppress(OSError):
            write_text(file, f"{os.getpid()} {platform.node()}\n")
        yield
    finally:
        if not stays:
            # Held still: who waits for this file sees that it has gone, and makes one.
            with suppress(OSError):
                file.unlink()
        lock.release()


def _refusal(file: Path) -> str:
    pid, host = "", ""
    with suppress(OSError):  # Windows lets nobody read a file that is locked.
        pid, _, host = file.read_text(encoding="utf-8").strip().partition(" ")
    holder = f"process {pid} on {host}" if pid else "another process"
    stop = f", stop it with `kill {pid}`," if pid else ""
    return (
        f"{file.parent}: {holder} is writing to it. Wait until it is done{stop} "
        "or choose another directory."
    )
