"""A score: what a client's models are asked for, and the sums that it answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import torch

from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.describe import returned
from fedloom.core.errors import ContractError, MessageError
from fedloom.core.measures import Sums
from fedloom.core.messages import PARTS, ScoreRequest
from fedloom.core.records import leaves, named, rebuild
from fedloom.core.task import Task
from fedloom.remote.codec.fields import (
    Tensors,
    read_download,
    read_record,
    read_scalar,
    refuse_others,
    under,
    where_of,
)
from fedloom.remote.wire import WireMessage, below, refuse_infinite


def request_tensors(
    request: ScoreRequest, row: int, team: int, parts: Collection[str]
) -> Tensors:
    """What one client of a request is sent; it is scored on all these parts at once."""
    models = {"shared": request.shared}
    if request.teams is not None:
        models["team"] = request.teams[team]
    return {
        "instruction.taken": request.taken[row],
        "instruction.parts": torch.tensor([part in parts for part in PARTS]),
        **under("download", request.download.take(row).record),
        **{f"model.{name}": m for name, m in models.items() if m is not None},
    }


def read_requests(
    message: WireMessage, algorithm: AnyAlgorithm, task: Task
) -> list[ScoreRequest]:
    """The requests, one for each part, for the one client that a message is for.

    The team that it is in is 0.

    Raises:
        MessageError: It is not what its type declares.
    """
    header, where = message.header, where_of(message.header)
    known = ("instruction", "download", "model", "constants")
    refuse_others(message.tensors, known, where)
    instruction = below(message.tensors, "instruction")
    taken = read_scalar(instruction, "taken", torch.int64, where)
    parts = instruction.get("parts", torch.zeros(0))
    is_sound = parts.dtype == torch.bool and parts.shape == (len(PARTS),)
    is_sound = is_sound and bool(parts.any()) and len(instruction) == 2
    if not is_sound or not -1 <= int(taken) < header.number:
        raise MessageError(f"{where}: its instruction is not that of a score.")
    models = below(message.tensors, "model")
    refuse_others(models, ("shared", "team"), where)
    for name, theta in models.items():
        if theta.shape != task.start.shape or theta.dtype != task.dtype:
            raise MessageError(
                f"{where}: the {name} model should be {task.dtype} "
                f"{tuple(task.start.shape)}, found {theta.dtype} {tuple(theta.shape)}."
            )
    refuse_infinite(models, where)
    shared, team = models.get("shared"), models.get("team")
    download = read_download(message, model_record(algorithm), task, where)
    return [
        ScoreRequest(
            round=header.round,
            clients=torch.tensor([header.client], device=task.device),
            taken=taken[None].to(task.device),
            download=download,
            part=part,
            shared=None if shared is None else shared.to(task.device),
            teams=None if team is None else team[None].to(task.device),
        )
        for part, is_asked in zip(PARTS, parts.tolist(), strict=True)
        if is_asked
    ]


def sums_tensors(sums: Mapping[str, Mapping[str, Sums]]) -> Tensors:
    """What one client answers, by part and kind of model, one row each."""
    return {
        f"{part}.{kind}.{name}": tensor[0]
        for part, by_kind in sums.items()
        for kind, of_kind in by_kind.items()
        for name, tensor in named(of_kind).items()
    }


def read_sums(
    message: WireMessage, like: Mapping[str, Sums], parts: Collection[str]
) -> dict[str, dict[str, Sums]]:
    """A client's sums, by part and kind of model, one row each, checked.

    Args:
        message: what came.
        like: by kind of model, what sums look like, one row each.
        parts: those that the client was scored on.

    Raises:
        MessageError: It is not what was expected.
    """
    where = where_of(message.header)
    refuse_others(message.tensors, tuple(parts), where)
    refuse_infinite(message.tensors, where)
    made: dict[str, dict[str, Sums]] = {}
    for part in parts:
        sent = below(message.tensors, part)
        refuse_others(sent, tuple(like), f"{where}, {part}")
        made[part] = {}
        for kind, row in like.items():
            expected = rebuild(row, [leaf[0] for leaf in leaves(row)])
            sums = read_record(sent, kind, expected, f"{where}, {part}")
            if int(sums.samples) < 0:
                raise MessageError(
                    f"{where}: expected a number of samples of at least 0, found "
                    f"{int(sums.samples)}."
                )
            made[part][kind] = rebuild(sums, [leaf[None] for leaf in leaves(sums)])
    return made


def model_record(algorithm: AnyAlgorithm) -> type[Any]:
    """The type of what a method's `model_download` makes.

    Raises:
        ContractError: The method does not say.
    """
    kind = type(algorithm)
    if kind.model_download is Algorithm.model_download:
        return algorithm.records[2]
    record = returned(kind.model_download)
    if not hasattr(record, "_fields"):
        raise ContractError(
            f"{algorithm.name}: model_download must be annotated with the record that "
            f"it returns, found {record}."
        )
    return record
