from __future__ import annotations

from pathlib import Path

import pytest

from fedloom.core.errors import ConfigError
from fedloom.deploy.signing_keys import read_identities, read_keys, read_signing_key
from fedloom.flower.certificates import make_client_key


def test_a_client_signs_with_the_key_that_it_shows_the_server(tmp_path: Path) -> None:
    private, _ = make_client_key(tmp_path, "north")
    key = read_signing_key(private)
    assert read_identities(tmp_path) == {key.identity}
    with pytest.raises(ConfigError, match="P-384"):
        read_signing_key(tmp_path / "north.pub")
    (tmp_path / "south.pub").write_text("nothing")
    with pytest.raises(ConfigError, match=r"south\.pub"):
        read_identities(tmp_path)
    with pytest.raises(ConfigError, match="found none"):
        read_identities(tmp_path / "nowhere")


def test_a_client_is_among_those_who_may_take_part(tmp_path: Path) -> None:
    north, _ = make_client_key(tmp_path / "north", "north")
    make_client_key(tmp_path / "south", "south")
    key, admitted = read_keys(north, tmp_path / "north")
    assert key is not None
    assert admitted == {key.identity}
    assert read_keys(None, None) == (None, frozenset())
    with pytest.raises(ConfigError, match=r"found 1 without it.*ssh-keygen -y -f"):
        read_keys(north, tmp_path / "south")
