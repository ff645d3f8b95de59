"""A score: what a client's models are asked for, and the sums that it answers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from math import isfinite
from typing import Any

import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm, has_own
from fedloom.core.describe import returned
from fedloom.core.errors import ContractError, MessageError
from fedloom.core.measures import Sums
from fedloom.core.messages import PARTS, ScoreRequest
from fedloom.core.metrics import statistics
from fedloom.core.policy import LARGEST_NORM
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

_ROUNDING = 1e-4
"""What rounding may add to a number of each sample."""


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


def sums_to_send(sums: Sums, *, tells_log_odds: bool) -> Sums:
    """What a client sends of its sums: less of what may tell of single samples.

    Args:
        sums: of its models, one row each.
        tells_log_odds: whether it agrees to send such numbers coarsely; else it sends
            none of them.
    """
    columns = []
    for statistic, column in zip(statistics(), sums.values, strict=True):
        if statistic.coarse is not None and column.shape[1:] != (0,):
            column = torch.from_numpy(statistic.coarse(column.numpy()))
            column = column if tells_log_odds else column[:, :0]
        columns.append(column)
    return Sums(sums.samples, tuple(columns))


def sums_tensors(sums: Mapping[str, Mapping[str, Sums]]) -> Tensors:
    """What one client answers, by part and kind of model, one row each."""
    return {
        f"{part}.{kind}.{name}": tensor[0]
        for part, by_kind in sums.items()
        for kind, of_kind in by_kind.items()
        for name, tensor in named(of_kind).items()
    }


def read_sums(
    message: WireMessage,
    like: Mapping[str, Sums],
    samples: Mapping[str, int],
    *,
    largest: float = LARGEST_NORM,
) -> dict[str, dict[str, Sums]]:
    """A client's sums, by part and kind of model, one row each, checked.

    Args:
        message: what came.
        like: by kind of model, what sums look like, one row each.
        samples: by part that the client was scored on, the most samples of it that the
            client can have.
        largest: most that a sample may add where the task has no limit.

    Raises:
        MessageError: It is not what was expected.
    """
    where = where_of(message.header)
    refuse_others(message.tensors, tuple(samples), where)
    refuse_infinite(message.tensors, where)
    made: dict[str, dict[str, Sums]] = {}
    for part, most in samples.items():
        sent = below(message.tensors, part)
        place = f"{where}, {part}"
        refuse_others(sent, tuple(like), place)
        made[part] = {}
        for kind, row in like.items():
            expected = _as_told(row, below(sent, kind))
            sums = read_record(sent, kind, expected, place)
            _refuse_impossible(sums, most, largest, f"{place}, {kind}")
            made[part][kind] = rebuild(sums, [leaf[None] for leaf in leaves(sums)])
    return made


def joined_sums(rows: Sequence[Sums]) -> Sums:
    """The sums of several clients; what one of them keeps to itself is left out."""
    columns = []
    for statistic, *column in zip(
        statistics(), *(row.values for row in rows), strict=True
    ):
        if statistic.coarse is not None:
            is_kept = any(
                row.samples.any() and own.shape[1:] == (0,)
                for row, own in zip(rows, column, strict=True)
            )
            width = 0 if is_kept else max(own.shape[1] for own in column)
            # Who has no sample has nothing to keep: zeros, as of any sum.
            column = [
                own[:, :width] if own.shape[1] else own.new_zeros(len(own), width)
                for own in column
            ]
        columns.append(torch.cat(column))
    return Sums(torch.cat([row.samples for row in rows]), tuple(columns))


def sums_of_team(sums: Sums) -> Sums:
    """The sums of several clients as those of one, one row."""
    columns = []
    for statistic, column in zip(statistics(), sums.values, strict=True):
        if statistic.join is None or column.shape[1:] == (0,):
            columns.append(column.sum(0, keepdim=True))
        else:
            row = statistic.join(sums.samples.numpy(), column.numpy())
            columns.append(torch.from_numpy(row)[None])
    return Sums(sums.samples.sum(0, keepdim=True), tuple(columns))


def _as_told(row: Sums, sent: Mapping[str, Tensor]) -> Sums:
    """What a client's sums look like, without what it may keep to itself and does."""
    columns = []
    for number, statistic in enumerate(statistics()):
        column = row.values[number][0]
        own = sent.get(f"values.{number}")
        if statistic.coarse is not None and own is not None and own.shape == (0,):
            column = column[:0]
        columns.append(column)
    return Sums(row.samples[0], tuple(columns))


def _refuse_impossible(sums: Sums, most: int, largest: float, where: str) -> None:
    """Refuse numbers that no model of the task can come to on so many samples."""
    samples = int(sums.samples)
    if not 0 <= samples <= most:
        raise MessageError(
            f"{where}: expected scores on 0 to {most} samples, found {samples}."
        )
    for statistic, values in zip(statistics(), sums.values, strict=True):
        if values.shape == (0,):
            continue
        bounds = [b if isfinite(b) else None for b in statistic.limits(samples)]
        room = max(samples, 1) * largest
        least = bounds[0] if bounds[0] is not None else -room
        highest = bounds[1] if bounds[1] is not None else room
        low, high = float(values.min()), float(values.max())
        slack = _ROUNDING * max(samples, 1)
        if low < least - slack or high > highest + slack:
            odd = low if low < least - slack else high
            raise MessageError(
                f"{where}: {statistic.name} of {samples} samples should be between "
                f"{least:g} and {highest:g}, found {odd:g}."
            )


def model_record(algorithm: AnyAlgorithm) -> type[Any]:
    """The type of what a method's `model_download` makes.

    Raises:
        ContractError: The method does not say.
    """
    if not has_own(algorithm, "model_download"):
        return algorithm.records[2]
    record = returned(algorithm.model_download)
    if not hasattr(record, "_fields"):
        raise ContractError(
            f"{algorithm.name}: model_download must be annotated with the record that "
            f"it returns, found {record}."
        )
    return record
