"""Text for a console that does not know every character.

On Windows, or where the locale is C, a console may know a few hundred characters and no
minus sign. What it lacks is then written with those that it has.
"""

from __future__ import annotations

import codecs
import io
import sys
import unicodedata

_SPELLINGS = {
    "−": "-",  # noqa: RUF001
    "–": "-",  # noqa: RUF001
    "—": "-",
    "×": "x",  # noqa: RUF001
    "±": "+-",
    "·": ".",
    "✓": "+",
    "✗": "x",
    "→": "->",
    "≤": "<=",
    "≥": ">=",
    "≈": "~",
    "µ": "u",
    "‘": "'",  # noqa: RUF001
    "’": "'",  # noqa: RUF001
    "“": '"',
    "”": '"',
    "░": ".",
    "▒": ":",
    "▓": "+",
    **dict.fromkeys("─━═╌╴╶╸╺", "-"),
    **dict.fromkeys("│┃║╎", "|"),
    **dict.fromkeys("█▇▆▅▄▃▂▁▌▐■", "#"),
    **dict.fromkeys("•●", "*"),
}
_NAME = "fedloom-spelling"


def spelled(text: str) -> str:
    """Text in ASCII, as near as it can be had: a minus sign is a hyphen."""
    return "".join(map(_spelled, text))


def _spelled(letter: str) -> str:
    if letter in _SPELLINGS:
        return _SPELLINGS[letter]
    if 0x2500 <= ord(letter) < 0x2580:
        return "+"  # corners and crossings of lines
    plain = unicodedata.normalize("NFKD", letter).encode("ascii", "ignore").decode()
    return plain or "?"


def _replace(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return spelled(error.object[error.start : error.end]), error.end


def spell_what_consoles_lack() -> None:
    """Have both streams of this process spell what they cannot encode."""
    codecs.register_error(_NAME, _replace)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_NAME)
