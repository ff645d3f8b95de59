"""Models as files that need no Fedloom run beside them.

    model.safetensors  a plain state dict under the module's own names
    model.toml         what rebuilds the module, and what goes in and comes out
    README.md          the model card

One model is written to the directory itself; several get a folder each, and models.csv
lists them. export.json lists all files with their digests: a later export replaces only
what it lists and what is still as it was written.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.torch import save_file

from fedloom.config import to_toml
from fedloom.core.digests import (
    extent_of,
    write_checked_json,
)
from fedloom.core.errors import ConfigError, DataError, MessageError
from fedloom.core.files import (
    cannot_write,
    is_private_folder,
    private_folder,
    remove_if_empty,
    write_csv,
    write_text,
)
from fedloom.core.metrics import METRICS
from fedloom.export.card import plain, prepares, write_card
from fedloom.export.exported_model import (
    ExportedModel,
    RunInfo,
    Score,
    module_of,
    scores_of,
)
from fedloom.export.listing import LIST, LIST_FORMAT, read_list
from fedloom.export.loading import FORMAT, TABLES, WEIGHTS
from fedloom.results.directory import RunDirectory
from fedloom.results.lock import hold
from fedloom.results.scores import Scores
from fedloom.server.simulation import Simulation

_CARD = "README.md"
_INDEX = "models.csv"
_LOCK = ".fedloom-export.lock"
"""In the folder for as long as somebody writes there."""
_NEW, _OLD = "new", "old"
"""What a private folder holds while an export is made or replaced."""
_LONGEST = 40
"""Most letters of a client's name in the name of its folder."""


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
                number=row,
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
    gains = None if directory is None else RunDirectory(directory).read_gain()
    if gains is None:
        return []
    columns = (gains[name].tolist() for name in ("gain", "together", "alone"))
    return [
        f"Gain over training alone with the same local work, on test data: "
        f"{gain:+.4f} ({together:.4f} instead of {alone:.4f})."
        for gain, together, alone in zip(*columns, strict=True)
    ]


def export(
    run: RunInfo, models: Sequence[ExportedModel], out: Path, *, fresh: bool = False
) -> Path:
    """Write models to a new or empty directory, all of them or nothing.

    A directory that is there stays, with its mode; files in it are readable for no one
    who cannot look into it. What a killed process left there is put back first.

    Args:
        run: the run they come from.
        models: one or more.
        out: the directory.
        fresh: replace an earlier export that is there.

    Raises:
        ConfigError: the directory is not empty, or not only an earlier export, or
            somebody else is writing there.
        DataError: it cannot be written.
    """
    out = out.resolve()
    if out.exists() and not out.is_dir():
        raise ConfigError(f"{out}: expected a directory, found a file.")
    is_new = not out.exists()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise cannot_write(out, error) from error
    try:
        with hold(out / _LOCK, stays=False):
            _settle_all(out)
            _replace(run, models, out, _refuse(out, fresh=fresh))
    finally:
        if is_new:
            remove_if_empty(out)
    return out


def _replace(
    run: RunInfo, models: Sequence[ExportedModel], out: Path, earlier: Sequence[str]
) -> None:
    """Write models to a directory in the place of an earlier export's files."""
    private: Path | None = None
    try:
        # In the folder itself, which stays: it may be where somebody stands, or where
        # another disk is mounted.
        private = private_folder(out)
        made, old = private / _NEW, private / _OLD
        if len(models) == 1:
            _write(run, models[0], made)
        else:
            _write_all(run, models, made)
        _list_files(made)
        _narrow(made, out.stat().st_mode)
        if earlier:
            old.mkdir()
            for name in _tops(earlier):  # the list first: what is left is no export
                (out / name).replace(old / name)
        for path in sorted(made.iterdir(), key=lambda path: path.name == LIST):
            path.replace(out / path.name)
    except (OSError, SafetensorError) as error:
        raise cannot_write(out, error) from error
    finally:
        if private is not None:
            _settle(out, private)


def _tops(names: Iterable[str]) -> list[str]:
    """The files and folders at the top that these are, or are in, the list first."""
    tops = dict.fromkeys([LIST, *(name.partition("/")[0] for name in names)])
    return list(tops)


def _narrow(folder: Path, mode: int) -> None:
    """Let nobody read what is in a folder who may not look into the folder it is for.

    Args:
        folder: of new files.
        mode: of the folder that they are for.
    """
    for path in folder.rglob("*"):
        own = path.stat().st_mode & 0o777
        narrowed = own & (mode | 0o700)
        if narrowed != own:
            path.chmod(narrowed)


def _settle_all(out: Path) -> None:
    """End or take back what a killed process was about in this folder.

    Raises:
        ConfigError: somebody has changed since what it had written.
        DataError: the files cannot be moved.
    """
    for private in out.glob(".fedloom-*.part"):
        if is_private_folder(private):
            inside = {path.name for path in private.iterdir()}
            if inside and inside <= {_NEW, _OLD}:
                _settle(out, private)
            remove_if_empty(private)


