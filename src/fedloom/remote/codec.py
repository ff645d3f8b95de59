"""Between the typed messages of `fedloom.core.messages` and what crosses.

Names, types and shapes follow from the record types and from what the server expects;
whatever else comes is refused, with a sentence that says what was expected.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedloom.core.algorithm import Algorithm, AnyAlgorithm
from fedloom.core.describe import returned
from fedloom.core.digests import table_digest
from fedloom.core.errors import ContractError, MessageError, shown
from fedloom.core.measures import Sums
from fedloom.core.messages import (
    PARTS,
    CohortDownload,
    Enrolment,
    Order,
    Report,
    ScoreRequest,
)
from fedloom.core.records import (
    client_dims,
    declared_ranges,
    from_named,
    leaves,
    named,
    of_type,
    rebuild,
    tensors_digest,
)
from fedloom.core.task import Task
from fedloom.core.tiers import GlobalTier
from fedloom.core.version import VERSION
from fedloom.remote.wire import Header, WireMessage, below, refuse_infinite

Tensors = dict[str, Tensor]

TOKEN_BYTES = 32
"""Bytes that a client shows at every enrolment in a run, and that only it knows."""

LARGEST_NORM = 1e9
"""Longest tensor of an upload, by its Euclidean norm, that a server takes."""


class Proof(NamedTuple):
    """Client to server, at enrolment: what only this client can show."""

    token: Tensor
    """(TOKEN_BYTES,) the same at every enrolment in a run; a server keeps its digest
    alone."""


class Moments(NamedTuple):
    """Client to server, at enrolment: what standardises samples over all clients."""

    mean: Tensor
    """(features,) mean over the client's training samples, float64."""
    variance: Tensor
    """(features,) mean squared distance to it; 0 where a feature never varies."""

    @classmethod
    def of(cls, rows: Tensor) -> Moments:
        """Of some samples, one row each."""
        rows = rows.double()
        varies = rows.amax(0) > rows.amin(0)
        return cls(
            mean=torch.where(varies, rows.mean(0), rows[0]),
            variance=torch.where(varies, rows.var(0, correction=0), 0.0),
        )

    @classmethod
    def pooled(cls, moments: Sequence[Moments], sizes: Tensor) -> Moments:
        """Over the samples of several clients, or of several teams.

        Args:
            moments: of each client.
            sizes: (M,) how many samples each has.
        """
        means, variances = (
            torch.stack(column) for column in zip(*moments, strict=True)
        )
        share = (sizes.double() / sizes.sum()).view(-1, *[1] * (means.dim() - 1))
        mean = (share * means).sum(0)
        variance = (share * (variances + (means - mean) ** 2)).sum(0)
        varies = (variances > 0).any(0) | (means != means[0]).any(0)
        return cls(
            mean=torch.where(varies, mean, means[0]),
            variance=torch.where(varies, variance, 0.0),
        )

    @property
    def constants(self) -> Tensor:
        """(2, features) mean and deviation; a feature that never varies has 1."""
        deviation = torch.where(self.variance > 0, self.variance.sqrt(), 1.0)
        return torch.stack([self.mean, deviation])


class TeamEnrolment(NamedTuple):
    """Team server to global server, beside an enrolment of the team as one client."""

    clients: Tensor
    """How many clients the team has."""


class TeamPlace(NamedTuple):
    """Global server to team server, with every message: which clients are the team's.

    Clients have numbers over all teams, so that cohorts and random streams are those of
    one server for all.
    """

    first: Tensor
    """Number of the team's first client; the others follow."""
    total: Tensor
    """How many clients all teams have."""


def read_constants(
    message: WireMessage, shapes: Mapping[str, tuple[int, ...]], where: str
) -> Tensors:
    """What standardises samples, as it came with a message, checked.

    Args:
        message: what came.
        shapes: of what is standardised: "inputs", "targets".
        where: how messages call the place.

    Raises:
        MessageError: It does not fit the samples.
    """
    constants = below(message.tensors, "constants")
    expected = {name: (torch.float64, (2, *shape)) for name, shape in shapes.items()}
    sent = {name: (t.dtype, tuple(t.shape)) for name, t in constants.items()}
    if sent != expected:
        raise MessageError(
            f"{where}: expected constants that standardise {expected}, found {sent}."
        )
    refuse_infinite(constants, where)
    return constants


