"""Noise from a secret: a function of counters, so that a round is released once.

A round that is computed again, after a crash, gets the same bits: other ones would be a
second release of the same data, and the mean of two releases has less noise.
"""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import stat
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from fedloom.core.errors import ConfigError
from fedloom.core.streams import purpose_word
from fedloom.privacy.extra import optional

_BYTES = 32
_WORD = 8


class Secret:
    """256 bits, expanded by ChaCha20; those of a file are read when they are needed.

    Args:
        key: 32 bytes, or
        path: the file that has them.
    """

    def __init__(self, key: bytes | None = None, *, path: Path | None = None) -> None:
        self._key = key
        self.path = path
        self.expected: str | None = None
        """The fingerprint that it had when a run began, if it is to go on."""

    @classmethod
    def of_seed(cls, seed: int) -> Secret:
        """What a simulation takes: known to whoever knows the seed."""
        text = f"fedloom privacy {seed}".encode()
        return cls(hashlib.blake2b(text, digest_size=_BYTES).digest())

    def key(self) -> bytes:
        """The bytes; a file is made if it is not there and no run has begun with it.

        Raises:
            ConfigError: It cannot be read or made, others may read it, it is not 32
                bytes, or not what the run began with.
        """
        if self._key is None:
            assert self.path is not None
            self._key = _read(self.path, may_make=self.expected is None)
            if self.expected not in (None, self.fingerprint):
                self._key = None
                raise ConfigError(
                    f"{self.path}: privacy.secret is not the one that the run began "
                    "with: the noise of rounds that are done again would be other "
                    "noise, which is a second release. Put the file back."
                )
        return self._key

    @property
    def fingerprint(self) -> str:
        """What tells two secrets apart and says nothing of either."""
        digest = hashlib.blake2b(self.key(), digest_size=8, person=b"fingerprint")
        return digest.hexdigest()

    def __repr__(self) -> str:
        return "Secret(of the seed)" if self.path is None else f"Secret({self.path})"

    def below(self, *texts: str) -> Secret:
        """A secret that follows from this one and some texts, and tells neither."""
        text = json.dumps(texts).encode()
        own = hashlib.blake2b(text, key=self.key(), digest_size=_BYTES, person=b"below")
        return Secret(own.digest())

    def normal(self, count: int, purpose: str, *counters: int) -> Tensor:
        """(count,) standard normal numbers in float64 (Box and Muller)."""
        words = self.words(2 * count, purpose, *counters)
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = uniform[:count], uniform[count:]
        numbers = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
        return torch.from_numpy(numbers)

    def words(
        self, count: int, purpose: str, *counters: int
    ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Words of 64 bits of the stream of some counters."""
        ciphers = optional("cryptography.hazmat.primitives.ciphers", "noise")
        place = [purpose_word(purpose), len(counters), *counters]
        # A key of its own for each stream: a nonce alone has too few bits for all.
        text = b"".join(number.to_bytes(_WORD, "big") for number in place)
        own = hashlib.blake2b(text, key=self.key(), digest_size=_BYTES).digest()
        cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(own, bytes(16)), mode=None)
        stream = cipher.encryptor().update(bytes(_WORD * count))
        return np.frombuffer(stream, dtype="<u8")


def _read(path: Path, *, may_make: bool) -> bytes:
    """The bytes of a file, made if it is not there and may be.

    Raises:
        ConfigError: It cannot be read or made, others may read it, or it is not 32
            bytes.
    """
    try:
        if may_make and not path.exists():
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
            with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                file.write(secrets.token_bytes(_BYTES))
        mode = stat.S_IMODE(path.stat().st_mode)
        key = path.read_bytes()
    except OSError as error:
        what = (
            "cannot be read or made ({}). Name a file in a folder that is there."
            if may_make
            else "cannot be read ({}), and the run began with it: another one would be "
            "a second release of rounds that are done again. Put the file back."
        )
        raise ConfigError(
            f"{path}: privacy.secret {what.format(error.strerror)}"
        ) from error
    if os.name == "posix" and mode & 0o077:
        raise ConfigError(
            f"{path}: privacy.secret must be readable by its owner alone, found mode "
            f"{mode:04o}. Run: chmod 600 {path}"
        )
    if len(key) != _BYTES:
        raise ConfigError(
            f"{path}: privacy.secret must be {_BYTES} bytes, found {len(key)}. Name a "
            "file that is not there, and it is made."
        )
    return key
