"""Exported models: their two files changed, and then loaded."""

from __future__ import annotations

import json
import shutil
import struct
import tomllib
from pathlib import Path
from typing import Any

import numpy as np
import torch
from data_files import damaged
from odd_values import odd, pick
from rounds import BASE
from toml_texts import damage
from worker import Note

from fedloom.config import parse, read_toml, to_toml
from fedloom.core.errors import FedloomError
from fedloom.export.loading import load_exported
from fedloom.export.predictions import prediction_rows
from fedloom.runs import run_config

WEIGHTS, TABLES = "model.safetensors", "model.toml"


class Trial:
    """Models of a few kinds, as `fedloom export` writes them."""

    def __init__(self, folder: Path) -> None:
        models = [{"name": "mlr"}, {"name": "mlp", "hidden": [3, 3]}]
        for n, model in enumerate(models):
            result = run_config(parse(BASE | {"model": model}))
            result.export(folder / str(n), clients=["0"])
        data = {"name": "gaussian", "clients": 2, "least": 8}
        tables = {"data": data, "partition": {"name": "natural"}, "split": {}}
        result = run_config(parse(BASE | tables))
        result.export(folder / "2", clients=["0"])
        self.folders = [folder / str(n) for n in range(3)]

    def attempt(self, draw: np.random.Generator, folder: Path, note: Note) -> None:
        """What can be loaded takes an input of the shape that its file says."""
        path = folder / "home"
        shutil.copytree(pick(draw, self.folders), path)
        way = draw.random()
        about = self._change_tables(draw, path / TABLES) if way < 0.6 else ""
        if way > 0.9:
            raw = damage(draw, (path / TABLES).read_text())
            (path / TABLES).write_bytes(raw)
            about = f"{TABLES}: {raw[:1000]!r}"
        elif way > 0.4:
            about += self._change_weights(draw, path / WEIGHTS)
        note(about)
        if draw.random() < 0.9:
            (path / "export.json").unlink()  # which tells of every change
        loaded = load_exported(path)
        shape = read_toml(path / TABLES)["input"]["shape"]
        kind = next(loaded.module.parameters()).dtype
        outputs = loaded.predict((torch.zeros(1, *shape, dtype=kind),))
        prediction_rows(outputs, loaded.like)

    def _change_tables(self, draw: np.random.Generator, path: Path) -> str:
        tables = tomllib.loads(path.read_text())
        table: dict[str, Any] = tables
        if draw.random() < 0.8:
            table = tables[pick(draw, ["model", "input", "output"])]
        key = pick(draw, [*table, "name", "shape", "outputs", "hidden", "tokens"])
        value = odd(draw)
        if draw.random() < 0.1:
            table.pop(key, None)
        else:
            table[key] = value
        try:
            text = to_toml(tables)
        except (TypeError, ValueError, RecursionError) as error:
            raise FedloomError("it cannot be written") from error
        path.write_bytes(text.encode("utf-8", "surrogatepass"))
        return f"{TABLES}: {text[:800]!r}"

    def _change_weights(self, draw: np.random.Generator, path: Path) -> str:
        raw = path.read_bytes()
        if draw.random() < 0.4:
            # The header, so that what it says remains JSON.
            (length,) = struct.unpack("<Q", raw[:8])
            header = json.loads(raw[8 : 8 + length])
            name = pick(draw, list(header))
            key = pick(draw, [*header[name], "shape"])
            header[name][key] = pick(
                draw, [[10**9, 10**9], [-1], [], [0], "F64", "X", [0, 10**12], 3, None]
            )
            text = json.dumps(header).encode()
            path.write_bytes(struct.pack("<Q", len(text)) + text + raw[8 + length :])
            return f"{WEIGHTS}: {text[:500]!r}"
        raw = damaged(draw, raw)
        path.write_bytes(raw)
        return f"{WEIGHTS} damaged: {raw[:200]!r}"
