"""Where compiled code is kept, so that the next run need not compile again."""

from __future__ import annotations

import os
from contextlib import suppress

from fedloom.core.user_cache import user_cache

VARIABLE = "TORCHINDUCTOR_CACHE_DIR"
"""The environment variable that tells PyTorch where to keep compiled code."""


def keep_compiled_code() -> None:
    """Have PyTorch keep compiled code in the user's cache directory.

    By default it is kept in a folder for temporary files, which is emptied when the
    machine starts. A directory that the user chose by the variable stays; where none
    can be made, PyTorch's own choice does. The folder may be removed at any time.
    """
    if _chosen_by_user():
        return
    with suppress(OSError):
        folder = user_cache() / "compiled"
        folder.mkdir(exist_ok=True)
        if os.access(folder, os.W_OK):
            os.environ[VARIABLE] = str(folder)


def _chosen_by_user() -> bool:
    given = os.environ.get(VARIABLE)
    if not given:
        return False
    # PyTorch writes its own choice into the variable as soon as it looks it up.
    from torch._inductor.runtime.cache_dir_utils import default_cache_dir

    return os.path.abspath(given) != os.path.abspath(default_cache_dir())