def _settle(out: Path, private: Path) -> None:
    """Put back what was there before, or, if all was written, remove that.

    All was written once the list of the new files, the last of them, is in its place.

    Args:
        out: the folder of the export.
        private: in it, the new files that are not in their places yet, and old ones.
    """
    made, old = private / _NEW, private / _OLD
    try:
        if (made / LIST).is_file():
            _take_back(out, made)
            for name in reversed(_tops(path.name for path in old.glob("*"))):
                if (old / name).exists():
                    (old / name).replace(out / name)
        shutil.rmtree(made, ignore_errors=True)
        for name in (*read_list(old), LIST) if (old / LIST).is_file() else ():
            (old / name).unlink(missing_ok=True)
        _remove_folders(old)
    except OSError as error:
        raise cannot_write(out, error) from error
    remove_if_empty(private)


def _take_back(out: Path, made: Path) -> None:
    """Move new files that are in their places already out of these."""
    listed = read_list(made)
    for name, extent in listed.items():
        top = name.partition("/")[0]
        if (made / top).exists() or not (out / name).exists():
            continue
        if extent_of(out / name) != extent:
            raise ConfigError(
                f"{out / name}: belongs to an export that was stopped halfway, and was "
                "changed since. Move it away and export again."
            )
    for top in _tops(listed):
        if (out / top).exists() and not (made / top).exists():
            (out / top).replace(made / top)


def _list_files(folder: Path) -> None:
    """Write down which files are ours, and their digests."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    extents = {
        path.relative_to(folder).as_posix(): list(extent_of(path)) for path in files
    }
    write_checked_json(folder / LIST, {"format": LIST_FORMAT, "files": extents})


def _refuse(out: Path, *, fresh: bool) -> list[str]:
    """Refuse a directory that holds what nobody said may go.

    Returns:
        The files of an earlier export that is there, all of them as they were written.
    """
    if all(path.name == _LOCK for path in out.iterdir()):
        return []
    try:
        listed = read_list(out)
    except MessageError as error:
        raise ConfigError(
            f"{out}: holds something else than exported models. {error} Choose "
            "another --out."
        ) from error
    names = []
    for path in sorted(out.rglob("*")):
        name = path.relative_to(out).as_posix()
        if name == _LOCK:
            continue
        is_ours = name == LIST or name in listed
        if path.is_dir() and not path.is_symlink():
            is_ours = any(file.startswith(f"{name}/") for file in listed)
        else:
            names.append(name)
        if not is_ours:
            raise ConfigError(
                f"{out}: holds something else than exported models ({name}). Choose "
                "another --out."
            )
        if name in listed and extent_of(path) != listed[name]:
            raise ConfigError(
                f"{out}: {name} was changed since it was exported. Choose another "
                "--out, or move it away."
            )
    if not fresh:
        raise ConfigError(
            f"{out}: already holds exported models. Choose another --out, or replace "
            "them with --fresh."
        )
    return names


def _remove_folders(folder: Path) -> None:
    """Remove the folders of a folder, and itself, in which there are no files left."""
    for path in folder.glob("*"):
        remove_if_empty(path)
    remove_if_empty(folder)


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
            facts[part] = held_out.get(part, {}).get(run.task.metric, "")
        index.append(facts)
    write_csv(index, out / _INDEX)


def _folder(model: ExportedModel, place: int) -> str:
    """A name of its own for every model: a client's number, and its name if it can."""
    if model.client is None:
        return "shared"
    number = str(place if model.number is None else model.number)
    name = re.sub(r"[^A-Za-z0-9]+", "-", model.client)[:_LONGEST].strip("-")
    return f"client-{number}" + (f"-{name}" if name and name != number else "")


def _write(run: RunInfo, model: ExportedModel, folder: Path) -> None:
    folder.mkdir(parents=True)
    tensors = {
        # Cloned, because safetensors refuses parameters that share memory.
        name: value.detach().cpu().contiguous().clone()
        for name, value in model.module.state_dict().items()
    }
    # One entry only: safetensors writes several in any order, and files would differ.
    save_file(tensors, folder / WEIGHTS, metadata={"format": "pt"})
    texts = {
        TABLES: to_toml(_tables(run, model)),
        _CARD: write_card(run, model),
    }
    for name, text in texts.items():
        write_text(folder / name, text)
    # It was written for its owner alone.
    (folder / WEIGHTS).chmod((folder / _CARD).stat().st_mode)


def _tables(run: RunInfo, model: ExportedModel) -> dict[str, Any]:
    """What rebuilds the module and feeds it."""
    task, dataset = run.task, run.dataset
    vectors = dataset.vectors
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
            "algorithm": run.algorithm.name,
            "dataset": run.data_name,
            "split": run.federation.hash,
            "seed": run.seed,
            "round": run.round,
        },
    }
