"""How much memory this machine has, and what is said where it does not suffice."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from fedloom.core.errors import ConfigError

_GROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
"""Where a container on Linux says how much it may have."""

_REFUSALS = (
    "can't allocate memory",
    "not enough memory",
    "out of memory",
    "could not create a primitive",
)
"""What PyTorch says if it gets no memory, as an error of no kind of its own."""


def host_memory() -> int:
    """Bytes that this process may have: the machine's, or a limit below that."""
    limits = [_machine_memory(), *_process_limits()]
    for path in _GROUP_LIMITS:
        with suppress(OSError, ValueError):  # not there, or "max"
            limits.append(int(path.read_text(encoding="utf-8")))
    return min(limits)


def _machine_memory() -> int:
    """Bytes of the machine; without bound where it does not say."""
    if sys.platform == "win32":
        return _windows_memory()
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return sys.maxsize


def _process_limits() -> list[int]:
    """Bytes that the shell lets a process have; Windows knows no such limits."""
    limits: list[int] = []
    if sys.platform != "win32":
        with suppress(ImportError):
            import resource

            for kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA):
                limits.append(resource.getrlimit(kind)[0])
            limits = [limit for limit in limits if limit != resource.RLIM_INFINITY]
    return limits


def _windows_memory() -> int:
    """What Windows answers: a record of its own size, a share, and seven counts."""
    import ctypes

    record = (ctypes.c_uint64 * 8)()
    size = ctypes.sizeof(record)
    ctypes.memmove(record, size.to_bytes(4, "little"), 4)
    library = getattr(ctypes, "windll", None)
    if library is None or not library.kernel32.GlobalMemoryStatusEx(record):
        return sys.maxsize
    return int(record[1])


def refuse_beyond_memory(wanted: float, what: str, advice: str) -> None:
    """Refuse what would not fit in memory before any of it is made.

    Args:
        wanted: bytes that it would take.
        what: what would take them, the subject of a sentence.
        advice: a sentence that says what to do.

    Raises:
        ConfigError: there are not so many; the message has both figures.
    """
    room = host_memory()
    if wanted > room:
        raise ConfigError(
            f"{what} would take {wanted / 1e9:.1f} GB, and there are "
            f"{room / 1e9:.1f} GB of memory. {advice}"
        )


@contextmanager
def lack_of_memory_explained(what: str, advice: str) -> Iterator[None]:
    """Say what ran out of memory where that could not be foreseen.

    Args:
        what: what is done, the subject of a sentence.
        advice: a sentence that says what to do.

    Raises:
        ConfigError: there was not enough memory.
    """
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        text = str(error).lower()
        is_lack = isinstance(error, MemoryError)
        if not is_lack and not any(words in text for words in _REFUSALS):
            raise
        raise ConfigError(
            f"{what} needs more memory than there is ({host_memory() / 1e9:.1f} GB on "
            f"this machine). {advice}"
        ) from error
