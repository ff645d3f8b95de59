"""Models as files that need no Fedloom run beside them.

    model.safetensors  a plain state dict under the module's own names
    model.toml         what rebuilds the module, and what goes in and comes out
    README.md          the model card

One model is written to the directory itself; several get a folder each, and models.csv
lists them.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file

from fedloom.config import to_toml
from fedloom.core.errors import ConfigError, DataError
from fedloom.core.files import partial_path, write_csv
from fedloom.core.metrics import METRICS
from fedloom.export.card import plain, prepares, write_card
from fedloom.export.exported_model import (
    ExportedModel,
    RunInfo,
    Score,
    module_of,
    scores_of,
)
from fedloom.export.loading import FORMAT, TABLES, WEIGHTS
from fedloom.results.scores import Scores
from fedloom.server.simulation import Simulation

_FILES = (WEIGHTS, TABLES, "README.md")
_INDEX = "models.csv"


def exported_models(
    simulation: Simulation,
    scores: Sequence[Scores],
    rows: Iterable[int],
    *,
    has_shared: bool = False,
    directory: Path | None = None,
) -> list[ExportedModel]:
    """Models of a trained run, ready to be written.

    Args:
        simulation: the run.
        scores: of all clients, at its last evaluated round.
        rows: whose personal models.
        has_shared: the shared model too.
        directory: of the run, where its gain.parquet lies if there is one.

    Raises:
        DataError: the shared model is asked for, and the method has none.
    """
    models = []
    if has_shared:
        theta = simulation.shared()
        if theta is None:
            raise DataError(
                f"{simulation.algorithm.name} has no shared model. Export the clients' "
                "own."
            )
        sizes = simulation.federation.sizes
        models.append(
            ExportedModel(
                kind="shared",
                client=None,
                samples=int(sizes.sum()),
                module=module_of(simulation.task, theta),
                scores=[_mean(s, sizes) for s in scores if s.kind == "shared"],
            )
        )
    gain = _read_gain(directory)
    for row in rows:
        place = torch.tensor([row], device=simulation.task.device)
        models.append(
            ExportedModel(
                kind="personal",
                client=simulation.federation.names[row],
                samples=int(simulation.federation.sizes[row]),
                module=module_of(simulation.task, simulation.personal(place)[0]),
                scores=scores_of(scores, row),
                remarks=[gain[row]] if gain else [],
            )
        )
    return models


def _mean(scores: Scores, sizes: NDArray[np.int64]) -> Score:
    """How a model did on one part of the data of all clients."""
    numbers = {n: v for n, v in scores.summary(sizes).items() if n in METRICS}
    return Score(scores.kind, scores.part, int(scores.samples.sum()), numbers)


def _read_gain(directory: Path | None) -> list[str]:
    """A sentence per client, from gain.parquet if the run has one."""
    if directory is None or not (directory / "gain.parquet").is_file():
        return []
    rows = pq.read_table(directory / "gain.parquet").to_pylist()
    return [
        f"Gain over training alone with the same local work, on test data: "
        f"{row['gain']:+.4f} ({row['together']:.4f} instead of {row['alone']:.4f})."
        for row in rows
    ]


def export(
    run: RunInfo, models: Sequence[ExportedModel], out: Path, *, fresh: bool = False
) -> Path:
    """Write models to a new directory, all of them or nothing.

    Args:
        run: the run they come from.
        models: one or more.
        out: the directory.
        fresh: replace an earlier export that is there.

    Raises:
        ConfigError: the directory is not empty, or not only an earlier export.
    """
    _refuse(out, fresh=fresh)
    part, old = partial_path(out), out.with_name(f".{out.name}.old")
    try:
        for earlier in (part, old):
            if earlier.exists():
                shutil.rmtree(earlier)
        if len(models) == 1:
            _write(run, models[0], part)
        else:
            _write_all(run, models, part)
        if out.exists():
            out.replace(old)
        part.replace(out)
        if old.exists():
            shutil.rmtree(old)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(part, ignore_errors=True)
        raise ConfigError(f"{out}: cannot be written ({error}).") from error
    return out


def _refuse(out: Path, *, fresh: bool) -> None:
    """Refuse a directory that holds what nobody said may go."""
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: expected a directory, found a file.")
    if not out.exists() or not any(out.iterdir()):
        return
    files = [path for path in sorted(out.rglob("*")) if not path.is_dir()]
    foreign = [path for path in files if path.name not in (*_FILES, _INDEX)]
    is_export = (out / "model.toml").is_file() or (out / _INDEX).is_file()
    if not is_export or foreign:
        example = foreign[0].relative_to(out) if foreign else "no model.toml"
        raise ConfigError(
            f"{out}: holds something else than exported models ({example}). Choose "
            "another --out."
        )
    if not fresh:
        raise ConfigError(
            f"{out}: already holds exported models. Choose another --out, or replace "
            "them with --fresh."
        )


def _write_all(run: RunInfo, models: Sequence[ExportedModel], out: Path) -> None:
    index = []
    for number, model in enumerate(models):
        folder = _folder(model, number)
        _write(run, model, out / folder)
        facts: dict[str, object] = {
            "folder": folder,
            "kind": model.kind,
            "client": model.client,
            "samples": model.samples,
        }
        kind = "shared" if model.client is None else "personal"
        held_out = {s.part: s.numbers for s in model.scores if s.kind == kind}
        for part in ("test", "validation"):
            facts[part] = held_out.get(part, {}).get(run.simulation.task.metric, "")
        index.append(facts)
    write_csv(index, out / _INDEX)


def _folder(model: ExportedModel, number: int) -> str:
    """A client's name, if it can name a folder."""
    if model.client is None:
        return "shared"
    plain_name = model.client.replace("-", "").replace("_", "").isalnum()
    return f"client-{model.client if plain_name else number}"


