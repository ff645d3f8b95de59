"""Sentiment140: is a tweet happy or not, with users as clients."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedloom.core.errors import DataError
from fedloom.core.reprs import without_values
from fedloom.core.settings import Count, Rate
from fedloom.core.streams import generator
from fedloom.data.columns import read_column
from fedloom.data.dataset import Dataset
from fedloom.data.fetch import fetch
from fedloom.data.locations import (
    Absent,
    data_directory,
    folder_of,
    on_hub_instead,
)
from fedloom.data.source import Source
from fedloom.data.text import read_text, read_vectors, to_hashes, to_tokens, words

_ORIGINAL = ("sent140", "training.1600000.processed.noemoticon.csv")
_SUBSET = ("sent140-subset", "sent140-train-subset.csv.gz")
_GLOVE = (
    ("glove.6B", "glove.6B.300d.txt"),
    ("glove-50d-subset", "glove.6B.50d.subset.txt.gz"),
)
_HEADING = ["polarity", "id", "date", "query", "user", "text"]
"""Columns of the original file, which has no heading."""
_POLARITY = {"0": 0, "4": 1}
_HUB, _REVISION = "stanfordnlp/sentiment140", "refs/convert/parquet"
"""The hub's copy has a loading script, which its library no longer runs; this branch
holds the same columns as files."""


@without_values
class Tweets(NamedTuple):
    """Tweets in the order of their file."""

    labels: NDArray[np.int64]
    """1 if happy."""
    users: NDArray[np.str_]
    texts: list[str]


@dataclass(frozen=True, kw_only=True)
class Sent140(Source):
    """Sentiment140: tweets, happy or not, 25 words each; users are the clients.

    Go, Bhayani, Huang (2009). Words are found by a regular expression and put in lower
    case; the first `length` count. The official test tweets belong to no user and are
    not used. Users and pools depend on the seed.
    """

    licence = "terms of the source; not to be passed on"
    depends_on_seed = True
    folder_name = "sent140"

    files: Literal["auto", "original", "subset"] = "auto"
    """Which file is read: the original one of 1.6 million tweets (sent140/), the subset
    of 20,000 (sent140-subset/), or whichever is there, the original first."""
    length: Count = 25
    """Words of a tweet that the model sees."""
    words: Literal["auto", "glove", "hashed"] = "auto"
    """What a word becomes: its place among the vectors of GloVe (glove.6B/, 300
    numbers, or glove-50d-subset/), which travel with the data, or a hash. `auto` takes
    vectors where there are any."""
    buckets: Count = 10_000
    """Number of different hashes, if words are hashed."""
    least: Count = 31
    """Fewest tweets of a client; LEAF takes users with more than 30."""
    others: Literal["pool", "leave-out"] = "pool"
    """What becomes of users with fewer: whole users in random order are pooled into
    clients of at least `least` tweets, or they are left out, as in LEAF."""
    share: Rate = 1.0
    """Share of the tweets to take, user by user in random order; LEAF takes 0.3."""

    def load(self, data_dir: Path | None, seed: int) -> Dataset:
        """Read tweets and perhaps vectors from the data directory.

        Raises:
            DataError: A file is missing or broken, or no user has enough tweets.
        """
        try:
            path = self._file(data_dir)
            name, origin, tweets = path.parent.name, None, _read(path)
        except Absent as absent:
            name, (tweets, origin) = "sent140", _from_hub(absent, data_dir)
        owner = self._clients(name, tweets.users, seed)
        kept = np.flatnonzero(owner != "")
        texts = [words(tweets.texts[row]) for row in kept]
        tokens, vectors = self._tokens(texts, data_dir)
        return Dataset(
            name=name,
            inputs=(torch.from_numpy(tokens),),
            targets=torch.from_numpy(tweets.labels[kept]),
            classes=2,
            owner=owner[kept],
            class_names=("sad", "happy"),
            vectors=vectors,
            origin=origin,
        )

    def find(self, data_dir: Path | None) -> Path:
        """The folder of the original tweets, or of the subset."""
        return self._file(data_dir).parent

    def _file(self, data_dir: Path | None) -> Path:
        places = {"original": _ORIGINAL, "subset": _SUBSET}
        if self.files != "auto":
            places = {self.files: places[self.files]}
        return _first_of(tuple(places.values()), data_dir)

    def _clients(
        self, name: str, users: NDArray[np.str_], seed: int
    ) -> NDArray[np.str_]:
        """(tweets,) the client of each, "" for one that is left out."""
        names, user, sizes = np.unique(users, return_inverse=True, return_counts=True)
        order = generator(seed, "sent140").permutation(len(names))
        before = np.cumsum(sizes[order]) - sizes[order]
        order = order[before < self.share * len(users)]
        client = np.full(len(names), "", dtype=f"U{max(names.itemsize // 4, 16)}")
        is_large = sizes >= self.least
        own, small = order[is_large[order]], order[~is_large[order]]
        client[own] = names[own]
        if self.others == "pool":
            pool = _pools(sizes[small], self.least)
            client[small] = np.char.add("pool ", pool.astype(np.str_))
        if not len(own) and (self.others == "leave-out" or not len(small)):
            raise DataError(
                f"{name}: no user has {self.least} tweets; the most is "
                f"{sizes[order].max()}. Lower least, or set others = pool."
            )
        return client[user]

    def _tokens(
        self, texts: list[list[str]], data_dir: Path | None
    ) -> tuple[NDArray[np.int64], Tensor | None]:
        path = None
        if self.words != "hashed":
            try:
                path = _first_of(_GLOVE, data_dir)
            except DataError:
                if self.words == "glove":
                    raise
        if path is None:
            return to_hashes(texts, self.buckets, self.length), None
        seen = {word for text in texts for word in text[: self.length]}
        known, vectors = read_vectors(path, seen)
        return to_tokens(texts, known, self.length), vectors


def _first_of(places: tuple[tuple[str, str], ...], data_dir: Path | None) -> Path:
    """The first file that is there; if none is, the error names the first."""
    root = data_directory(data_dir)
    for folder, file in places:
        if root is not None and (root / folder / file).exists():
            return root / folder / file
    (folder, file), *others = places
    listed = ", ".join("/".join(other) for other in others)
    hint = f"{listed} would do as well." if others else ""
    return folder_of(folder, [file], data_dir, hint=hint) / file


def _from_hub(absent: Absent, data_dir: Path | None) -> tuple[Tweets, str | None]:
    """The original tweets from the hub, and where they came from.

    Raises:
        DataError: The hub does not give them either; says where the files belong.
    """
    with on_hub_instead(absent):
        splits, origin = fetch(_HUB, data_dir, revision=_REVISION, splits=("train",))
        columns = ("sentiment", "user", "text")
        polarity, users, texts = (
            read_column(splits["train"], column, _HUB) for column in columns
        )
    wrong = ~np.isin(polarity, [0, 4])
    if wrong.any():
        raise DataError(
            f"{_HUB}: expected sentiment 0 or 4, found {polarity[wrong][0]} in row "
            f"{int(wrong.argmax())}."
        )
    labels = (polarity == 4).astype(np.int64)
    return Tweets(labels, users.astype(np.str_), [str(t) for t in texts]), origin


def _pools(sizes: NDArray[np.int64], least: int) -> NDArray[np.int64]:
    """(users,) the pool of each: users in turn, until a pool has `least` tweets.

    What is left at the end joins the last full pool.
    """
    pools, pool, held = np.zeros(len(sizes), dtype=np.int64), 0, 0
    for user, size in enumerate(sizes):
        pools[user] = pool
        held += int(size)
        if held >= least:
            pool, held = pool + 1, 0
    return np.minimum(pools, max(pool - 1, 0))


def _read(path: Path) -> Tweets:
    """The tweets of a file in the original format, or of one with a heading."""
    is_original = path.name == _ORIGINAL[1]
    text = read_text(path, "latin-1" if is_original else "utf-8")
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    heading = _HEADING if is_original else next(rows, [])
    missing = {"polarity", "user", "text"} - set(heading)
    if missing:
        raise DataError(
            f"{path}: there is no column {sorted(missing)[0]!r}. Found: "
            f"{', '.join(heading)}."
        )
    polarity, user, tweet = map(heading.index, ("polarity", "user", "text"))
    labels, users, texts = [], [], []
    for row in _checked(path, rows, len(heading)):
        if row[polarity] not in _POLARITY:
            raise DataError(
                f"{path}, line {rows.line_num}: expected polarity 0 or 4, found "
                f"{row[polarity]!r}."
            )
        labels.append(_POLARITY[row[polarity]])
        users.append(row[user])
        texts.append(row[tweet])
    if not labels:
        raise DataError(f"{path}: holds no tweet. Copy or download it again.")
    return Tweets(np.array(labels, dtype=np.int64), np.array(users), texts)


def _checked(path: Path, rows: Iterator[list[str]], width: int) -> Iterator[list[str]]:
    """The rows, each with as many fields as there should be."""
    number = 0
    try:
        for number, row in enumerate(rows, start=1):
            if len(row) != width:
                raise DataError(
                    f"{path}, tweet {number}: expected {width} fields, found "
                    f"{len(row)}. Copy or download the file again."
                )
            yield row
    except csv.Error as error:
        raise DataError(f"{path}, after tweet {number}: {error}.") from error
