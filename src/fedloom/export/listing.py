"""The list of an export's files with their digests, which lies beside them."""

from __future__ import annotations

from pathlib import Path, PurePosixPath

from fedloom.core.digests import Extent, extent_of, read_checked_json
from fedloom.core.errors import MessageError

LIST = "export.json"
LIST_FORMAT = "fedloom-export-1"


def read_list(folder: Path) -> dict[str, Extent]:
    """Which files of a folder are an export's, as they were written.

    Raises:
        MessageError: the list is not there, damaged, or something else.
    """
    what = "a list of exported files"
    listed = read_checked_json(folder / LIST, what, ("files",), format_=LIST_FORMAT)[
        "files"
    ]
    is_sound = isinstance(listed, dict) and all(
        isinstance(extent, list) and [int, str] == [*map(type, extent)]
        for extent in listed.values()
    )
    places = map(PurePosixPath, listed if is_sound else ())
    if not is_sound or any(p.is_absolute() or ".." in p.parts for p in places):
        raise MessageError(
            f"{folder / LIST}: not {what}: expected names with size and digest."
        )
    return {name: Extent(*extent) for name, extent in listed.items()}


def refuse_changed(folder: Path, *names: str) -> None:
    """Refuse files of an exported model that are not as they were written.

    A folder that was taken out of its export has no list, and is not checked.

    Args:
        folder: of one model; the list is in it, or beside it if several were exported.
        names: of its files.

    Raises:
        MessageError: one was damaged or changed, or the list was.
    """
    for home, prefix in (
        (folder, ""),
        (folder.resolve().parent, f"{folder.resolve().name}/"),
    ):
        if not (home / LIST).is_file():
            continue
        if prefix and f"{prefix}{names[0]}" not in _names(home):
            continue
        listed = read_list(home)
        for name in names:
            extent = listed.get(prefix + name)
            if extent is None or extent_of(folder / name) != extent:
                raise MessageError(
                    f"{folder / name}: was damaged or changed since it was exported "
                    f"(its digest is not that in {home / LIST}). Export it again; or, "
                    f"to use it as it is, move it to a folder without {LIST}."
                )
        return


def _names(home: Path) -> list[str]:
    """What a list names; nothing if it is none of ours."""
    try:
        return list(read_list(home))
    except MessageError:
        return []