def _write(run: RunInfo, model: ExportedModel, folder: Path) -> None:
    folder.mkdir(parents=True)
    tensors = {
        # Cloned, because safetensors refuses parameters that share memory.
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.module.state_dict().items()
    }
    # One entry only: safetensors writes several in any order, and files would differ.
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "model.toml").write_text(to_toml(_tables(run, model)))
    (folder / "README.md").write_text(write_card(run, model))


def _tables(run: RunInfo, model: ExportedModel) -> dict[str, Any]:
    """What rebuilds the module and feeds it."""
    simulation, dataset = run.simulation, run.dataset
    task, vectors = simulation.task, dataset.vectors
    is_prepared = prepares(task, dataset.inputs)
    inputs = {
        "shape": dataset.input_shape,
        "types": [str(x.dtype).removeprefix("torch.") for x in dataset.inputs],
        "shift": plain(task.shift) if is_prepared else None,
        "scale": plain(task.scale) if is_prepared else None,
        "features": dataset.features,
        "tokens": dataset.tokens,
        "vectors": None if vectors is None else tuple(vectors.shape),
    }
    output = {
        "outputs": dataset.outputs,
        "task": "regression" if dataset.classes is None else "classification",
        "classes": dataset.class_names,
        "shift": plain(task.scaling.target_shift) if task.scales_targets else None,
        "scale": plain(task.scaling.target_scale) if task.scales_targets else None,
    }
    return {
        "format": FORMAT,
        "kind": model.kind,
        "client": model.client or "",
        "dtype": str(task.dtype).removeprefix("torch."),
        "model": run.config.get("model", {"class": type(model.module).__qualname__}),
        "input": {key: value for key, value in inputs.items() if value is not None},
        "output": {key: value for key, value in output.items() if value is not None},
        "run": {
            "algorithm": simulation.algorithm.name,
            "dataset": run.data_name,
            "split": simulation.federation.hash,
            "seed": simulation.seed,
            "round": simulation.state.round,
        },
    }
