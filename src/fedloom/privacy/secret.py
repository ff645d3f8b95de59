"""Noise from a secret: a function of counters, so that a round is released once.

A round that is computed again, after a crash, gets the same bits: other ones would be a
second release of the same data, and the mean of two releases has less noise.
"""

from __future__ import annotations

import hashlib
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
    """256 bits, expanded by ChaCha20.

    Args:
        key: 32 bytes.
        is_simulated: whether they follow from the run's seed.
    """

    def __init__(self, key: bytes, *, is_simulated: bool) -> None:
        self._key = key
        self.is_simulated = is_simulated

    @classmethod
    def of_seed(cls, seed: int) -> Secret:
        """What a simulation takes: known to whoever knows the seed."""
        text = f"fedloom privacy {seed}".encode()
        return cls(
            hashlib.blake2b(text, digest_size=_BYTES).digest(), is_simulated=True
        )

    @classmethod
    def of_file(cls, path: Path) -> Secret:
        """That of a file, which is made if it is not there.

        Raises:
            ConfigError: It cannot be read or written, others may read it, or it is not
                32 bytes.
        """
        try:
            if not path.exists():
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL
                with os.fdopen(os.open(path, flags, 0o600), "wb") as file:
                    file.write(secrets.token_bytes(_BYTES))
            mode = stat.S_IMODE(path.stat().st_mode)
            key = path.read_bytes()
        except OSError as error:
            raise ConfigError(
                f"{path}: privacy.secret cannot be read or made ({error.strerror})."
            ) from error
        if os.name == "posix" and mode & 0o077:
            raise ConfigError(
                f"{path}: privacy.secret must be readable by its owner alone, found "
                f"mode {mode:04o}. Run: chmod 600 {path}"
            )
        if len(key) != _BYTES:
            raise ConfigError(
                f"{path}: privacy.secret must be {_BYTES} bytes, found {len(key)}. "
                "Name a file that is not there, and it is made."
            )
        return cls(key, is_simulated=False)

    @property
    def fingerprint(self) -> str:
        """What tells two secrets apart and says nothing of either."""
        digest = hashlib.blake2b(self._key, digest_size=8, person=b"fingerprint")
        return digest.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._key == self._key

    def __hash__(self) -> int:
        return hash(self.fingerprint)

    def __repr__(self) -> str:
        kind = "of the seed" if self.is_simulated else self.fingerprint
        return f"Secret({kind})"

    def normal(self, count: int, purpose: str, *counters: int) -> Tensor:
        """(count,) standard normal numbers in float64 (Box and Muller)."""
        words = self._words(2 * count, purpose, *counters)
        uniform = ((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
        radius, angle = uniform[:count], uniform[count:]
        numbers = np.sqrt(-2.0 * np.log(radius)) * np.cos(2.0 * np.pi * angle)
        return torch.from_numpy(numbers)

    def _words(
        self, count: int, purpose: str, *counters: int
    ) -> np.ndarray[tuple[int], np.dtype[np.uint64]]:
        """Words of 64 bits of the stream of some counters."""
        ciphers = optional("cryptography.hazmat.primitives.ciphers", "noise")
        place = [purpose_word(purpose), len(counters), *counters]
        # A key of its own for each stream: a nonce alone has too few bits for all.
        text = b"".join(number.to_bytes(_WORD, "big") for number in place)
        own = hashlib.blake2b(text, key=self._key, digest_size=_BYTES).digest()
        cipher = ciphers.Cipher(ciphers.algorithms.ChaCha20(own, bytes(16)), mode=None)
        stream = cipher.encryptor().update(bytes(_WORD * count))
        return np.frombuffer(stream, dtype="<u8")
