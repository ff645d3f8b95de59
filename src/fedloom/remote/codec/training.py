"""An exchange: the order that goes down, the report and the upload that come up."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor

from fedloom.core.algorithm import AnyAlgorithm
from fedloom.core.errors import ContractError, MessageError
from fedloom.core.messages import Order, Report
from fedloom.core.policy import LARGEST_NORM
from fedloom.core.records import declared_ranges, own_names, tensors_digest
from fedloom.core.task import Task
from fedloom.engine.work import MostWork
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


def order_tensors(order: Order, row: int) -> Tensors:
    """What one client of an order is sent."""
    return {
        "instruction.uploads": order.uploads[row],
        "instruction.taken": order.taken[row],
        **under("download", order.download.take(row).record),
    }


def read_order(
    message: WireMessage,
    algorithm: AnyAlgorithm,
    task: Task,
    beside: tuple[str, ...] = (),
) -> Order:
    """The order for the one client that a message is for.

    Args:
        message: what came.
        algorithm: the method.
        task: model and loss.
        beside: parts of it that somebody else reads.

    Raises:
        MessageError: It is not what its type declares.
    """
    header, where = message.header, where_of(message.header)
    parts = ("instruction", "download", "constants", *beside)
    refuse_others(message.tensors, parts, where)
    instruction = below(message.tensors, "instruction")
    uploads = read_scalar(instruction, "uploads", torch.bool, where)
    taken = read_scalar(instruction, "taken", torch.int64, where)
    if len(instruction) > 2 or not -1 <= int(taken) < header.number:
        raise MessageError(f"{where}: its instruction is not that of an exchange.")
    return Order(
        round=header.round,
        exchange=header.exchange,
        number=header.number,
        clients=torch.tensor([header.client], device=task.device),
        download=read_download(message, algorithm.records[2], task, where),
        uploads=uploads[None].to(task.device),
        taken=taken[None].to(task.device),
    )


def common_digest(
    tensors: Mapping[str, Tensor], download: Any, *, in_team: bool
) -> str:
    """Digest of what an order says to all clients of a secure sum alike.

    That is all of it but what a client has for itself: its rows of the download and
    which of its uploads was taken last. Who is in the sum is not in it either.

    Args:
        tensors: what one of them is sent.
        download: the record of the download in it, of whatever shape.
        in_team: whether they are all of one team.
    """
    own = {f"download.{name}" for name in own_names(download, in_team=in_team)}
    own |= {"instruction.taken", "secure.clients"}
    common = {name: tensor for name, tensor in tensors.items() if name not in own}
    return tensors_digest(common, size=32)


def result_tensors(report: Report, upload: Any) -> Tensors:
    """What one client sends; `upload` is None if it is not to upload."""
    sent = {} if upload is None else under("upload", upload)
    return {**under("report", report), **sent}


def read_result(
    message: WireMessage,
    upload: Any,
    dtype: torch.dtype,
    *,
    most: MostWork,
    largest_norm: float = LARGEST_NORM,
    largest_loss: float = LARGEST_NORM,
    ranges: Mapping[str, range] = MappingProxyType({}),
    beside: tuple[str, ...] = (),
) -> tuple[Report, Any]:
    """A client's report and upload, checked.

    Args:
        message: what came.
        upload: what an upload looks like; None if the client was not to upload.
        dtype: the run's floating type.
        most: the most local work that the client can have done.
        largest_norm: longest tensor of an upload that is taken.
        largest_loss: largest training loss that is taken.
        ranges: by field of an upload, the whole numbers that are taken.
        beside: parts of the message that somebody else reads.

    Raises:
        MessageError: It is not what was expected.
    """
    where = where_of(message.header)
    parts = ("report",) if upload is None else ("report", "upload")
    refuse_others(message.tensors, (*parts, *beside), where)
    integer = torch.zeros((), dtype=torch.int64)
    like = Report(torch.zeros((), dtype=dtype), integer, integer)
    report = read_record(message.tensors, "report", like, where)
    refuse_infinite(below(message.tensors, "report"), where)
    if abs(float(report.loss)) > largest_loss:
        raise MessageError(
            f"{where}: its training loss is {float(report.loss):.3g}, and at most "
            f"{largest_loss:.3g} is taken."
        )
    for name, highest in most._asdict().items():
        number = int(getattr(report, name))
        if not 0 <= number <= highest:
            raise MessageError(
                f"{where}: expected 0 to {highest} {name}, which is all that its "
                f"samples can take, found {number}."
            )
    if upload is None:
        return report, None
    sent = below(message.tensors, "upload")
    record = read_record(message.tensors, "upload", upload, where)
    refuse_infinite(sent, where)
    for name, tensor in sent.items():
        norm = float(tensor.double().norm())
        if tensor.is_floating_point() and norm > largest_norm:
            raise MessageError(
                f"{where}: field {name!r} has the norm {norm:.3g}, and at most "
                f"{largest_norm:.3g} is taken."
            )
    for name, allowed in ranges.items():
        for number in sent[name].reshape(-1).tolist():
            if number not in allowed:
                raise MessageError(
                    f"{where}: field {name!r} should be a whole number of "
                    f"{allowed.start} to {allowed.stop - 1}, found {number}."
                )
    return report, record


def upload_ranges(algorithm: AnyAlgorithm) -> dict[str, range]:
    """By field of a method's upload, the whole numbers that it may have.

    Those of fields that its type marks with `WholeNumbers`.

    Raises:
        ContractError: A mark names no setting of the method that is a whole number.
    """
    ranges = {}
    for name, declared in declared_ranges(algorithm.records[4]).items():
        setting = below = declared.below
        if isinstance(setting, str):
            below = getattr(algorithm, setting, setting)
        if isinstance(below, str | float):
            raise ContractError(
                f"{algorithm.name}: {name} of its upload is marked to be below "
                f"{setting!r}, which is no setting that is a whole number."
            )
        ranges[name] = range(declared.least, 1 << 63 if below is None else below)
    return ranges
