"""Federations without `cryptography`: only what needs it asks for it."""

from __future__ import annotations

import subprocess
import sys

WITHOUT = "import sys\nfor name in {names!r}:\n    sys.modules[name] = None\n{code}"


def run(code: str, *names: str) -> subprocess.CompletedProcess[str]:
    """Some code where these packages are not installed."""
    return subprocess.run(
        [sys.executable, "-c", WITHOUT.format(names=names, code=code)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_federation_without_secure_sums_needs_no_extra_for_them() -> None:
    ended = run("import fedloom.deploy, fedloom.remote", "cryptography")
    assert ended.returncode == 0, ended.stderr


def test_secure_sums_name_their_own_extra() -> None:
    ended = run("import fedloom.remote.server_sums", "cryptography")
    assert "Secure sums need cryptography" in ended.stderr
    assert "pip install 'fedloom[privacy]'" in ended.stderr


def test_a_command_without_flower_names_the_extra_for_flower() -> None:
    code = (
        "sys.argv = 'fedloom join h:1 --home none --client 0 --insecure --secure 3'"
        ".split()\nfrom fedloom.cli import main\nmain()"
    )
    ended = run(code, "cryptography", "flwr")
    assert ended.returncode == 2, ended.stderr
    assert "pip install 'fedloom[flower]'" in ended.stderr
    assert "Secure sums" not in ended.stderr
