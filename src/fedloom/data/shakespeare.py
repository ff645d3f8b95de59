"""Shakespeare's roles: the next character of what each of them says."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedloom.core.errors import ConfigError, DataError
from fedloom.core.settings import Count, Share
from fedloom.data.columns import read_column
from fedloom.data.dataset import Dataset
from fedloom.data.fetch import fetch
from fedloom.data.locations import Absent, on_hub_instead
from fedloom.data.source import Source
from fedloom.data.text import read_text

_FILE = "tinyshakespeare.txt.gz"
_HUB, _REVISION = "karpathy/tiny_shakespeare", "refs/convert/parquet"
_SPLITS = ("train", "validation", "test")
"""Of the hub's copy: nine tenths of the text, then a twentieth twice."""


@dataclass(frozen=True, kw_only=True)
class Shakespeare(Source):
    """Shakespeare: 1.1 million characters, the next one to be predicted; 99 roles.

    All speeches of a role, joined by line ends, are one client's text; a role that
    occurs in two plays under one name is one client. A sample is `length` characters
    and the one after them. The last share of each text is designated for testing
    (split.fixed = true) and shares no character with the rest; do so if samples
    overlap, or a model is tested on characters that it was trained to predict.
    """

    licence = "public domain"
    folder_name, file_names = "shakespeare", (_FILE,)
    file_hint = "It is the text file tinyshakespeare, gzipped."

    length: Count = 80
    """Characters that the model sees."""
    stride: Count | None = None
    """Characters between the starts of two samples; by default length + 1, so that
    samples share nothing. 1 takes every position, a gigabyte while loading."""
    least: Count = 2000
    """Fewest characters of a role; roles with fewer are left out."""
    test: Share = 0.2
    """Share of each text, at its end, that is designated for testing."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self._cut(self.least) <= self.length:
            raise ConfigError(
                f"Shakespeare: a text of {self.least} characters, {self.test:g} of "
                f"them for testing, has no training sample of length {self.length}. "
                "Raise least or lower length or test."
            )

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read `shakespeare/` in the data directory."""
        where, origin = f"shakespeare/{_FILE}", None
        try:
            path = self.find(data_dir) / _FILE
            where, text = str(path), read_text(path)
        except Absent as absent:
            text, origin = _from_hub(absent, data_dir)
        texts = _read_roles(text, where)
        alphabet = sorted(set("".join(texts.values())))
        kept = {role: text for role, text in texts.items() if len(text) >= self.least}
        if not kept:
            longest = max(len(text) for text in texts.values())
            raise DataError(
                f"{where}: no role has {self.least} characters; the longest "
                f"text has {longest}. Lower least."
            )
        # Token 0 is padding, so that characters are numbered from 1.
        number = {character: n for n, character in enumerate(alphabet, start=1)}
        pieces, owner, is_test = [], [], []
        for role, text in kept.items():
            numbers = np.array([number[character] for character in text])
            cut = self._cut(len(text))
            for part, is_late in ((numbers[:cut], False), (numbers[cut:], True)):
                samples = self._samples(part)
                pieces.append(samples)
                owner += [role] * len(samples)
                is_test += [is_late] * len(samples)
        samples = np.concatenate(pieces)
        return Dataset(
            name="shakespeare",
            inputs=(torch.from_numpy(samples[:, :-1].copy()),),
            targets=torch.from_numpy(samples[:, -1] - 1),
            classes=len(alphabet),
            owner=np.array(owner),
            fixed_test=np.array(is_test),
            class_names=tuple(alphabet),
            origin=origin,
        )

    def _cut(self, characters: int) -> int:
        """Where the part for testing begins."""
        return characters - int(self.test * characters)

    def _samples(self, text: NDArray[np.int64]) -> NDArray[np.int64]:
        """(samples, length + 1) pieces of one text."""
        span = self.length + 1
        if len(text) < span:
            return np.zeros((0, span), dtype=np.int64)
        stride = self.stride if self.stride is not None else span
        return np.lib.stride_tricks.sliding_window_view(text, span)[::stride]


def _from_hub(absent: Absent, data_dir: Path | None) -> tuple[str, str | None]:
    """The text from the hub, which has it cut in three, and where it came from.

    Raises:
        DataError: The hub does not give it either; says where the file belongs.
    """
    with on_hub_instead(absent):
        splits, origin = fetch(_HUB, data_dir, revision=_REVISION, splits=_SPLITS)
        parts = [read_column(table, "text", _HUB) for table in splits.values()]
    return "".join(str(row) for part in parts for row in part), origin


def _read_roles(text: str, where: str) -> dict[str, str]:
    """What each role says, in the order of their first words."""
    speeches: dict[str, list[str]] = {}
    blocks = re.split(r"\n{2,}", text.strip("\n"))
    for number, block in enumerate(blocks, start=1):
        head, _, speech = block.partition("\n")
        if not head.endswith(":"):
            raise DataError(
                f"{where}: speech {number} must open with a line 'ROLE:', found "
                f"{head[:40]!r}. Is it tinyshakespeare?"
            )
        speeches.setdefault(head.removesuffix(":"), []).append(speech)
    return {role: "\n".join(said) for role, said in speeches.items()}