def settings_digest(algorithm: AnyAlgorithm, task: Task, seed: int) -> str:
    """The digest of what server and clients must have the same, data apart.

    The version of Fedloom, the method with its settings, the model with its first
    parameters, what is measured, and the seed.
    """
    return table_digest(
        {
            "fedloom": VERSION,
            "algorithm": algorithm.name,
            "settings": _settings(algorithm),
            "layout": [[b.name, list(b.shape)] for b in task.layout],
            "start": tensors_digest({"start": task.start}),
            "head": task.base_d,
            "metric": task.metric,
            "dtype": str(task.dtype),
            "seed": seed,
        }
    )


def agreement(algorithm: AnyAlgorithm, seed: int) -> str:
    """What server and clients must have the same, as text that a client compares."""
    table = {"fedloom": VERSION, "algorithm": algorithm.name, "seed": seed}
    return json.dumps({**table, **_settings(algorithm)}, sort_keys=True)


def _settings(algorithm: AnyAlgorithm) -> dict[str, str]:
    """A method's settings in words; of a global tier, the method's and that it is."""
    if isinstance(algorithm, GlobalTier):
        return {"clients are": "team servers", **_settings(algorithm.method)}
    return {name: repr(value) for name, value in asdict(algorithm).items()}


def disagreement(mine: str, theirs: str) -> str:
    """In what the server's `agreement` differs from a client's; empty if in nothing."""
    own = json.loads(mine)
    try:
        other = dict(json.loads(theirs))
    except (ValueError, TypeError, RecursionError):
        return "what it says of its settings cannot be read"
    return "; ".join(
        f"{key} is {shown(other.get(key))} at the server, {shown(own.get(key))} here"
        for key in dict.fromkeys((*own, *other))
        if own.get(key) != other.get(key)
    )


# Down: an exchange.


def order_tensors(order: Order, row: int) -> Tensors:
    """What one client of an order is sent."""
    return {
        "instruction.uploads": order.uploads[row],
        "instruction.taken": order.taken[row],
        **_under("download", order.download.take(row).record),
    }


def read_order(message: WireMessage, algorithm: AnyAlgorithm, task: Task) -> Order:
    """The order for the one client that a message is for.

    Raises:
        MessageError: It is not what its type declares.
    """
    header, where = message.header, _where(message.header)
    _refuse_others(message.tensors, ("instruction", "download", "constants"), where)
    instruction = below(message.tensors, "instruction")
    uploads = _scalar(instruction, "uploads", torch.bool, where)
    taken = _scalar(instruction, "taken", torch.int64, where)
    if len(instruction) > 2 or not -1 <= int(taken) < header.number:
        raise MessageError(f"{where}: its instruction is not that of an exchange.")
    return Order(
        round=header.round,
        exchange=header.exchange,
        number=header.number,
        clients=torch.tensor([header.client], device=task.device),
        download=_read_download(message, algorithm.records[2], task, where),
        uploads=uploads[None].to(task.device),
        taken=taken[None].to(task.device),
    )


# Up: what came of it.


def result_tensors(report: Report, upload: Any) -> Tensors:
    """What one client sends; `upload` is None if it is not to upload."""
    sent = {} if upload is None else _under("upload", upload)
    return {**_under("report", report), **sent}


def read_result(
    message: WireMessage,
    upload: Any,
    dtype: torch.dtype,
    *,
    largest_norm: float = LARGEST_NORM,
    ranges: Mapping[str, range] = MappingProxyType({}),
) -> tuple[Report, Any]:
    """A client's report and upload, checked.

    Args:
        message: what came.
        upload: what an upload looks like; None if the client was not to upload.
        dtype: the run's floating type.
        largest_norm: longest tensor of an upload that is taken.
        ranges: by field of an upload, the whole numbers that are taken.

    Raises:
        MessageError: It is not what was expected.
    """
    where = _where(message.header)
    parts = ("report",) if upload is None else ("report", "upload")
    _refuse_others(message.tensors, parts, where)
    integer = torch.zeros((), dtype=torch.int64)
    like = Report(torch.zeros((), dtype=dtype), integer, integer)
    report = _read(message.tensors, "report", like, where)
    if int(report.steps) < 0 or int(report.gradients) < 0:
        raise MessageError(
            f"{where}: expected numbers of steps and gradients of at least 0, found "
            f"{int(report.steps)} and {int(report.gradients)}."
        )
    if upload is None:
        return report, None
    sent = below(message.tensors, "upload")
    record = _read(message.tensors, "upload", upload, where)
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


