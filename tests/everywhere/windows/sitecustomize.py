"""Conditions of Windows, as far as another system can have them.

Python imports a module of this name at its start, in every process that finds it on
PYTHONPATH. What Windows lacks is taken away: fcntl, resource, pwd; user ids, sysconf,
fork, symbolic links, some signals. Text files without a named encoding are cp1252 with
CRLF. A file that is open or mapped in this process can neither be removed nor replaced,
where /proc tells which ones are.
"""

from __future__ import annotations

import builtins
import errno
import io
import os
import signal
from collections.abc import Callable
from typing import Any

_ABSENT = {"fcntl", "resource", "pwd", "grp", "termios"}
_KNOWS_BOTH_LOCKS = "filelock"
"""Takes msvcrt in the place of fcntl there."""
_open, _import = io.open, builtins.__import__


def _import_as_on_windows(
    name: str, globals_: Any = None, *rest: Any, **more: Any
) -> Any:
    importer = (globals_ or {}).get("__name__", "")
    if name in _ABSENT and not importer.startswith(_KNOWS_BOTH_LOCKS):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)
    return _import(name, globals_, *rest, **more)


def _open_as_on_windows(
    file: Any,
    mode: str = "r",
    buffering: int = -1,
    encoding: str | None = None,
    errors: str | None = None,
    newline: str | None = None,
    *rest: Any,
    **more: Any,
) -> Any:
    if "b" not in mode:
        encoding = "cp1252" if encoding in (None, "locale") else encoding
        if newline is None and set(mode) & set("wax+"):
            newline = "\r\n"
    return _open(file, mode, buffering, encoding, errors, newline, *rest, **more)


def _in_use() -> set[str]:
    files = set()
    try:
        for number in os.listdir("/proc/self/fd"):
            try:
                files.add(os.readlink(f"/proc/self/fd/{number}"))
            except OSError:
                continue
        with _open("/proc/self/maps", "rb") as maps:
            for line in maps.read().splitlines():
                parts = line.split(maxsplit=5)
                files.update(os.fsdecode(part) for part in parts[5:])
    except OSError:
        pass
    return files


def _refusing(call: Callable[..., Any]) -> Callable[..., Any]:
    def refuse_what_is_in_use(*paths: Any, **more: Any) -> Any:
        in_use = _in_use()
        for path in paths:
            if os.path.realpath(os.fspath(path)) in in_use:
                raise PermissionError(errno.EACCES, "the file is in use", path)
        return call(*paths, **more)

    return refuse_what_is_in_use


def _no_links(*_: Any, **__: Any) -> None:
    raise OSError(errno.EPERM, "a privilege is not held")


for name in ("sysconf", "getuid", "geteuid", "fork", "sched_getaffinity"):
    if hasattr(os, name):
        delattr(os, name)
for name in ("SIGKILL", "SIGHUP", "SIGQUIT"):
    if hasattr(signal, name):
        delattr(signal, name)
builtins.__import__ = _import_as_on_windows
io.open = builtins.open = _open_as_on_windows  # type: ignore[assignment]
os.symlink = _no_links
for name in ("unlink", "remove", "replace", "rename"):
    setattr(os, name, _refusing(getattr(os, name)))
