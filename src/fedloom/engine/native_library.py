"""Our C code as a shared library: compiled once for this machine, then kept.

The library lies in a folder of the user's, under a name that says what it was made of:
the source, the compiler, its options, and what the processor can do. Its last bytes are
a digest of all before them, so that one that was cut short is made anew.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

from fedloom.core.user_cache import user_cache

_SOURCE = Path(__file__).with_name("descend.c")
_COMPILERS = ("gcc", "cc", "clang", "g++", "clang++", "c++")
_OPTIONS = (
    *("-x", "c", "-std=gnu11", "-O3", "-shared", "-fPIC"),
    # Sums may be fused; what is not a number stays what it is.
    *("-ffp-contract=fast", "-fno-math-errno", "-fno-trapping-math"),
)
_MACHINE = (("-march=native",), ("-mcpu=native",), ())
"""Options for this very processor, in the order in which they are tried."""
_PATIENCE_S = 120.0


@cache
def native_library(bits: int) -> ctypes.CDLL | None:
    """The library for floating numbers of so many bits; None if there is none.

    Made where it is not there yet; there is none without a C compiler.
    """
    compiler = next(filter(None, map(shutil.which, _COMPILERS)), None)
    if compiler is None:
        return None
    for folder in _folders():
        with suppress(OSError, subprocess.SubprocessError):
            return _library(folder, compiler, bits)
    return None


def _library(folder: Path, compiler: str, bits: int) -> ctypes.CDLL:
    path = folder / f"descend-{bits}-{_fingerprint(compiler)}.so"
    if not _is_intact(path):
        _build(path, compiler, bits)
    return ctypes.CDLL(str(path))


def _folders() -> Iterator[Path]:
    """Where libraries may be kept: only where nobody else can write."""
    with suppress(OSError):
        yield user_cache()
    # Windows keeps a library that is in use.
    with tempfile.TemporaryDirectory(
        prefix="fedloom-", ignore_cleanup_errors=True
    ) as own:
        yield Path(own)


def _fingerprint(compiler: str) -> str:
    """A digest of all that a library depends on."""
    version = subprocess.run(
        [compiler, "--version"], capture_output=True, check=True, timeout=_PATIENCE_S
    ).stdout
    parts = [_SOURCE.read_bytes(), compiler.encode(), version, _processor()]
    parts += [repr((_OPTIONS, _MACHINE)).encode()]
    return hashlib.sha256(b"\0".join(parts)).hexdigest()[:16]


def _processor() -> bytes:
    """What the processor is and can do."""
    lines: set[bytes] = set()
    with suppress(OSError):
        wanted = (b"flags", b"Features", b"model name", b"CPU part")
        for line in Path("/proc/cpuinfo").read_bytes().splitlines():
            if line.startswith(wanted):
                lines.add(line)
    names = [*platform.uname()[4:], platform.processor()]
    return b"\n".join([*sorted(lines), *(name.encode() for name in names)])


def _build(path: Path, compiler: str, bits: int) -> None:
    """Compile into place; of two processes that do, the last is as good as the first.

    Raises:
        OSError: the folder cannot be written to.
        SubprocessError: the compiler failed.
    """
    with tempfile.TemporaryDirectory(prefix=".build-", dir=path.parent) as own:
        made = Path(own) / path.name
        for machine in _MACHINE:
            command = [compiler, *_OPTIONS, *machine, f"-DREAL_BITS={bits}"]
            command += ["-o", str(made), str(_SOURCE), "-lm", "-lpthread"]
            outcome = subprocess.run(command, capture_output=True, timeout=_PATIENCE_S)
            if outcome.returncode == 0:
                break
        outcome.check_returncode()
        content = made.read_bytes()
        made.write_bytes(content + hashlib.sha256(content).digest())
        os.replace(made, path)


def _is_intact(path: Path) -> bool:
    with suppress(OSError):
        content = path.read_bytes()
        return hashlib.sha256(content[:-32]).digest() == content[-32:]
    return False
