"""The folder of the user's in which things are kept that can be made again."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def user_cache() -> Path:
    """The folder, made if it is not there: code is loaded from it.

    Raises:
        OSError: There is none, or others could write to it.
    """
    given = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(given):
        try:
            given = str(Path.home() / ".cache")
        except RuntimeError as error:
            raise FileNotFoundError("the user has no home directory") from error
    folder = Path(given) / "fedloom"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if sys.platform != "win32" and hasattr(os, "getuid"):
        found = folder.stat()
        if found.st_uid != os.getuid() or found.st_mode & 0o022:
            raise PermissionError(f"others can write to {folder}")
    return folder