# Down and up: a score.


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
        **_under("download", request.download.take(row).record),
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
    header, where = message.header, _where(message.header)
    known = ("instruction", "download", "model", "constants")
    _refuse_others(message.tensors, known, where)
    instruction = below(message.tensors, "instruction")
    taken = _scalar(instruction, "taken", torch.int64, where)
    parts = instruction.get("parts", torch.zeros(0))
    is_sound = parts.dtype == torch.bool and parts.shape == (len(PARTS),)
    is_sound = is_sound and bool(parts.any()) and len(instruction) == 2
    if not is_sound or not -1 <= int(taken) < header.number:
        raise MessageError(f"{where}: its instruction is not that of a score.")
    models = below(message.tensors, "model")
    _refuse_others(models, ("shared", "team"), where)
    for name, theta in models.items():
        if theta.shape != task.start.shape or theta.dtype != task.dtype:
            raise MessageError(
                f"{where}: the {name} model should be {task.dtype} "
                f"{tuple(task.start.shape)}, found {theta.dtype} {tuple(theta.shape)}."
            )
    refuse_infinite(models, where)
    shared, team = models.get("shared"), models.get("team")
    download = _read_download(message, model_record(algorithm), task, where)
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
    where = _where(message.header)
    _refuse_others(message.tensors, tuple(parts), where)
    refuse_infinite(message.tensors, where)
    made: dict[str, dict[str, Sums]] = {}
    for part in parts:
        sent = below(message.tensors, part)
        _refuse_others(sent, tuple(like), f"{where}, {part}")
        made[part] = {}
        for kind, row in like.items():
            expected = rebuild(row, [leaf[0] for leaf in leaves(row)])
            sums = _read(sent, kind, expected, f"{where}, {part}")
            if int(sums.samples) < 0:
                raise MessageError(
                    f"{where}: expected a number of samples of at least 0, found "
                    f"{int(sums.samples)}."
                )
            made[part][kind] = rebuild(sums, [leaf[None] for leaf in leaves(sums)])
    return made


# Up, once: an enrolment.


def enrolment_tensors(
    enrolment: Enrolment,
    moments: Mapping[str, Moments],
    token: bytes,
    *,
    team: TeamEnrolment | None = None,
) -> Tensors:
    """What one client says of itself.

    Args:
        enrolment: sizes and team.
        moments: of "inputs" and "targets".
        token: as `fedloom.remote.home.Home.token` gives it.
        team: what a team server says beside it.
    """
    shown_token = torch.frombuffer(bytearray(token), dtype=torch.uint8)
    tensors = _under("enrolment", enrolment) | _under("proof", Proof(shown_token))
    for name, of_name in moments.items():
        tensors |= _under(name, of_name)
    return tensors | ({} if team is None else _under("team", team))


class ReadEnrolment(NamedTuple):
    """What a client said of itself."""

    enrolment: Enrolment
    moments: dict[str, Moments]
    proof: str
    """Digest of its token."""
    clients: int
    """How many clients it stands for: 1, or those of a team."""


