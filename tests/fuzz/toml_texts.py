"""TOML files: valid ones with something wrong in the text, and worse."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import numpy as np
from odd_values import TEXTS, odd_tables, pick
from worker import Note

from fedloom.comparison import parse_comparison, with_equal_work, with_tuned
from fedloom.config import override, parse, read_toml, to_tables, to_toml

CONFIGS = Path(__file__).parents[2] / "configs"

TOKENS = [
    *("[", "]", "[[", "]]", "=", '"', "'", '"""', "'''", "#", "{", "}", ",", ".", "\n"),
    *(
        "\0",
        "\x1b",
        "\ufeff",
        "\\u0000",
        "\\uD800",
        "\\x",
        "inf",
        "-nan",
        "0x",
        "1e999",
    ),
    *(
        "1" * 5000,
        "[" * 3000,
        "{a=" * 2000,
        "a." * 2000,
        "1979-05-27",
        "07:32:00",
        "-0",
    ),
    *("\nrounds = 1\n", "\n[algorithm]\n", "\n[[data]]\n", "\nmethods = 3\n", "true"),
    *("\nseeds = [1, 1]\n", "\n[methods.x]\nname = 3\n", "\n[own]\n", "\n'' = 1\n"),
    *TEXTS,
]


class Trial:
    """Bytes that claim to be settings."""

    def __init__(self, folder: Path) -> None:
        paths = [*CONFIGS.rglob("*.toml")]
        self.texts = [path.read_text() for path in sorted(paths)]

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Read as a run's, as a comparison's and as a tuned file."""
        text = pick(draw, self.texts)
        if draw.random() < 0.4:
            # The writer is tried among settings.
            with suppress(TypeError, ValueError, RecursionError):
                text = to_toml(odd_tables(draw, 0.1))
        path = folder / "x.toml"
        path.write_bytes(damage(draw, text))
        way = pick(draw, ["run", "comparison", "tuned", "override"])
        note(f"{way}: {path.read_bytes()[:1500]!r}")
        tables = read_toml(path)
        if way == "run":
            config = parse(tables, str(path))
            assert parse(to_tables(config)) == config
        elif way == "comparison":
            parse_comparison(with_equal_work(tables), str(path))
        elif way == "tuned":
            parse_comparison(with_tuned({}, path), str(path))
        else:
            for _ in range(3):
                keys = [*tables, "algorithm", "rounds", "", "a.b.c", *TEXTS]
                name = pick(draw, keys) + pick(draw, ["", ".lr", ".name", ".x.y"])
                override(tables, name + pick(draw, ["=", ""]) + pick(draw, TOKENS))
            parse(tables, str(path))


def damage(draw: np.random.Generator, text: str) -> bytes:
    """A text with a few changes, as bytes."""
    for _ in range(int(draw.integers(0, 5))):
        at = int(draw.integers(len(text) + 1))
        upto = at + int(draw.integers(0, 8)) * int(draw.random() < 0.5)
        text = text[:at] + pick(draw, ["", *TOKENS]) + text[upto:]
    raw = text.encode("utf-8", "surrogatepass")
    way = draw.random()
    if way < 0.1:
        raw = text.encode(pick(draw, ["utf-16", "utf-32", "utf-8-sig"]), "replace")
    elif way < 0.2:
        raw = raw[: int(draw.integers(len(raw) + 1))]
    elif way < 0.3 and raw:
        changed = bytearray(raw)
        for _ in range(3):
            changed[int(draw.integers(len(changed)))] = int(draw.integers(256))
        raw = bytes(changed)
    elif way < 0.32:
        raw = draw.bytes(200)
    return raw
