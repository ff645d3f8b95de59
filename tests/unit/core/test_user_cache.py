"""Code is loaded from the user's cache, so nobody else may write to it."""

import os
from pathlib import Path

import pytest

from fedloom.core.user_cache import user_cache


def test_the_folder_is_the_users_alone(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "new"))
    folder = user_cache()
    assert folder == tmp_path / "new" / "fedloom"
    assert folder.stat().st_mode & 0o077 == 0


@pytest.mark.skipif(os.name != "posix", reason="needs permissions of POSIX")
def test_a_folder_that_others_can_write_to_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "fedloom").mkdir()
    (tmp_path / "fedloom").chmod(0o777)
    with pytest.raises(PermissionError, match="others can write"):
        user_cache()


def test_a_relative_path_is_ignored(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", "here")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert user_cache() == tmp_path / ".cache" / "fedloom"


def test_without_a_home_there_is_no_folder(monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)

    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    with pytest.raises(OSError, match="no home"):
        user_cache()
