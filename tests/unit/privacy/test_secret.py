"""Where the server's noise comes from, and who may read it."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest
import torch

from fedloom.core.errors import ConfigError
from fedloom.privacy.secret import Secret


def test_noise_is_a_function_of_secret_and_counters() -> None:
    one, other = Secret.of_seed(1), Secret.of_seed(2)
    first = one.normal(50, "release", 3, 0, 1)
    assert torch.equal(first, Secret.of_seed(1).normal(50, "release", 3, 0, 1))
    assert torch.equal(first[:10].isfinite(), torch.ones(10, dtype=torch.bool))
    different = [
        other.normal(50, "release", 3, 0, 1),
        one.normal(50, "release", 4, 0, 1),
        one.normal(50, "release", 3, 1, 1),
        one.normal(50, "other", 3, 0, 1),
    ]
    assert not any(torch.equal(first, noise) for noise in different)


def test_noise_is_standard_normal() -> None:
    noise = Secret.of_seed(0).normal(200_000, "release", 0)
    assert float(noise.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(noise.std()) == pytest.approx(1.0, rel=0.01)
    assert float((noise.abs() > 3).double().mean()) == pytest.approx(0.0027, abs=5e-4)


def test_a_secret_is_made_once_and_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    made = Secret(path=path)
    assert not path.exists()
    own = made.fingerprint
    assert len(path.read_bytes()) == 32
    if os.name == "posix":
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Secret(path=path).fingerprint == own
    assert path.read_bytes().hex() not in repr(made)
    assert Secret(path=tmp_path / "another").fingerprint != own


@pytest.mark.skipif(os.name != "posix", reason="there are no such modes")
def test_a_secret_that_others_can_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    Secret(path=path).key()
    path.chmod(0o644)
    with pytest.raises(ConfigError, match=r"mode 0644.*chmod 600"):
        Secret(path=path).key()


def test_a_secret_of_another_length_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "secret"
    path.touch(0o600)
    path.write_bytes(b"short")
    with pytest.raises(ConfigError, match="32 bytes, found 5"):
        Secret(path=path).key()


def test_a_run_goes_on_with_the_secret_that_it_began_with_alone(tmp_path: Path) -> None:
    began = Secret(path=tmp_path / "secret").fingerprint
    other = Secret(path=tmp_path / "other")
    other.expected = began
    with pytest.raises(ConfigError, match=r"cannot be read \(.*Put the file back"):
        other.key()
    assert not other.path.exists()
    nowhere = Secret(path=tmp_path / "nowhere" / "secret")
    with pytest.raises(ConfigError, match=r"cannot be read or made \(No such file"):
        nowhere.key()
    Secret(path=tmp_path / "other").key()
    with pytest.raises(ConfigError, match="second release"):
        other.key()
    same = Secret(path=tmp_path / "secret")
    same.expected = began
    assert same.fingerprint == began