def read_enrolment(
    message: WireMessage,
    shapes: Mapping[str, tuple[int, ...]],
    *,
    is_team: bool = False,
) -> ReadEnrolment:
    """What a client says of itself, checked.

    Args:
        message: what came.
        shapes: of the moments that are expected: "inputs", "targets".
        is_team: whether it must be a team server.

    Raises:
        MessageError: It is not what was expected.
    """
    where = _where(message.header)
    parts = ("enrolment", "proof", *shapes, *(["team"] if is_team else []))
    _refuse_others(message.tensors, parts, where)
    refuse_infinite(message.tensors, where)
    integer = torch.zeros((), dtype=torch.int64)
    enrolment = _read(message.tensors, "enrolment", Enrolment(*[integer] * 4), where)
    numbers = [int(value) for value in enrolment]
    if min(numbers) < -1 or numbers[0] == 0 or not 0 <= numbers[1] < 1 << 20:
        raise MessageError(
            f"{where}: expected numbers of samples and of a team, found {numbers}."
        )
    moments = {}
    for name, shape in shapes.items():
        blank = torch.zeros(shape, dtype=torch.float64)
        moments[name] = _read(message.tensors, name, Moments(blank, blank), where)
        if bool((moments[name].variance < 0).any()):
            raise MessageError(f"{where}: field '{name}.variance' is below 0.")
    token = Proof(torch.zeros(TOKEN_BYTES, dtype=torch.uint8))
    proof = _read(message.tensors, "proof", token, where)
    clients = 1
    if is_team:
        sent = _read(message.tensors, "team", TeamEnrolment(integer), where)
        clients = int(sent.clients)
        if not 1 <= clients < 1 << 31:
            raise MessageError(
                f"{where}: expected a number of clients of the team, found {clients}."
            )
    return ReadEnrolment(enrolment, moments, tensors_digest(named(proof)), clients)


# Between tiers: which clients are a team's.


def place_tensors(team_sizes: Sequence[int], team: int) -> Tensors:
    """What one team server is sent with every message.

    Args:
        team_sizes: how many clients each team has, by number.
        team: its number.
    """
    place = TeamPlace(
        first=torch.tensor(sum(team_sizes[:team])),
        total=torch.tensor(sum(team_sizes)),
    )
    return _under("place", place)


def read_place(message: WireMessage, clients: int) -> tuple[int, range]:
    """How many clients all teams have, and the numbers of those of one.

    Args:
        message: what came.
        clients: how many the team has.

    Raises:
        MessageError: It is not what its type declares.
    """
    integer = torch.zeros((), dtype=torch.int64)
    where = _where(message.header)
    place = _read(message.tensors, "place", TeamPlace(integer, integer), where)
    first, total = int(place.first), int(place.total)
    if not 0 <= first <= total - clients:
        raise MessageError(
            f"{where}: expected a place for {clients} clients, found {first} of "
            f"{total}."
        )
    return total, range(first, first + clients)


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


def _where(header: Header) -> str:
    return f"{header.kind} of client {header.client}, round {header.round}"


def _under(prefix: str, record: Any) -> Tensors:
    return {f"{prefix}.{name}": tensor for name, tensor in named(record).items()}


def _read(tensors: Mapping[str, Tensor], part: str, like: Any, where: str) -> Any:
    """One record of a message, of exactly the fields, types and shapes of another."""
    sent = below(tensors, part)
    extra = sorted(sent.keys() - named(like).keys())
    if extra:
        raise MessageError(f"{where}: field {extra[0]!r} of {part} is not declared.")
    return from_named(like, sent, f"{where}, {part}")


def _read_download(
    message: WireMessage, kind: type[Any], task: Task, where: str
) -> CohortDownload:
    """The download of one client, with a row where its type has one per client."""
    sent = below(message.tensors, "download")
    refuse_infinite(sent, where)
    record = of_type(kind, sent, f"{where}, download")
    rows = [
        (leaf[None] if dims else leaf).to(task.device)
        for leaf, dims in zip(leaves(record), client_dims(record), strict=True)
    ]
    return CohortDownload.of(rebuild(record, rows))


def _scalar(tensors: Tensors, name: str, dtype: torch.dtype, where: str) -> Tensor:
    value = tensors.get(name)
    if value is None or value.dtype != dtype or value.shape != ():
        raise MessageError(f"{where}: field {name!r} should be one {dtype}.")
    return value


def _refuse_others(
    tensors: Mapping[str, Tensor], parts: tuple[str, ...], where: str
) -> None:
    """Refuse fields that do not belong to any of these parts."""
    for name in tensors:
        if name.partition(".")[0] not in parts:
            raise MessageError(
                f"{where}: field {name!r} is not declared; known are the fields of "
                f"{', '.join(parts)}."
            )
