"""Directories of runs and comparisons, with one or two things in them damaged."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
from data_files import damaged
from odd_values import TEXTS, odd, pick
from rounds import BASE
from worker import Note

from fedloom.comparison import load_comparison, parse_comparison, run_comparison
from fedloom.config import parse
from fedloom.reports import write_report
from fedloom.reports.watch import Watch
from fedloom.runs import load, resume, run_config

STRANGERS = [
    ".DS_Store",
    "Thumbs.db",
    "notes.txt",
    "000001.parquet",
    "x.npz",
    "7",
    "a/b",
]


class Trial:
    """A small run and a small comparison, both finished."""

    def __init__(self, folder: Path) -> None:
        tables = BASE | {"rounds": 2, "checkpoint_every": 1}
        tables |= {"split": {"per_class": 8, "validation": 0.2}}
        method = {"name": "self-fl", "most_steps": 2}
        run_config(parse(tables | {"algorithm": method}), out=folder / "run").gain()
        del tables["algorithm"]
        tables |= {"methods": ["fedavg", "local"], "seeds": 2}
        run_comparison(parse_comparison(tables), folder / "both", jobs=1)
        self.common = folder

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """Damage, then resume, report, export, look."""
        name = pick(draw, ["run", "run", "both"])
        path = folder / name
        shutil.copytree(self.common / name, path)
        said = [self._damage(draw, path) for _ in range(int(draw.integers(1, 3)))]
        way = pick(draw, [_resume, _report, _use, _watch])
        note(f"{way.__name__}({name}): {'; '.join(said)}")
        way(path)

    def _damage(self, draw: np.random.Generator, path: Path) -> str:
        """Change one thing, and say what."""
        files = sorted(file for file in path.rglob("*") if file.is_file())
        file = pick(draw, files)
        packed = [file for file in files if file.suffix in (".npz", ".parquet")]
        if packed and draw.random() < 0.15:
            file = pick(draw, packed)
            _flip(draw, file)
            return f"{file.relative_to(path)}: one bit turned over"
        where = file.relative_to(path)
        what = int(draw.integers(8))
        if what == 0:
            file.unlink()
            return f"{where} deleted"
        if what == 1:
            file.unlink()
            file.mkdir()
            return f"{where} is a directory"
        if what == 2:
            file.write_bytes(b"")
            return f"{where} empty"
        if what == 3:
            stranger = file.parent / pick(draw, STRANGERS)
            stranger.parent.mkdir(exist_ok=True)
            if not stranger.is_dir():
                stranger.write_bytes(draw.bytes(30))
            return f"{stranger.relative_to(path)} put in"
        if what == 4:
            other = pick(draw, files)
            file.write_bytes(other.read_bytes())
            return f"{where} is {other.relative_to(path)}"
        if what == 5 and file.suffix in (".json", ".jsonl"):
            return f"{where}: {_change_json(draw, file)}"
        if what == 6 and file.suffix == ".toml":
            text = file.read_text().replace(
                pick(draw, ["= 2", "mlr", "fedavg", "8", "[", '"']), pick(draw, TEXTS)
            )
            file.write_bytes(text.encode("utf-8", "replace"))
            return f"{where} has other words"
        raw = damaged(draw, file.read_bytes())
        file.write_bytes(raw)
        return f"{where} damaged"


def _flip(draw: np.random.Generator, file: Path) -> None:
    """Turn over one bit."""
    content = bytearray(file.read_bytes())
    if content:
        content[int(draw.integers(len(content)))] ^= 1 << int(draw.integers(8))
        file.write_bytes(content)


def _change_json(draw: np.random.Generator, file: Path) -> str:
    """Leave out a key, or give it another value."""
    lines = file.read_text().splitlines() if file.suffix == ".jsonl" else []
    number = int(draw.integers(len(lines))) if lines else 0
    try:
        record = json.loads(lines[number] if lines else file.read_text())
    except ValueError:
        return "not changed"
    if not isinstance(record, dict) or not record:
        return "not changed"
    key = pick(draw, list(record))
    value = odd(draw)
    if draw.random() < 0.4:
        del record[key]
    else:
        record[key] = value
    try:
        text = json.dumps(record)
    except (TypeError, ValueError, RecursionError):
        return "not changed"
    if lines:
        lines[number] = text
        text = "\n".join(lines) + "\n"
    file.write_text(text)
    return f"{key} changed"


def _resume(path: Path) -> None:
    if path.name == "both":
        run_comparison(load_comparison(path), path, jobs=1)
    else:
        resume(path)


def _report(path: Path) -> None:
    write_report([path])


def _use(path: Path) -> None:
    run = path if path.name == "run" else path / "fedavg" / "seed-0"
    result = load(run)
    result.export(path.parent / "home", clients=["0"])
    result.predict("0", np.zeros((2, 1, 8, 8), np.uint8))


def _watch(path: Path) -> None:
    watch = Watch([path])
    json.dumps(watch.state(), allow_nan=False)
    watch.report()
