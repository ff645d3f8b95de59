"""Text that others wrote, made harmless where it is shown.

Names of clients, labels, columns and files come out of data. A spreadsheet takes some
of them for formulas, Markdown for links or HTML, a terminal for commands. Each place
has its one function here.
"""

from __future__ import annotations

_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n")
"""What a spreadsheet takes for the start of a formula, or strips before it looks."""

_HIDDEN = (
    *(code for code in range(0x20) if chr(code) not in "\t\n"),
    *range(0x7F, 0xA0),
    # Marks that turn the direction of what follows.
    0x061C,
    *range(0x200E, 0x2010),
    *range(0x2028, 0x202F),
    *range(0x2066, 0x206A),
    # Halves of characters: bytes of a file's name that are no text.
    *range(0xD800, 0xE000),
)
_SPELLED = {code: ascii(chr(code))[1:-1] for code in _HIDDEN}
_SPACES = dict.fromkeys(_HIDDEN, " ") | {ord("\t"): " ", ord("\n"): " "}
_MARKDOWN = {ord(letter): f"\\{letter}" for letter in "\\`*_[]|#"} | {
    ord("&"): "&amp;",
    ord("<"): "&lt;",
    ord(">"): "&gt;",
}


def spreadsheet_cell(value: object) -> object:
    """A value of a CSV file that no spreadsheet takes for a formula.

    Text that begins like a formula gets an apostrophe in front, which spreadsheets read
    as "this is text". Numbers stay numbers, written as text too.
    """
    if not isinstance(value, str) or not value.startswith(_FORMULA):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def markdown_text(value: object) -> str:
    """Text that Markdown shows as it stands, in one line."""
    return str(value).translate(_SPACES).translate(_MARKDOWN)


def terminal_text(text: str) -> str:
    r"""Text without a character that moves a terminal; such are spelled, as in \x1b."""
    return text if text.isprintable() else text.translate(_SPELLED)
