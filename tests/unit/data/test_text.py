from __future__ import annotations

import gzip
import zlib
from pathlib import Path

import pytest

from fedloom.core.errors import DataError
from fedloom.data.text import read_text, read_vectors, to_hashes, to_tokens, words

LINES = "the 0.5 1.0\n, 2.0 -1.5\ncat 0.25 4\n"


def test_words_are_lower_case_with_apostrophes_and_marks() -> None:
    found = words("@Anna: can't WAIT!! naïve, #yes (or no);")
    assert found == [
        *("anna", "can't", "wait", "!", "!", "naïve", ",", "yes", "or", "no", ";")
    ]
    assert words(" :-) ") == []


@pytest.mark.parametrize("name", ["v.txt", "v.txt.gz"])
def test_vectors_of_wanted_words_come_after_padding_and_unknown(
    tmp_path: Path, name: str
) -> None:
    content = LINES.encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    known, vectors = read_vectors(path, {"cat", ",", "dog"})
    assert known == [",", "cat"]
    assert vectors.tolist() == [[0, 0], [0, 0], [2, -1.5], [0.25, 4]]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ("the 0.5 1.0\ncat 0.25", "line 2: expected a word and 2 numbers, found 1"),
        ("the\n", "line 1: expected a word and 1 numbers, found 0"),
        ("the 0.5 x\n", "line 1: not numbers"),
        ("the 0.5 nan\n", "line 1: the vector is not finite"),
        ("dog 1 2\n", "the vector of none of 2 words"),
    ],
)
def test_a_broken_line_of_vectors_is_named(
    tmp_path: Path, lines: str, message: str
) -> None:
    (tmp_path / "v.txt").write_text(lines)
    with pytest.raises(DataError, match=message):
        read_vectors(tmp_path / "v.txt", {"the", "cat"})


def test_a_text_that_is_cut_short_or_of_another_encoding_is_refused(
    tmp_path: Path,
) -> None:
    path = tmp_path / "t.txt.gz"
    path.write_bytes(gzip.compress(b"hello" * 100)[:-5])
    with pytest.raises(DataError, match=r"t\.txt\.gz: not a whole file"):
        read_text(path)
    (tmp_path / "latin.txt").write_bytes("Zürich".encode("latin-1"))
    with pytest.raises(DataError, match=r"expected utf-8 text, .* at byte 1"):
        read_text(tmp_path / "latin.txt")
    assert read_text(tmp_path / "latin.txt", "latin-1") == "Zürich"


def test_tokens_are_places_with_1_for_unknown_and_0_for_padding() -> None:
    texts = [["b", "x", "a", "a"], ["a"], []]
    found = to_tokens(texts, ["a", "b"], 3)
    assert found.tolist() == [[3, 1, 2], [2, 0, 0], [0, 0, 0]]


def test_hashes_are_the_same_on_every_machine() -> None:
    found = to_hashes([["cat", "the", "cat"], ["é"]], 100, 3)
    cat, the = (1 + zlib.crc32(word) % 100 for word in (b"cat", b"the"))
    assert found.tolist() == [
        [cat, the, cat],
        [1 + zlib.crc32("é".encode()) % 100, 0, 0],
    ]
